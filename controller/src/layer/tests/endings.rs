//! Runs that fail, expire, or are denied or refused.

use super::*;
use crate::layer::conditions::READY;

#[test]
fn unapplied_plan_is_not_planned_again_unasked() {
    for end in [
        RunResult::Rejected,
        RunResult::Expired,
        RunResult::Canceled,
        RunResult::Superseded,
    ] {
        let mut world = World::begun();
        world.waits(1).ends(end).settle().later(60).settle();
        assert_eq!(world.made.len(), 1, "{end}");
        assert_eq!(world.state(), Some(LayerState::ApplyNeeded), "{end}");
        assert!(world.waits_for().contains(end.as_str()), "{end}");
        let asks = |world: &mut World| {
            world.settle();
            world.made.len()
        };
        world.annotate(names::PLAN, "now");
        assert_eq!(asks(&mut world), 2, "{end}: a gesture");
        world.ends(RunResult::NoChanges).settle();
        assert_eq!(world.state(), Some(LayerState::Idle));
    }
}

#[test]
fn run_canceled_before_its_plan_waits_for_a_commit() {
    let mut world = World::begun();
    world.begins().ends(RunResult::Canceled).settle();
    world.later(3000).settle();
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.status().failures.unwrap().reason, "Canceled");
    world.pushed(2, "b").settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn deletion_of_a_stopped_run_causes_no_other() {
    type End = fn(&mut World);
    let ends: [(&str, End); 2] = [
        ("canceled", |world| _ = world.ends(RunResult::Canceled)),
        ("failed", |world| {
            _ = world.fails("Configuration", "PlanFailed");
        }),
    ];
    for (how, end) in ends {
        let mut world =
            World::applied().with(&json!({"spec": {"remediation": {"onCommit": "Automatic"}}}));
        world.settle().ends(RunResult::NoChanges).settle();
        world.pushed(2, "b").settle().begins();
        end(&mut world);
        let made = world.settle().made.len();
        world.runs.pop();
        world.settle().later(3000).settle();
        assert_eq!(world.made.len(), made, "{how}");
        world.pushed(3, "c").settle();
        assert_eq!(world.made.len(), made + 1, "{how}: another commit");
    }
}

#[test]
fn drift_check_after_a_denial_keeps_manual_approval() {
    let remediation =
        json!({"spec": {"remediation": {"onCommit": "Manual", "onDrift": "Automatic"}}});
    let mut world = World::new().with(&remediation).commit(1, "a").settled();
    world.waits(1).ends(RunResult::Rejected).settle();
    world.later(60 * 27).settle();
    assert_eq!((world.trigger().as_str(), world.made.len()), ("Drift", 2));
    assert_eq!(
        world.open().unwrap().spec.approval.mode,
        crds::ApprovalMode::Manual
    );
}

#[test]
fn transient_failure_is_retried_with_backoff_from_its_end() {
    // Burrito 11.8: every failure was retried, with a delay measured from the start of the run before.
    let mut world = World::new()
        .commit(1, "a")
        .with(&json!({"spec": {"maxRetries": 2}}))
        .settled();
    let mut waits = Vec::new();
    for round in 1.. {
        world.begins().later(120);
        world.fails("Transient", "ProviderUnreachable").settle();
        let failures = world.status().failures.unwrap();
        assert_eq!(failures.times, round);
        assert_eq!(failures.run.as_str(), world.made.last().unwrap().as_str());
        let Some(at) = failures.retry_at else { break };
        waits.push(at.0.duration_since(world.now).as_secs());
        let before = world.made.len();
        world.later(0).settle();
        assert_eq!(world.made.len(), before, "not before its time");
        world.now = at.0;
        world.settle();
        assert_eq!(world.made.len(), before + 1);
        assert_eq!(world.trigger().as_str(), "Retry");
    }
    assert_eq!((waits, world.made.len()), (vec![60, 120], 3));
    assert_eq!(world.condition(READY), is("False", "RunFailed"));
    world.later(60 * 100).settle();
    assert_eq!(world.made.len(), 3, "only a commit or a person");
    world.annotate(names::PLAN, "now").settle();
    world.fails("Transient", "ProviderUnreachable").settle();
    assert_eq!(
        world.status().failures.unwrap().times,
        1,
        "a person begins anew"
    );
}

