//! The simulator: the real driver of the agent and the real reconciler of the controller, with a simulated API server, node, datastore,
//! tool and clock (`design/0012-how-it-is-checked.md`). Needs neither root nor a cluster.
//!
//! | | |
//! |---|---|
//! | `PAWL_SIM_SCHEDULES=100000` | number of random schedules; a 32nd as many of layers |
//! | `PAWL_SIM_PAIR_STEP=1` | every pair on the way to the apply, not every seventh |
//! | `PAWL_SIM_SEED=N` | the first of their seeds |
//! | `PAWL_SIM_REPLAY='{…}'` or a seed | one schedule, with its trace |
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "what cannot go on here is a failed test"
)]

mod agent;
mod clocks;
mod controller;
mod deeds;
mod foreign;
mod http;
mod invariants;
mod keeping;
mod kubelet;
mod layered;
mod layers;
mod leases;
mod life;
mod nodes;
mod person;
mod process;
mod queue;
mod schedule;
mod search;
mod slots;
mod sources;
mod stale;
mod work;
mod world;

use std::{process::ExitCode, time::Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use schedule::Schedule;
use search::Found;

/// Default number of random schedules.
const SCHEDULES: u64 = 5_000;
/// Plays every n-th pair on the way to the apply; `PAWL_SIM_PAIR_STEP=1` plays all.
const PAIR_STEP: u64 = 7;
/// Endings that some random schedules must reach; otherwise the simulator tests nothing of interest.
const ENDINGS: [&str; 21] = [
    "Applied",
    "Destroyed",
    "NoChanges",
    "Planned",
    "Rejected",
    "Canceled",
    "Expired",
    "Superseded",
    "Failed before the claim",
    "Failed behind the claim",
    "Indeterminate",
    "settled",
    "deleted",
    "retried",
    "restored",
    "node lost",
    "wrong approval refused",
    "revoked",
    "waited for a slot",
    "given up",
    "hook failed",
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if let Ok(wanted) = std::env::var("PAWL_SIM_REPLAY") {
        let schedule = wanted
            .parse()
            .map_or_else(|_| serde_json::from_str(&wanted).unwrap(), Schedule::random);
        return show(&schedule);
    }
    let trials = vec![
        Trial::test("sim::past_failures_stay_fixed", regressions),
        Trial::test("sim::equal_schedules_give_equal_traces", same),
        Trial::test("sim::every_crash_point", singles),
        Trial::test("sim::every_pair_of_crash_points_up_to_the_apply", pairs),
        Trial::test(
            "sim::tekton_4358_stale_cache_creates_no_second_pod",
            stale::second_pods,
        ),
        Trial::test(
            "sim::tekton_9467_stale_failure_is_not_made_final",
            stale::failures,
        ),
        Trial::test(
            "sim::lost_node_is_reported_in_time_and_fenced_before_the_claim",
            nodes::lost,
        ),
        Trial::test(
            "sim::cancel_ends_a_run_on_a_lost_node_within_a_minute",
            nodes::canceled,
        ),
        Trial::test("sim::abandoned_apply_blocks_no_run", nodes::given_up),
        Trial::test(
            "sim::foreign_pod_of_an_attempt_has_no_effect",
            foreign::pods,
        ),
        Trial::test("sim::wrong_clocks_change_no_expiry", clocks::expiry),
        Trial::test("sim::wrong_clocks_free_no_lease", clocks::leases),
        Trial::test(
            "sim::lease_taken_by_another_run_is_not_recorded",
            leases::passed_over,
        ),
        Trial::test(
            "sim::people_precede_schedules_and_one_slot_serves_all",
            slots::line,
        ),
        Trial::test("sim::frozen_namespace_starts_nothing", slots::frozen),
        Trial::test(
            "sim::run_waiting_for_a_slot_holds_nothing_others_need",
            slots::circles,
        ),
        // Burrito 11.3, Burrito 11.5: commits during a plan were lost, and a lost write made a second run.
        Trial::test("sim::layers_at_every_crash_point", layers::singles),
        Trial::test("sim::layers_in_random_schedules", layers::random),
        Trial::test("sim::random_schedules", random),
    ];
    let arguments = Arguments {
        test_threads: Some(1),
        ..arguments
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    println!(
        "{} passed, {} failed",
        conclusion.num_passed, conclusion.num_failed
    );
    conclusion.exit_code()
}

fn show(schedule: &Schedule) -> ExitCode {
    let report = search::played(schedule, true);
    println!("{}\n{}", report.trace.join("\n"), schedule.line());
    println!(
        "{} boundaries; endings {:?}; violations {:#?}",
        report.boundaries, report.endings, report.violations
    );
    if report.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Prints the counts on one line. Fails with the smallest schedule that shows a failure.
fn conclude(what: &str, begun: Instant, found: &Found) -> Result<(), Failed> {
    let endings: Vec<_> = found
        .endings
        .iter()
        .map(|(ending, times)| format!("{ending} {times}"))
        .collect();
    println!(
        "sim: {what}: {} schedules, {} boundaries crossed, {} failed, {:.1} s; endings: {}",
        found.played,
        found.boundaries,
        found.failures.len(),
        begun.elapsed().as_secs_f64(),
        endings.join(", ")
    );
    let Some((schedule, _)) = found
        .failures
        .iter()
        .min_by_key(|(schedule, _)| schedule.size())
    else {
        return Ok(());
    };
    let small = search::shrink(schedule);
    let report = search::played(&small, true);
    let from = report.trace.len().saturating_sub(150);
    Err(format!(
        "{:?}\n{}\nadd this line to tests/sim/regressions:\n{}",
        report.violations,
        report.trace[from..].join("\n"),
        small.line()
    )
    .into())
}

fn regressions() -> Result<(), Failed> {
    let lines: Vec<Schedule> = include_str!("regressions")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let begun = Instant::now();
    let found = search::all(|i| lines.get(usize::try_from(i).unwrap()).cloned());
    conclude("regressions", begun, &found)
}

fn same() -> Result<(), Failed> {
    for schedule in (0..40)
        .map(Schedule::random)
        .chain((0..8).map(layers::drawn))
    {
        let (one, two) = (
            search::played(&schedule, true),
            search::played(&schedule, true),
        );
        if one.print != two.print || one.trace != two.trace {
            let at = one
                .trace
                .iter()
                .zip(&two.trace)
                .position(|(a, b)| a != b)
                .unwrap_or(0);
            return Err(format!(
                "{}: {:?} and {:?}",
                schedule.line(),
                one.trace.get(at),
                two.trace.get(at)
            )
            .into());
        }
    }
    Ok(())
}

fn singles() -> Result<(), Failed> {
    let begun = Instant::now();
    let all = search::singles();
    let found = search::all(|i| all.get(usize::try_from(i).unwrap()).cloned());
    conclude("every single crash point", begun, &found)?;
    let endings = [
        "Applied",
        "NoChanges",
        "Planned",
        "Rejected",
        "Canceled",
        "retried",
        "hook failed",
        "hooks left out",
    ];
    came_to(&found, &endings)
}

fn pairs() -> Result<(), Failed> {
    let begun = Instant::now();
    let firsts = search::firsts();
    let all: Vec<Schedule> = std::thread::scope(|scope| {
        let halves = firsts.chunks(firsts.len().div_ceil(2));
        let threads: Vec<_> = halves
            .map(|half| scope.spawn(|| half.iter().flat_map(search::pairs_of).collect::<Vec<_>>()))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    // All pairs on request, otherwise every n-th to save time.
    let step = number("PAWL_SIM_PAIR_STEP", PAIR_STEP).max(1);
    let found = search::all(|i| all.get(usize::try_from(i * step).unwrap()).cloned());
    conclude("pairs on the way to the apply", begun, &found)
}

fn random() -> Result<(), Failed> {
    let begun = Instant::now();
    let (count, first) = (
        number("PAWL_SIM_SCHEDULES", SCHEDULES),
        number("PAWL_SIM_SEED", 1),
    );
    let found = search::all(|i| (i < count).then(|| Schedule::random(first + i)));
    conclude("random schedules", begun, &found)?;
    if count >= SCHEDULES {
        came_to(&found, &ENDINGS)
    } else {
        Ok(())
    }
}

/// Fails unless all endings were reached: a state that never occurs is not tested.
fn came_to(found: &Found, endings: &[&'static str]) -> Result<(), Failed> {
    let missing: Vec<_> = endings
        .iter()
        .filter(|ending| !found.endings.contains_key(*ending))
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("no schedule came to {missing:?}").into())
    }
}
