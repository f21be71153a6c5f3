//! Plans that outlive their pods: waiting without one, approved after the hold, expired, superseded.

use super::*;
use crds::reason;

/// A plan with a bundle waits in its pod.
fn held() -> World {
    let world = World::new().kept().settled();
    assert_eq!(world.condition(PLANNED), is_true("Planned"));
    world
}

/// The same after the hold.
fn waiting() -> World {
    let mut world = held().exits().settled();
    assert!(!world.attempt().open);
    world.o.pod = PodState::Absent;
    world
}

/// An approval after the hold has opened an attempt and created its pod.
pub(super) fn restoring() -> World {
    let world = waiting().approve().settled();
    assert!(world.attempt().open);
    world
}

/// The termination message of the attempt's own process.
fn said(world: &World, result: Option<RunResult>, failure: Option<Failure>) -> TerminationMessage {
    TerminationMessage {
        attempt: world.attempt().number,
        ..message(result, failure)
    }
}

#[test]
fn plan_waits_without_a_pod_after_the_hold() {
    let mut world = held();
    world.status_mut().next_step = Some("kubectl annotate …".into());
    world = world.exits();
    let before = (world.writes.len(), world.events.len());
    assert_eq!(world.settle(), Some(72 * 3600), "and expires");
    let status = world.status();
    assert_eq!(status.phase, Some(Phase::AwaitingApproval));
    assert!(!world.attempt().open);
    assert_eq!(world.attempt().tries, 1);
    assert!(world.attempt().closed_at.is_some());
    assert!(status.plan.is_some());
    assert!(status.failure.is_none());
    let text = world.message();
    has(text, "2027-01-18 08:00:00 UTC");
    has(text, "no pod is held");
    has(
        &world.next_step(),
        &format!("pawl.run/approve={SUM} pawl.run/approved-by=\"$(kubectl"),
    );
    assert_eq!(world.condition(PLANNED), is_true("Planned"));
    assert_eq!(world.condition(APPROVED), is_false("WaitingForApproval"));
    assert_eq!(
        (world.writes.len(), world.events.len()),
        (before.0 + 1, before.1),
        "one write, and nothing to tell"
    );
    assert!(status.history.is_empty(), "the agent has said it");
    assert!(!world.pod().held, "released");
}

#[test]
fn stored_plan_survives_its_pod() {
    let mut interrupted = held().fails(FailureClass::Interrupted);
    interrupted.status_mut().failure = Some(failure(FailureClass::Interrupted));
    for world in [held().pod_ended(None), held().pod_gone(), interrupted].map(World::settled) {
        let status = world.status();
        assert_eq!(status.phase, Some(Phase::AwaitingApproval));
        assert!(!world.attempt().open);
        assert_eq!(world.attempt().tries, 1);
        assert!(status.failure.is_none());
        has(world.message(), "waits for approval until");
        assert!(
            status.history.last().unwrap().contains("the plan is kept"),
            "{:?}",
            status.history
        );
        assert_eq!(world.events.last(), Some(&"PlanKept"));
    }
}

#[test]
fn result_or_permanent_failure_ends_a_held_run() {
    let expired = held().reports(RunResult::Expired).settled();
    assert_eq!(expired.result(), Some(RunResult::Expired));
    let broken = held().fails(FailureClass::Integrity).settled();
    assert_eq!(broken.failure().class, FailureClass::Integrity);
    assert_eq!(broken.result(), Some(RunResult::Failed));
}

#[test]
fn approval_after_the_hold_opens_a_restoring_attempt() {
    let mut world = waiting().later(48 * 3600);
    world.settings.runner_image = "a newer one".into();
    world = world.approve();
    let (mut cached, writes) = (world.clone(), world.writes.len());
    (cached.o.run_live, cached.o.pod_live) = (false, false);
    assert!(!cached.decide().needs_live(), "recorded from the cache");
    world.settle();
    assert_eq!(world.writes[writes..], [Kind::Approval, Kind::Open]);
    let attempt = world.attempt();
    assert_eq!(attempt.number, 2);
    assert_eq!(attempt.tries, 1);
    assert!(attempt.open);
    assert_eq!(attempt.restores, Some(1));
    assert_eq!(
        attempt.image.as_deref(),
        Some("pawl/runner-agent:dev"),
        "the image that made the plan"
    );
    assert!(attempt.closed_at.is_none());
    let name = names::attempt_name("net", UID, 2);
    let text = format!("approved by alice; pod {name} restores the plan and applies it");
    assert_eq!(world.message(), text.as_str());
    assert_eq!(world.phase(), Some(Phase::AwaitingApproval));
    assert!(world.status().next_step.is_none());
    assert!(world.status().history.last().unwrap().contains(&text));
    assert!(world.pod().name == name);
    assert_eq!(world.condition(APPROVED), is_true("Approved"));
    // Its agent adopts and claims by its own identity, with the plan of the previous attempt.
    world = world.adopted(Phase::AwaitingApproval);
    assert_eq!(world.status().plan.as_ref().unwrap().attempt, 1);
    world.settle();
    let at = whole_seconds(world.now);
    let status = world.status_mut();
    (status.phase, status.claim) = (
        Some(Phase::Apply),
        Some(Claim {
            checksum: SUM.into(),
            attempt: 2,
            pod_uid: POD.into(),
            nonce: NONCE.into(),
            at,
        }),
    );
    world = world.finished(RunResult::Applied).pod_ended(None).settled();
    assert_eq!(world.end(), (Some(RunResult::Applied), false));
}