#[test]
fn permanent_failure_waits_for_a_commit() {
    for class in ["Configuration", "Policy", "Integrity", "Internal"] {
        let mut world = World::begun();
        world.begins().fails(class, "InvalidConfiguration");
        world.settle();
        world.later(60 * 100).settle();
        assert_eq!(world.made.len(), 1, "{class}");
        assert_eq!(world.state(), Some(LayerState::PlanNeeded), "{class}");
        world.pushed(2, "b").settle();
        assert_eq!((world.made.len(), world.trigger().as_str()), (2, "Commit"));
        assert!(world.status().next_step.is_none());
    }
}

#[test]
fn refused_run_creation_is_reported_and_retried() {
    let mut world = World::new().commit(1, "a");
    let later = world.now + SignedDuration::from_mins(1);
    world.refused = Some(Refused {
        run: world.due(),
        text: "quota exceeded".into(),
        retry_at: later,
    });
    world.settle();
    assert!(world.made.is_empty());
    assert_eq!(world.condition(READY), is("False", "RunRefused"));
    assert!(world.decide().requeue.is_some());
    world.pushed(2, "b").settle();
    assert_eq!(world.made.len(), 1, "another run was not refused");
    world.ends(RunResult::NoChanges).settle().pushed(3, "c");
    world.refused = Some(Refused {
        run: world.due(),
        text: "quota exceeded".into(),
        retry_at: world.now + SignedDuration::from_mins(1),
    });
    world.settle();
    world.later(1).settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn failed_plan_is_reported_and_no_run_is_current() {
    // Burrito 11.13: a failed plan stayed "still planning" forever.
    let mut world = World::begun();
    world.fails("Configuration", "InvalidConfiguration");
    world.settle();
    let status = world.status();
    assert_eq!(
        (status.current_run, status.last_result.as_deref()),
        (None, Some("Failed InvalidConfiguration"))
    );
    assert!(status.waits_for.unwrap().contains("InvalidConfiguration"));
}

#[test]
fn indeterminate_apply_waits_for_a_person_or_proof() {
    let mut world = World::begun();
    world.waits(1).ends(RunResult::Indeterminate).settle();
    world.later(60 * 60).settle();
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.condition(READY), is("False", "RunFailed"));
    let settled = json!({"result": "Applied", "message": "m", "at": world.now});
    world.merge_run(
        &world.made[0].clone(),
        &json!({"status": {"settled": settled}}),
    );
    world.settle();
    assert_eq!(world.state(), Some(LayerState::Idle), "the proof arrived");
}

/// The name of a deleted run may be another's by now.
#[test]
fn deleted_run_is_not_named_as_one_that_exists() {
    let dry = json!({"spec": {"remediation": {"onCommit": "Dry"}}});
    let mut world = World::new().with(&dry).commit(1, "a").settled();
    world.waits(1).ends(RunResult::Planned).settle();
    let name = world.made[0].clone();
    assert!(world.waits_for().contains(&format!("run {name} are not")));
    assert!(
        world.next_step().starts_with("kubectl patch -n team"),
        "another plan would end as this one: {}",
        world.next_step()
    );
    let uid = world.status().last_plan.unwrap().uid;
    assert_eq!(uid.as_deref(), world.runs[0].metadata.uid.as_deref());
    // A run without the layer's UID is none of its runs, whatever its name.
    world.runs[0].metadata.labels = None;
    world.settle();
    assert!(
        world.waits_for().contains(&format!("run {name} (deleted)")),
        "{}",
        world.waits_for()
    );
}

/// The layer sees the second run first, whose name follows from the same cause.
#[test]
fn plan_of_a_deleted_run_is_void_though_its_name_returns() {
    let mut world = World::begun();
    world.planned();
    assert!(world.status().last_plan.is_some());
    let run = &mut world.runs[0];
    (run.metadata.uid, run.status) = (Some("another".into()), None);
    world.settle();
    assert!(
        world.status().last_plan.is_none(),
        "its run was deleted while it waited"
    );
}

#[test]
fn deletion_of_runs_does_not_turn_drift_into_a_commit() {
    let remediation =
        json!({"spec": {"remediation": {"onCommit": "Automatic", "onDrift": "Manual"}}});
    let mut world = World::new().with(&remediation).commit(1, "a").settled();
    world.begins().ends(RunResult::Applied).settle();
    world.later(60 * 27).settle().planned();
    assert_eq!(world.trigger(), "Drift");
    world.runs.clear();
    world.settle();
    assert_eq!(
        world.open().unwrap().spec.approval.mode,
        crds::ApprovalMode::Manual
    );
}
