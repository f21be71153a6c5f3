//! The first thing in a layer's way: its repository, a freeze, its run's error.

use super::*;
use crate::{
    cluster::freeze::Frozen,
    layer::conditions::{COMMIT_PLANNED, READY, RECONCILING, STALLED},
};

const STEP: &str =
    "kubectl annotate -n team --overwrite tfrepo.pawl.run/infra pawl.run/reconcile=now";

fn repository(mut world: World, status: &Value) -> World {
    world.repository.as_mut().unwrap().status =
        Some(serde_json::from_value(status.clone()).unwrap());
    world.settle();
    world
}

/// The whole repository fails with this reason.
fn whole(world: World, reason: &str) -> World {
    let since = world.now;
    repository(
        world,
        &json!({"nextStep": STEP, "conditions": [{"type": "Synced", "status": "False", "reason": reason, "lastTransitionTime": since,
            "message": format!("cannot be read; next step: {STEP}")}]}),
    )
}

/// A ref of it fails with this reason.
fn of_ref(world: World, name: &str, class: &str, reason: &str) -> World {
    let failure = json!({"class": class, "reason": reason, "message": "cannot be read", "nextStep": STEP, "since": world.now, "times": 1});
    repository(
        world,
        &json!({"nextStep": STEP, "refs": [{"name": name, "failure": failure}]}),
    )
}

fn health(world: &World) -> [String; 3] {
    [READY, RECONCILING, STALLED].map(|type_| world.condition(type_).0)
}

fn ready_message(world: &World) -> String {
    let ready = &world.status().conditions[0];
    assert_eq!(ready.type_, READY, "the first condition");
    ready.message.clone()
}

const STALLS: [&str; 3] = ["False", "False", "True"];
const WORKS: [&str; 3] = ["False", "True", "False"];

#[test]
fn new_layer_reports_why_its_repository_gives_no_commit() {
    for (reason, expected) in [
        ("SecretForbidden", STALLS),
        ("SourceUnauthorized", STALLS),
        ("RepositoryNotFound", STALLS),
        ("SourceUnreachable", WORKS),
    ] {
        let world = whole(World::new(), reason);
        assert_eq!(world.condition(READY), is("False", reason));
        assert_eq!(world.condition(COMMIT_PLANNED), is("Unknown", reason));
        assert_eq!(health(&world), expected, "{reason}");
        let told = "repository team/infra: cannot be read";
        assert_eq!(
            (world.waits_for().as_str(), world.next_step().as_str()),
            (told, STEP)
        );
        assert_eq!(ready_message(&world), format!("{told}; next step: {STEP}"));
        assert!(
            world.told.starts_with(told) && world.told.ends_with(STEP),
            "{}",
            world.told
        );
    }
    for (class, reason) in [
        ("Configuration", "RevisionNotFound"),
        ("Configuration", "SourceInvalid"),
    ] {
        let world = of_ref(World::new(), "main", class, reason);
        assert_eq!(world.condition(READY), is("False", reason));
        assert_eq!(
            (health(&world).as_slice(), world.next_step().as_str()),
            (&STALLS.map(str::to_owned)[..], STEP)
        );
        let other = of_ref(World::new(), "v2", class, reason);
        assert_eq!(
            other.condition(READY),
            is("False", "NoRevision"),
            "{reason} of another's ref"
        );
    }
    let suspended = World::new();
    let suspended = repository(
        suspended,
        &json!({"conditions": [{"type": "Synced", "status": "False", "reason": "Suspended", "message": "spec.suspend is true", "lastTransitionTime": t0()}]}),
    );
    assert_eq!(suspended.condition(READY), is("False", "Suspended"));
    assert!(
        suspended
            .next_step()
            .contains("tfrepo.pawl.run/infra --type=merge"),
        "{}",
        suspended.next_step()
    );
    let beyond = repository(
        World::new(),
        &json!({"conditions": [{"type": "Ready", "status": "False", "reason": "InvalidSpec", "message": "3 refs beyond", "lastTransitionTime": t0()}]}),
    );
    assert_eq!(beyond.condition(READY), is("False", "InvalidSpec"));
}