#[test]
fn approved_plan_whose_pod_died_gets_another_pod_at_once() {
    let mut world = held().approve().settled();
    assert!(world.is_approved());
    world = world.pod_gone().settled();
    assert_eq!(world.attempt().number, 2);
    assert_eq!(world.attempt().tries, 1);
    assert_eq!(world.attempt().restores, Some(1));
    assert!(world.attempt().open && world.is_approved());
}

#[test]
fn withdrawal_before_the_attempt_opens_none() {
    let world = waiting().approve().first_write();
    let attempts = |world: &World| world.attempt().number;
    let withdrawn = world.clone().withdrawn().settled();
    assert_eq!((attempts(&withdrawn), !withdrawn.is_approved()), (1, true));
    assert_eq!(withdrawn.condition(APPROVED), is_false("Withdrawn"));
    assert!(withdrawn.message().contains("waits for approval until"));
    let changed = world.annotate(names::APPROVE, OTHER).settled();
    assert_eq!((attempts(&changed), !changed.is_approved()), (1, true));
    let again = withdrawn.approve().settled();
    assert_eq!((attempts(&again), again.attempt().restores), (2, Some(1)));
}

#[test]
fn no_restoring_attempt_until_policies_are_enforced() {
    let mut world = waiting().approve().not_enforced(Missing::policy("x"));
    assert_eq!(world.settle(), Some(5));
    assert_eq!(world.attempt().number, 1);
    assert_eq!(world.condition(STALLED), is_true("PolicyMissing"));
    world = world.later(5).settled();
    assert_eq!(world.attempt().number, 2);
}

#[test]
fn withdrawal_while_the_pod_starts_removes_the_approval() {
    let mut world = restoring();
    world.pod_mut().trouble = Some(trouble(reason::UNSCHEDULABLE));
    world.settle();
    let mut world = world.withdrawn().settled();
    assert!(!world.is_approved() && world.attempt().open);
    assert_eq!(world.condition(STALLED), is_true(reason::UNSCHEDULABLE));
    assert_eq!(world.failure().reason, reason::UNSCHEDULABLE);
    // The pod starts, waits for its hold, and ends: not a failed try.
    world = world.adopted(Phase::AwaitingApproval);
    let end = said(&world, None, None);
    world = world.pod_ended(Some(end)).settled();
    assert_eq!((world.attempt().open, world.attempt().tries), (false, 0));
    assert!(world.status().failure.is_none());
    world.o.pod = PodState::Absent;
    let world = world.approve().settled();
    assert_eq!(world.counts(), (3, 1, true));
}

#[test]
fn restoring_attempts_have_a_retry_limit_of_their_own() {
    let mut world = World::new()
        .with(|run| run.spec.retry.limit = 2)
        .adopted(Phase::Plan)
        .pod_ended(None);
    assert_eq!(world.settle(), Some(10), "one try is used up by planning");
    world = world.later(10).pod_gone().kept().settled();
    world = world
        .pod_ended(Some(TerminationMessage {
            attempt: 2,
            ..message(None, None)
        }))
        .settled();
    assert_eq!(world.attempt().tries, 2);
    world.o.pod = PodState::Absent;
    world = world.approve();
    let mut waits = Vec::new();
    for number in 3..=5 {
        world.settle();
        assert_eq!(world.attempt().number, number);
        assert_eq!(world.attempt().tries, number - 2);
        assert_eq!(world.attempt().restores, Some(2));
        let ends = [
            None,
            Some(said(&world, None, Some(failure(FailureClass::Transient)))),
            None,
        ];
        world = world
            .adopted(Phase::AwaitingApproval)
            .pod_ended(ends[number as usize - 3].clone());
        let Some(wait) = world.settle() else { break };
        assert_eq!(world.phase(), Some(Phase::AwaitingApproval));
        assert!(world.status().failure.is_some());
        assert!(world.is_approved());
        assert!(!world.attempt().open);
        assert_eq!(world.condition(STALLED), is_false("Retrying"));
        waits.push(wait);
        world = world.later(i64::try_from(wait).unwrap());
        world.o.pod = PodState::Absent;
    }
    assert_eq!(waits, [10, 20]);
    assert_eq!(world.result(), Some(RunResult::Failed));
    assert_eq!(world.failure().reason, reason::POD_LOST);
    assert!(world.message().contains("nothing was applied"));
}

