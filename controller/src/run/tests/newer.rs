//! Values of a newer version: the run waits, and the field keeps its value.

use super::*;
use crate::state_queue::lease_request::{is_entitled, requested_lease};
use crds::{ApprovalMode, Operation, StateLock, Tool, ToolName, names::lease_name};

type Change = fn(&mut TerraformRun);

/// Every field whose value decides an action.
const PLACES: [(&str, Change); 5] = [
    ("status.phase", |run| {
        run.status.get_or_insert_default().phase = Some(Phase::Unknown);
    }),
    ("status.result", |run| {
        run.status.get_or_insert_default().result = Some(RunResult::Unknown);
    }),
    ("spec.operation", |run| {
        run.spec.operation = Operation::Unknown;
    }),
    ("spec.approval.mode", |run| {
        run.spec.approval.mode = ApprovalMode::Unknown;
    }),
    ("spec.tool.name", |run| {
        run.spec.tool = Tool {
            name: Some(ToolName::Unknown),
            version: None,
        }
    }),
];

#[test]
fn run_with_an_unknown_value_is_left_alone() {
    for (name, world) in super::steady::worlds() {
        for (field, change) in PLACES {
            let world = world.clone().with(change);
            assert_eq!(world.run.unknown_word(), Some(field), "{name}");
            for wait in [0, 61, 700, 1_000_000] {
                assert_eq!(
                    world.clone().later(wait).decide(),
                    Decision::wait(),
                    "{name}, {field}"
                );
            }
        }
    }
}

#[test]
fn run_continues_when_the_unknown_value_is_gone() {
    let mut world = World::ended(RunResult::Applied);
    let (phase, writes) = (world.phase(), world.writes.len());
    world.status_mut().phase = Some(Phase::Unknown);
    assert_eq!((world.settle(), world.writes.len()), (None, writes));
    world.status_mut().phase = phase;
    world.settle();
    assert!(!world.attempt().open && world.writes.len() > writes);
}

/// Its lease, and the lock of its pod, may be in use in an unknown way.
#[test]
fn run_with_an_unknown_value_retains_lease_and_lock() {
    let key = OTHER;
    for (field, change) in PLACES {
        let run = World::new().adopted(Phase::Plan).with(change).run;
        assert!(
            is_entitled(&run, &lease_name("team", key), &Settings::default()),
            "{field}"
        );
        assert!(requested_lease(&run, true, true).is_none(), "{field}");
        let closed = World::new().adopted(Phase::Plan).pod_ended(None).settled();
        let (known, newer) = (closed.run.clone(), closed.clone().with(change).run);
        assert!(stale_lock::is_over(&known, 1, &closed.o.pod, closed.now).is_ok());
        assert!(
            stale_lock::is_over(&newer, 1, &closed.o.pod, closed.now)
                .unwrap_err()
                .contains(field),
            "{field}"
        );
    }
    let mut waits = World::new().adopted(Phase::Plan).with(PLACES[0].1);
    waits.status_mut().state_lock = Some(StateLock {
        id: "l1".into(),
        who: "x@net-2xbdf-a1".into(),
        ..StateLock::default()
    });
    assert_eq!(waits.decide(), Decision::wait());
}

/// The claiming process reports the end with an unknown value. Indeterminate would be final and false.
#[test]
fn unknown_result_holds_run_and_pod() {
    let mut world = World::applying().reports(RunResult::Unknown);
    let writes = world.writes.len();
    world = world.later(100_000);
    assert_eq!((world.settle(), world.writes.len()), (None, writes));
    assert!(world.attempt().open && world.result().is_none());
    assert!(world.pod().held, "what it said is kept with it");
    // A message of another process proves nothing.
    let other = TerminationMessage {
        nonce: "f".repeat(32),
        ..message(Some(RunResult::Unknown), None)
    };
    let world = World::applying().pod_ended(Some(other)).settled();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
}

/// Before the claim nothing was applied, so a failure that did not end its run is retried, whatever its class.
#[test]
fn unknown_failure_class_is_retried_and_not_overwritten() {
    let mut world = World::new().adopted(Phase::Plan);
    world.status_mut().failure = Some(failure(FailureClass::Unknown));
    let world = world.fails(FailureClass::Unknown);
    let actions = world.decide().actions;
    let Some(Action::Write(write)) = actions.first() else {
        panic!("{actions:?}")
    };
    assert_eq!(
        (write.kind, write.status["phase"].as_str()),
        (Kind::Close, Some("Pending"))
    );
    let written = write.status["failure"].as_object().unwrap();
    assert!(!written.contains_key("class"), "{written:?}");
    assert!(!written.contains_key("changes"), "{written:?}");
    // If the status has no class yet, a known one is written: a failure has a class.
    let world = World::new()
        .adopted(Phase::Plan)
        .fails(FailureClass::Unknown);
    let actions = world.decide().actions;
    let Some(Action::Write(write)) = actions.first() else {
        panic!("{actions:?}")
    };
    assert_eq!(write.status["failure"]["class"], "Internal");
}

/// In no situation does a write contain a value that the schema does not know.
#[test]
fn no_write_has_an_unknown_value() {
    for (name, world) in super::steady::worlds() {
        for action in world.decide().actions {
            if let Action::Write(write) = action {
                for field in ["phase", "result"] {
                    assert_ne!(
                        write.status.get(field).and_then(Value::as_str),
                        Some("Unknown"),
                        "{name}"
                    );
                }
            }
        }
    }
}