#[test]
fn applied_layer_fails_with_its_ref_at_once_or_after_an_hour() {
    for reason in ["RevisionNotFound", "SourceInvalid"] {
        let world = of_ref(World::applied(), "main", "Configuration", reason);
        assert_eq!(world.condition(READY), is("False", reason));
        assert_eq!(health(&world), STALLS, "{reason}");
        assert_eq!(
            world.state(),
            Some(LayerState::Idle),
            "what is known of it stays"
        );
        let mut back = repository(world, &json!({}));
        back.settle();
        assert_eq!(back.condition(READY), is("True", "UpToDate"));
        let other = of_ref(World::applied(), "v2", "Configuration", reason);
        assert_eq!(
            other.condition(READY),
            is("True", "UpToDate"),
            "{reason} of another's ref"
        );
    }
    let mut away = whole(World::applied(), "SourceUnreachable");
    assert_eq!(away.condition(READY), is("True", "UpToDate"));
    let again = away.decide().requeue.unwrap().as_secs();
    assert!((3599..=3601).contains(&again), "{again}");
    away.later(59).settle();
    assert_eq!(away.condition(READY), is("True", "UpToDate"));
    away.later(2).settle();
    assert_eq!(away.condition(READY), is("False", "SourceUnreachable"));
    assert_eq!(health(&away), WORKS);
    let forbidden = whole(World::applied(), "SecretForbidden");
    assert_eq!(forbidden.condition(READY), is("False", "SecretForbidden"));
    let suspended = World::applied();
    let suspended = repository(
        suspended,
        &json!({"conditions": [{"type": "Synced", "status": "False", "reason": "Suspended", "message": "m", "lastTransitionTime": t0()}]}),
    );
    assert_eq!(
        suspended.condition(READY),
        is("True", "UpToDate"),
        "its layers keep their commits"
    );
}

#[test]
fn layer_with_a_failed_ref_is_checked_for_drift() {
    let mut world = of_ref(
        World::applied(),
        "main",
        "Configuration",
        "RevisionNotFound",
    );
    world.later(60 * 27).settle();
    assert_eq!(world.made.len(), 2);
    assert_eq!(
        world.condition(READY),
        is("False", "RevisionNotFound"),
        "health does not flap"
    );
    world.waits(1).settle();
    assert_eq!(world.condition(READY), is("False", "DriftFound"));
    assert!(
        world.next_step().contains("pawl.run/approve="),
        "{}",
        world.next_step()
    );
}

#[test]
fn failed_run_is_reported_with_its_error_and_a_step() {
    let mut world = World::begun();
    world
        .begins()
        .fails("Configuration", "InvalidConfiguration");
    let run = world.runs.last_mut().unwrap();
    run.status
        .as_mut()
        .unwrap()
        .failure
        .as_mut()
        .unwrap()
        .message = "init failed: Unsupported argument (main.tf line 3)".into();
    world.settle();
    let said = "failed (InvalidConfiguration): init failed: Unsupported argument (main.tf line 3)";
    assert!(
        ready_message(&world).contains(said),
        "{}",
        ready_message(&world)
    );
    assert!(world.waits_for().contains(said), "{}", world.waits_for());
    world.runs.clear();
    world.settle();
    assert!(
        ready_message(&world).contains(said),
        "its run was deleted: {}",
        ready_message(&world)
    );
}

#[test]
fn freeze_is_the_reason_of_what_it_holds_and_of_nothing_else() {
    let freeze = |mut world: World| {
        world.namespace = Namespace::Frozen(Frozen::Namespace("team".into()));
        world.settle();
        world
    };
    let mut waiting = World::begun();
    waiting.waits(1);
    let mut failed = World::begun();
    failed.begins().fails("Transient", "SourceUnreachable");
    for (row, world) in [
        ("never planned", World::new().commit(1, "a")),
        ("a run that has not begun", World::begun()),
        ("a plan waits", waiting),
        ("a retry", failed),
    ] {
        let world = freeze(world);
        assert_eq!(world.condition(READY), is("False", "Frozen"), "{row}");
        assert_eq!(health(&world), ["False"; 3], "{row}");
        assert_eq!(
            world.next_step(),
            "kubectl annotate namespace team pawl.run/freeze-",
            "{row}"
        );
        assert!(
            ready_message(&world).contains("namespace team is frozen"),
            "{row}"
        );
    }
    assert_eq!(
        freeze(World::applied()).condition(READY),
        is("True", "UpToDate")
    );
    let mut planning = World::begun();
    planning.begins();
    let mut opened = World::begun();
    let attempt = json!({"number": 1, "podName": "p", "open": true});
    opened.merge_run(
        &opened.open_name(),
        &json!({"status": {"phase": "Pending", "attempt": attempt}}),
    );
    for world in [planning, opened] {
        assert_eq!(
            freeze(world).condition(READY),
            is("False", "Running"),
            "work in progress continues"
        );
    }
    let unverified = World::new()
        .commit(1, "a")
        .with(&json!({"metadata": {"annotations": {names::UNVERIFIED: "x"}}}));
    assert_eq!(
        freeze(unverified).condition(READY),
        is("False", "Unverified"),
        "the first thing in its way"
    );
}