#[test]
fn withdrawal_between_restoring_attempts_ends_them() {
    let mut world = restoring().adopted(Phase::AwaitingApproval).pod_gone();
    assert_eq!(world.settle(), Some(10));
    let world = world.withdrawn().later(100).settled();
    assert_eq!((world.attempt().number, world.attempt().open), (2, false));
    assert!(world.message().contains("waits for approval until"));
    let world = world.approve().settled();
    assert_eq!(world.attempt().number, 3, "of the same plan");
    assert_eq!(world.attempt().tries, 2, "of the same plan");
}

#[test]
fn late_restoring_pod_gets_its_message_back() {
    let mut world = restoring();
    let said = world.status().message.clone();
    for trouble in [Some(trouble(reason::UNSCHEDULABLE)), None] {
        world.pod_mut().trouble.clone_from(&trouble);
        world.settle();
        assert_eq!(world.status().failure.is_some(), trouble.is_some());
        assert_eq!(world.status().message == said, trouble.is_none());
    }
}

#[test]
fn stop_request_ends_a_plan_without_a_pod() {
    for (mut world, result) in [
        (waiting().annotate(names::CANCEL, "x"), RunResult::Canceled),
        (waiting().annotate(names::DENY, "x"), RunResult::Rejected),
        (restoring().annotate(names::DENY, "x"), RunResult::Rejected),
    ] {
        world.settle();
        assert_eq!(world.end(), (Some(result), false));
    }
    let deleted = waiting().deleted().settled();
    assert!(deleted.gone);
    assert!(deleted.result() == Some(RunResult::Canceled));
}

#[test]
fn unapproved_plan_expires() {
    let mut world = waiting().later(72 * 3600 - 1);
    assert_eq!(world.settle(), Some(1));
    assert!(world.result().is_none());
    let mut world = world.later(1);
    assert!(world.decide().needs_live());
    world.settle();
    assert_eq!(world.result(), Some(RunResult::Expired));
    assert_eq!(
        world.message(),
        "the plan was not approved in time; nothing was applied"
    );
    assert!(world.next_step().contains("pawl.run/rerun=true"));
}

#[test]
fn only_a_recorded_approval_prevents_expiry() {
    let recorded = waiting().approve().first_write().later(73 * 3600).settled();
    assert_eq!(recorded.end(), (None, true));
    let late = waiting().later(73 * 3600).approve().settled();
    assert_eq!(late.result(), Some(RunResult::Expired));
    let mut withdrawn = recorded
        .withdrawn()
        .adopted(Phase::AwaitingApproval)
        .settled();
    withdrawn = withdrawn.pod_gone().settled();
    assert_eq!(
        withdrawn.result(),
        Some(RunResult::Expired),
        "withdrawn after its time"
    );
}

#[test]
fn held_plan_is_expired_by_its_agent_only() {
    let world = held().later(73 * 3600).settled();
    assert!(world.attempt().open && world.result().is_none());
}

#[test]
fn newer_run_supersedes_an_unapproved_one() {
    let unbundled = World::new().adopted(Phase::AwaitingApproval);
    let unrecorded = held().approve();
    for (what, mut world) in [
        ("held", held()),
        ("without a pod", waiting()),
        ("no bundle", unbundled),
        ("not yet", unrecorded),
    ] {
        world.o.newer = Some("net-2".into());
        let open = world.attempt().open;
        assert!(world.decide().needs_live(), "{what}");
        let writes = world.writes.len();
        world.settle();
        assert_eq!(world.writes[writes..], [Kind::End], "{what}: one write");
        assert_eq!(world.result(), Some(RunResult::Superseded), "{what}");
        let text = world.status().message.as_deref();
        assert_eq!(
            text,
            Some("superseded by net-2, a newer run of the same workspace; nothing was applied")
        );
        assert!(!world.attempt().open);
        if open {
            assert!(world.pod().deleting, "{what}: its pod goes");
        }
    }
}

/// Another run applied to the state of the plan that waits.
pub(super) fn stale(mut world: World) -> World {
    world.o.applied = Some(crate::state_queue::stale_plans::Applied {
        run: "else/b".into(),
        at: world.now,
    });
    world
}

