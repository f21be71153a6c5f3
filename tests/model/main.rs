//! The model: two controllers, two attempts, a person, and an API with lost replies and stale reads, in every order within the
//! budgets below (`design/0012-how-it-is-checked.md`). `machine::next` and `decide` are the real ones, and so are the tables of
//! phases; the policies are those that the played API has.
#![allow(clippy::unwrap_used, clippy::panic, reason = "what cannot go on here is a failed test")]

mod agent;
mod controller;
mod search;
mod state;

use std::{process::ExitCode, time::Instant};

use crds::ApprovalMode;
use libtest_mimic::{Arguments, Failed, Trial};
use played::trace::Deeds;
use state::{Budget, Pod, World, fresh};

/// The most states of one model; by command more, until it is closed.
const MOST: usize = 150_000;

fn world(mode: ApprovalMode, left: Budget) -> World {
    World {
        run: Some(fresh(mode)),
        before: None,
        pods: [Pod::default(), Pod::default()],
        agents: [None, None],
        seen: [None, None],
        created: [0, 0],
        left,
        behind: false,
        now: 0,
        deeds: Deeds::default(),
        hooks: false,
        wrong: None,
    }
}

const NONE: Budget = Budget { approve: 0, withdraw: 0, cancel: 0, delete: 0, lost: 0, crash: 0, force: 0, stale: 0, ticks: 4 };

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let manual = |left: Budget| world(ApprovalMode::Manual, Budget { approve: 1, ..left });
    let automatic = |left: Budget| world(ApprovalMode::Automatic, left);
    let behind = |world: World| World { behind: true, ..world };
    let models: Vec<(&str, World, &[&str])> = vec![
        (
            "automatic_with_lost_replies_and_deaths",
            automatic(Budget { lost: 1, crash: 1, ..NONE }),
            &["Applied", "Indeterminate", "retried"],
        ),
        (
            "automatic_with_force_and_stale_reads",
            automatic(Budget { force: 1, stale: 1, ticks: 2, ..NONE }),
            &["Applied", "Indeterminate"],
        ),
        ("automatic_cancelled_and_deleted", automatic(Budget { cancel: 1, delete: 1, ..NONE }), &["Canceled", "gone"]),
        ("manual_withdrawn", manual(Budget { withdraw: 1, lost: 1, ..NONE }), &["Applied"]),
        ("manual_with_a_death", manual(Budget { crash: 1, ..NONE }), &["Applied", "Indeterminate", "retried"]),
        ("manual_cancelled", manual(Budget { cancel: 1, lost: 1, ..NONE }), &["Canceled"]),
        (
            "manual_behind_another_with_a_death",
            behind(manual(Budget { crash: 1, ticks: 2, ..NONE })),
            &["Applied", "Indeterminate", "retried"],
        ),
        (
            "automatic_with_hooks_and_a_death",
            World { hooks: true, ..automatic(Budget { crash: 1, ticks: 2, ..NONE }) },
            &["Applied", "Indeterminate"],
        ),
        ("automatic_behind_another_with_lost_replies", behind(automatic(Budget { lost: 1, ..NONE })), &["Applied"]),
    ];
    let most = std::env::var("PAWL_MODEL_STATES").ok().and_then(|text| text.parse().ok()).unwrap_or(MOST);
    let trials = models
        .into_iter()
        .map(|(name, first, wanted)| Trial::test(format!("model::{name}"), move || check(name, first, wanted, most)))
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    println!("{} passed, {} failed", conclusion.num_passed, conclusion.num_failed);
    conclusion.exit_code()
}

fn check(name: &str, first: World, wanted: &[&str], most: usize) -> Result<(), Failed> {
    let begun = Instant::now();
    let text = search::show(&first);
    let closed = search::search(first, most).map_err(|way| format!("{way}\nfrom {text}"))?;
    println!(
        "model {name}: {} states, {} steps, {}, {:.1} s; endings {:?}",
        closed.states,
        closed.edges,
        if closed.whole { "closed" } else { "bounded" },
        begun.elapsed().as_secs_f64(),
        closed.endings
    );
    let missing: Vec<_> = wanted.iter().filter(|ending| !closed.endings.contains_key(*ending)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no state came to {missing:?}").into()) }
}
