//! Runs that fail, expire, or are denied or refused.

use super::*;
use crate::layer::conditions::READY;

#[test]
fn what_a_person_does_not_want_is_not_planned_again_at_once() {
    for end in [RunResult::Rejected, RunResult::Expired, RunResult::Canceled, RunResult::Superseded] {
        let mut world = World::new().commit(1, "a");
        world.settle();
        world.waits(1);
        world.ends(end);
        world.settle();
        world.later(60);
        world.settle();
        assert_eq!((world.made.len(), world.state()), (1, Some(LayerState::ApplyNeeded)), "{end}");
        assert!(world.status().waits_for.unwrap().contains(end.as_str()), "{end}");
        let asks = |world: &mut World| {
            world.settle();
            world.made.len()
        };
        world.annotate(names::PLAN, "now");
        assert_eq!(asks(&mut world), 2, "{end}: a gesture");
        world.ends(RunResult::NoChanges);
        world.settle();
        assert_eq!(world.state(), Some(LayerState::Idle));
    }
}

#[test]
fn what_was_cancelled_before_its_plan_waits_as_well() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.begins();
    world.ends(RunResult::Canceled);
    world.settle();
    world.later(3000);
    world.settle();
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.status().failures.unwrap().reason, "Canceled");
    world.pushed(2, "b");
    world.settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn the_look_for_drift_brings_back_what_was_denied_and_approves_nothing_by_it() {
    let remediation = json!({"spec": {"remediation": {"onCommit": "Manual", "onDrift": "Automatic"}}});
    let mut world = World::new().with(&remediation).commit(1, "a");
    world.settle();
    world.waits(1);
    world.ends(RunResult::Rejected);
    world.settle();
    world.later(60 * 27);
    world.settle();
    assert_eq!((world.trigger().as_str(), world.made.len()), ("Drift", 2));
    assert_eq!(world.open().unwrap().spec.approval.mode, crds::ApprovalMode::Manual);
}

#[test]
fn a_failure_is_tried_again_where_that_may_help_and_after_its_end() {
    // Burrito 11.8: every failure was retried, with a delay measured from the start of the run before.
    let mut world = World::new().commit(1, "a").with(&json!({"spec": {"maxRetries": 2}}));
    world.settle();
    let mut waits = Vec::new();
    for round in 1.. {
        world.begins();
        world.later(120);
        world.fails("Transient", "ProviderUnreachable");
        world.settle();
        let failures = world.status().failures.unwrap();
        assert_eq!((failures.times, failures.run.as_str()), (round, world.made.last().unwrap().as_str()));
        let Some(at) = failures.retry_at else { break };
        waits.push(at.0.duration_since(world.now).as_secs());
        let before = world.made.len();
        world.later(0);
        world.settle();
        assert_eq!(world.made.len(), before, "not before its time");
        world.now = at.0;
        world.settle();
        assert_eq!((world.made.len(), world.trigger().as_str()), (before + 1, "Retry"));
    }
    assert_eq!((waits, world.made.len()), (vec![60, 120], 3));
    assert_eq!(world.condition(READY), is("False", "RunFailed"));
    world.later(60 * 100);
    world.settle();
    assert_eq!(world.made.len(), 3, "only a commit or a person");
    world.annotate(names::PLAN, "now");
    world.settle();
    world.fails("Transient", "ProviderUnreachable");
    world.settle();
    assert_eq!(world.status().failures.unwrap().times, 1, "a person begins anew");
}

#[test]
fn what_no_try_helps_waits_for_a_commit() {
    for class in ["Configuration", "Policy", "Integrity", "Internal"] {
        let mut world = World::new().commit(1, "a");
        world.settle();
        world.begins();
        world.fails(class, "InvalidConfiguration");
        world.settle();
        world.later(60 * 100);
        world.settle();
        assert_eq!((world.made.len(), world.state()), (1, Some(LayerState::PlanNeeded)), "{class}");
        world.pushed(2, "b");
        world.settle();
        assert_eq!((world.made.len(), world.trigger().as_str()), (2, "Commit"));
        assert!(world.status().next_step.is_none());
    }
}

#[test]
fn a_refused_run_is_said_and_tried_again() {
    let mut world = World::new().commit(1, "a");
    let later = world.now + SignedDuration::from_mins(1);
    world.refused = Some(Refused { run: world.due(), text: "quota exceeded".into(), retry_at: later });
    world.settle();
    assert!(world.made.is_empty());
    assert_eq!(world.condition(READY), is("False", "RunRefused"));
    assert!(world.decide().requeue.is_some());
    world.pushed(2, "b");
    world.settle();
    assert_eq!(world.made.len(), 1, "another run was not refused");
    world.ends(RunResult::NoChanges);
    world.settle();
    world.pushed(3, "c");
    world.refused =
        Some(Refused { run: world.due(), text: "quota exceeded".into(), retry_at: world.now + SignedDuration::from_mins(1) });
    world.settle();
    world.later(1);
    world.settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn a_failed_plan_says_so_and_nobody_waits_for_it() {
    // Burrito 11.13: a failed plan stayed "still planning" forever.
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.fails("Configuration", "InvalidConfiguration");
    world.settle();
    let status = world.status();
    assert_eq!((status.current_run, status.last_result.as_deref()), (None, Some("Failed InvalidConfiguration")));
    assert!(status.waits_for.unwrap().contains("InvalidConfiguration"));
}

#[test]
fn an_apply_of_which_nobody_knows_is_looked_at_by_a_person() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.waits(1);
    world.ends(RunResult::Indeterminate);
    world.settle();
    world.later(60 * 60);
    world.settle();
    assert_eq!((world.made.len(), world.condition(READY)), (1, is("False", "RunFailed")));
    let settled = json!({"result": "Applied", "message": "m", "at": world.now});
    world.merge_run(&world.made[0].clone(), &json!({"status": {"settled": settled}}));
    world.settle();
    assert_eq!(world.state(), Some(LayerState::Idle), "the proof arrived");
}