#[test]
fn run_that_has_not_begun_to_plan_is_replaced() {
    for phase in ["Pending", "Setup", "Init", "Plan"] {
        let mut world = World::begun();
        let status =
            json!({"phase": phase, "attempt": {"number": 1, "podName": "p", "open": true}});
        world.runs.last_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
        let first = world.made.last().unwrap().clone();
        world
            .change(&json!({"spec": {"template": {"workspace": "w"}}}))
            .settle();
        let canceled = world.runs[0].annotations().get(names::CANCEL).cloned();
        assert_eq!(
            canceled.is_some(),
            phase != "Plan",
            "{phase} {first}: {canceled:?}"
        );
    }
}

/// A commit comes when the attempt prepares: a run that a stream of commits cancels would never plan.
#[test]
fn commit_leaves_a_run_that_prepares() {
    let mut world = World::begun();
    let name = world.open_name();
    world.merge_run(&name, &json!({"status": {"phase": "Init"}}));
    let world = world.commit(2, "b").settled();
    assert_eq!(world.runs.len(), 1, "{}", world.waits_for());
    assert!(!world.runs[0].annotations().contains_key(names::CANCEL));
}

/// The layer gives reason, message and next step of the obstacle of its run, and goes on with it.
#[test]
fn obstacle_of_a_run_is_the_reason_of_its_layer() {
    let mut world = World::begun();
    let name = world.open_name();
    let stalled = |status: &str| {
        json!({"status": {"phase": "Pending", "nextStep": "kubectl get nodes", "conditions": [{"type": "Stalled", "status": status,
            "reason": "Unschedulable", "message": "no node has room", "lastTransitionTime": t0()}]}})
    };
    world.merge_run(&name, &stalled("True")).settle();
    let condition = |world: &World, of| world.condition(of);
    assert_eq!(
        condition(&world, READY),
        ("False".into(), "Unschedulable".into())
    );
    assert_eq!(condition(&world, STALLED).0, "True");
    assert_eq!(world.waits_for(), format!("run {name}: no node has room"));
    assert_eq!(
        world.status().next_step.as_deref(),
        Some("kubectl get nodes")
    );
    world.merge_run(&name, &stalled("False")).settle();
    assert_eq!(condition(&world, READY).1, "Running");
    assert_eq!(condition(&world, STALLED).0, "False");
}

/// The guide's table of reasons, and the reasons that the code gives `Ready`.
#[test]
fn guide_lists_each_reason_of_ready() {
    let guide = include_str!("../../../../design/guide/layers.md");
    let table = guide.split("| `Ready` is False for |").nth(1).unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let listed: std::collections::BTreeSet<&str> = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let ready = include_str!("../conditions.rs");
    let ready = ready.split_once("pub(super) fn ready(").unwrap().1;
    let ready = ready.split_once("pub(super) fn reconciling(").unwrap().0;
    let holds = include_str!("../situation.rs");
    let given: std::collections::BTreeSet<&str> = [ready, holds]
        .into_iter()
        .flat_map(|code| code.split("reason::").skip(1))
        .map(|code| {
            code.split(|c: char| !(c.is_ascii_uppercase() || c == '_'))
                .next()
                .unwrap()
        })
        .filter(|word| !word.is_empty() && !matches!(*word, "UP_TO_DATE" | "PLANNED"))
        .map(|word| {
            let same = |reason: &&&str| reason.to_ascii_uppercase() == word.replace('_', "");
            let alias = match word {
                "WAITING" => Some("WaitingForApproval"),
                _ => None,
            };
            alias.unwrap_or_else(|| {
                crds::reason::ALL
                    .iter()
                    .find(same)
                    .unwrap_or_else(|| panic!("{word}"))
            })
        })
        .collect();
    assert!(given.len() > 15);
    let listed: Vec<_> = listed
        .into_iter()
        .filter(|word| !EXAMPLES.contains(word))
        .collect();
    assert_eq!(Vec::from_iter(given), listed);
}

/// Reasons of repositories and runs that the rows of these name as examples.
const EXAMPLES: [&str; 5] = [
    "Unschedulable",
    "SecretForbidden",
    "RevisionNotFound",
    "SourceInvalid",
    "SourceUnreachable",
];