#[test]
fn waiting_plan_is_stale_after_another_apply() {
    let text = "run else/b applied to the same state at 2027-01-15 08:00:00 UTC, after this plan was made: applying it will most \
                likely fail as StalePlan, with nothing changed; a fresh plan is needed";
    let said = |world: &World| {
        let condition = world.whole_condition(PLANNED).clone();
        (condition.status, condition.reason, condition.message)
    };
    for (what, mut world) in [("held", stale(held())), ("without a pod", stale(waiting()))] {
        let (open, writes) = (world.attempt().open, world.writes.len());
        world.settle();
        assert_eq!(
            said(&world),
            ("True".into(), "StalePlan".into(), text.into()),
            "{what}"
        );
        assert_eq!(world.writes.len(), writes + 1, "{what}: one write");
        assert_eq!(world.reported("StalePlan"), 1, "{what}");
        if open {
            // The agent owns the message and reads the condition.
            assert!(world.status().next_step.is_none(), "{what}");
            world = world.exits().settled();
        }
        let status = world.status();
        assert_eq!(
            status.phase,
            Some(Phase::AwaitingApproval),
            "{what}: it waits on"
        );
        assert!(
            world.message().ends_with(text),
            "{what}: {}",
            world.message()
        );
        let step = world.next_step();
        has(&step, "pawl.run/cancel=");
        assert!(step.ends_with("pawl.run/rerun=true"), "{what}: {step}");
        // The report stays when this process no longer knows the apply.
        world.o.applied = None;
        let writes = world.writes.len();
        world.settle();
        assert_eq!(world.writes.len(), writes, "{what}");
        assert_eq!(said(&world).1.as_str(), "StalePlan", "{what}");
        // A person may approve it all the same. The end then reports the cause.
        let mut world = world.approve().settled();
        assert!(world.attempt().open, "{what}");
        assert!(world.attempt().restores.is_some(), "{what}");
        world = world.claimed().later(30);
        world.status_mut().failure = Some(failure(FailureClass::StalePlan));
        world = world.finished(RunResult::Failed).pod_ended(None).settled();
        assert_eq!(
            said(&world),
            ("True".into(), "StalePlan".into(), text.into()),
            "{what}"
        );
    }
}

#[test]
fn approved_or_claimed_run_is_not_superseded() {
    let recorded = held().approve().settled();
    for (what, mut world) in [
        ("recorded", recorded),
        ("restoring", restoring()),
        ("claimed", World::new().claimed()),
        ("automatic", World::applying()),
        ("planning", World::new().adopted(Phase::Plan)),
    ] {
        world.o.newer = Some("net-2".into());
        world.settle();
        assert!(world.result().is_none(), "{what}");
    }
    let mut withdrawn = restoring().withdrawn();
    withdrawn.o.newer = Some("net-2".into());
    withdrawn.settle();
    assert_eq!(
        withdrawn.result(),
        Some(RunResult::Superseded),
        "once it is taken back"
    );
}

#[test]
fn waiting_plan_from_before_a_restore_fails_its_run() {
    let ended = |mut world: World| {
        world.settle();
        let status = world.status();
        assert_eq!(status.phase, Some(Phase::Failed));
        assert_eq!(status.result, Some(RunResult::Failed));
        assert!(!world.attempt().open, "{status:?}");
        assert!(status.lease.is_none(), "{status:?}");
        let failure = world.failure();
        let changes = (failure.class, failure.reason.as_str(), failure.changes);
        assert_eq!(
            changes,
            (
                FailureClass::StalePlan,
                reason::PLAN_BEFORE_RESTORE,
                Changed::Unknown
            )
        );
        has(
            &failure.message,
            "made at 2027-01-15T08:00:00Z, before the restore of 2027-01-15T08:00:01Z",
        );
        assert!(world.next_step().contains("pawl.run/rerun=true"));
    };
    let restored_at = |mut world: World, seconds: i64| {
        world.settings.refuse_plans_before = Some(
            t0().checked_add(SignedDuration::from_secs(seconds))
                .unwrap(),
        );
        world
    };
    // In its pod and without one, approved or not, and after its approval has opened an attempt.
    for world in [
        held(),
        held().approve(),
        waiting(),
        waiting().approve(),
        restoring(),
    ] {
        ended(restored_at(world, 1));
    }
    let unapproved = restored_at(waiting(), 0).settled();
    assert_eq!(
        unapproved.phase(),
        Some(Phase::AwaitingApproval),
        "made at that time, and so after the restore"
    );
}

#[test]
fn claimed_or_unplanned_run_continues_after_a_restore() {
    let restored = |mut world: World| {
        world.settings.refuse_plans_before = Some(Timestamp::MAX);
        world.settle();
        world
    };
    let claimed = restored(World::new().claimed());
    assert_eq!(claimed.at(), (Some(Phase::Apply), true));
    let lost = restored(World::new().adopted(Phase::AwaitingApproval).exits());
    assert_eq!(
        lost.phase(),
        Some(Phase::Pending),
        "its plan went with its pod, and the next attempt makes another"
    );
    let new = restored(World::new());
    assert_eq!(new.at(), (Some(Phase::Pending), true));
}
