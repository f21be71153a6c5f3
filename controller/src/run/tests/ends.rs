//! The table of ends in `design/0001-run-protocol.md`, row by row.

use super::*;
use crds::reason;

#[test]
fn run_ended_by_its_agent_gets_conditions_in_one_write() {
    for (result, succeeded) in [
        (RunResult::Applied, is_true("Applied")),
        (RunResult::Failed, is_false("ProviderUnreachable")),
        (RunResult::Indeterminate, is_false("ProviderUnreachable")),
    ] {
        for gone in [true, false] {
            let mut world = World::applying().finished(result);
            if result != RunResult::Applied {
                world.status_mut().failure = Some(failure(FailureClass::Transient));
            }
            assert_eq!(world.settle(), Some(30), "the pod is still to end");
            let before = world.writes.len();
            world = if gone {
                world.pod_gone()
            } else {
                world.pod_ended(None)
            };
            world.settle();
            assert!(!world.attempt().open && world.attempt().closed_at.is_some());
            assert_eq!(world.result(), Some(result));
            assert_eq!(world.writes.len(), before + 1, "one write");
            assert_eq!(world.condition(SUCCEEDED), succeeded);
            assert_eq!(world.condition(FINISHED), is_true(result.as_str()));
            assert_eq!(world.condition(PLANNED), is_true("Planned"));
            assert_eq!(world.condition(APPROVED), is_true("Automatic"));
        }
    }
}

#[test]
fn lost_log_bytes_are_in_the_history() {
    let said = |result| TerminationMessage {
        unkept: Some("the last 7 bytes of the log".into()),
        ..message(result, None)
    };
    let worlds = [
        World::applying()
            .finished(RunResult::Applied)
            .pod_ended(Some(said(Some(RunResult::Applied)))),
        World::applying().pod_ended(Some(said(Some(RunResult::Applied)))),
        World::automatic()
            .adopted(Phase::Plan)
            .pod_ended(Some(said(None))),
    ];
    for mut world in worlds {
        world.settle();
        let lines = world
            .status()
            .history
            .iter()
            .filter(|line| line.ends_with("  Log  the last 7 bytes of the log"));
        assert_eq!((lines.count(), world.reported("LogTruncated")), (1, 1));
    }
}

#[test]
fn ended_run_is_finished_after_30_s_without_its_pod() {
    let mut world = World::applying()
        .finished(RunResult::Applied)
        .later(30)
        .settled();
    assert_eq!(world.condition(FINISHED), is_true("Applied"));
    assert!(world.attempt().open, "its pod may still be there");
    world = world.pod_ended(None).settled();
    assert!(!world.attempt().open);
    assert_eq!(world.reported("Succeeded"), 1);
}

#[test]
fn result_in_the_termination_message_is_accepted() {
    for result in [RunResult::Applied, RunResult::Failed] {
        let said = message(
            Some(result),
            (result == RunResult::Failed).then(|| failure(FailureClass::Configuration)),
        );
        let world = World::applying().pod_ended(Some(said)).settled();
        assert_eq!(world.result(), Some(result));
        assert_eq!(world.message(), "what the agent said");
        assert_eq!(
            world.status().failure.is_some(),
            result == RunResult::Failed
        );
        assert!(world.status().completion_time.is_some());
    }
}

/// Its agent must not adopt the attempt, so only the termination message gives the reason.
#[test]
fn image_of_another_release_fails_or_is_replaced() {
    for (class, result) in [
        (FailureClass::Configuration, Some(RunResult::Failed)),
        (FailureClass::Interrupted, None),
    ] {
        let failure = Failure {
            class,
            ..crds::Reason::ImageVersion.failure("not of release 9.9")
        };
        let world = World::new()
            .opened()
            .pod_ended(Some(message(None, Some(failure))))
            .settled();
        assert!(!world.attempt().open, "{class:?}");
        assert!(world.result() == result, "{class:?}");
        assert_eq!(world.failure().reason, reason::IMAGE_VERSION);
        let next = world.next_step();
        assert_eq!(
            next.contains("spec.runner.image"),
            result.is_some(),
            "{next}"
        );
    }
}

#[test]
fn claimed_pod_ended_silently_is_indeterminate() {
    for said in no_results() {
        let world = World::applying().pod_ended(said.clone()).settled();
        assert_eq!(world.result(), Some(RunResult::Indeterminate), "{said:?}");
        assert_eq!(world.phase(), Some(Phase::Failed));
        let failure = world.failure().clone();
        assert_eq!(failure.reason.as_str(), reason::APPLY_UNCONFIRMED);
        assert_eq!(failure.changes, Changed::Unknown);
        let text = world.message();
        has(text, &names::attempt_name("net", UID, 1));
        has(text, "lock");
        assert_eq!(
            world.next_step(),
            "kubectl annotate -n team tfrun.pawl.run/net pawl.run/rerun=true"
        );
        assert!(world.events.contains(&"Indeterminate"));
    }
}

#[test]
fn claimed_pod_gone_for_a_minute_is_indeterminate() {
    let mut world = World::applying().pod_gone();
    assert!(
        world.decide().needs_live(),
        "the wait begins with a live read"
    );
    assert_eq!(world.settle(), Some(60));
    assert_eq!(world.condition(STALLED), is_true("PodGone"));
    assert!(world.attempt().open && world.result().is_none());
    world = world.later(59);
    assert_eq!(world.settle(), Some(1));
    assert!(world.result().is_none());
    world = world.later(1);
    assert!(world.decide().needs_live());
    world.settle();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert!(!world.attempt().open);
}

#[test]
fn pod_with_another_uid_counts_as_gone() {
    let mut world = World::applying();
    world.pod_mut().uid = "a second one".into();
    assert_eq!(world.settle(), Some(60));
    assert_eq!(world.condition(STALLED), is_true("PodGone"));
}

#[test]
fn earlier_wait_does_not_shorten_the_minute() {
    let mut world = World::applying();
    let now = world.now;
    let status = world.status_mut();
    conditions::set(
        &mut status.conditions,
        STALLED,
        Some(true),
        reason::UNSCHEDULABLE,
        "",
        None,
        now,
    );
    world = world.later(500).pod_gone();
    assert_eq!(world.settle(), Some(60));
}

#[test]
fn stop_request_ends_an_unadopted_attempt_at_once() {
    let rows: [(World, RunResult); 3] = [
        (
            World::new().opened().annotate(names::CANCEL, "why"),
            RunResult::Canceled,
        ),
        (
            World::new().opened().annotate(names::DENY, "no"),
            RunResult::Rejected,
        ),
        (World::new().opened().deleted(), RunResult::Canceled),
    ];
    for (mut world, result) in rows {
        assert!(world.decide().needs_live());
        let first = world.decide().actions.remove(0);
        world.apply(&first);
        assert_eq!(world.end(), (Some(result), false));
        world.settle();
        let deleting = matches!(&world.o.pod, PodState::Present(pod) if pod.deleting);
        assert!(deleting || world.gone, "the pod is deleted");
        assert!(world.status().failure.is_none());
    }
}

#[test]
fn stop_request_gives_the_agent_thirty_seconds() {
    for phase in [
        Phase::Setup,
        Phase::Init,
        Phase::Plan,
        Phase::AwaitingApproval,
    ] {
        let mut world = World::new().adopted(phase).annotate(names::CANCEL, "why");
        assert_eq!(world.settle(), Some(30));
        assert!(world.attempt().open);
        world = world.later(30);
        let decision = world.decide();
        assert!(
            matches!(decision.actions.as_slice(), [Action::DeletePod { uid, .. }] if uid == POD),
            "{decision:?}"
        );
        world.settle();
        assert!(world.attempt().open, "closed when it has ended, not before");
        world = world.pod_ended(None).settled();
        assert_eq!(world.result(), Some(RunResult::Canceled));
        assert!(world.message().contains("why"));
    }
}

#[test]
fn stop_request_after_the_claim_kills_nothing() {
    for world in [
        World::applying().annotate(names::CANCEL, "why"),
        World::applying().annotate(names::DENY, "no"),
        World::applying().deleted(),
    ] {
        let mut world = world.later(5000).settled();
        assert!(world.attempt().open && !world.gone);
        assert!(!world.pod().deleting && world.pod().held);
        world = world.reports(RunResult::Applied).settled();
        assert_eq!(world.result(), Some(RunResult::Applied));
    }
}

#[test]
fn permanent_failure_ends_the_run() {
    let by_message = World::new()
        .adopted(Phase::Init)
        .fails(FailureClass::Configuration);
    let mut by_status = World::new().adopted(Phase::Init).pod_ended(None);
    by_status.status_mut().failure = Some(failure(FailureClass::Configuration));
    for world in [by_message, by_status].map(World::settled) {
        assert_eq!(world.result(), Some(RunResult::Failed));
        assert_eq!(world.failure().class, FailureClass::Configuration);
    }
}

#[test]
fn undelivered_result_before_the_claim_is_accepted() {
    for (phase, result, expected) in [
        (
            Phase::Plan,
            RunResult::NoChanges,
            Some(RunResult::NoChanges),
        ),
        (
            Phase::AwaitingApproval,
            RunResult::Expired,
            Some(RunResult::Expired),
        ),
        (Phase::Plan, RunResult::Applied, None),
        (Phase::Setup, RunResult::NoChanges, None),
    ] {
        let world = World::new().adopted(phase).reports(result).settled();
        assert_eq!(world.result(), expected, "{phase} {result}");
    }
}

#[test]
fn attempt_that_died_before_the_claim_is_retried() {
    let mut transient = World::new().adopted(Phase::Plan).pod_ended(None);
    transient.status_mut().failure = Some(failure(FailureClass::Transient));
    let worlds = [
        World::new().opened().pod_ended(None),
        World::new().adopted(Phase::Setup).pod_ended(None),
        World::new()
            .adopted(Phase::AwaitingApproval)
            .pod_ended(None),
        World::new().adopted(Phase::Plan).pod_gone(),
        transient,
    ];
    for mut world in worlds {
        let events = world.events.len();
        assert_eq!(world.settle(), Some(10));
        assert_eq!(world.at(), (Some(Phase::Pending), false));
        assert_eq!(world.condition(STALLED), is_false("Retrying"));
        assert!(world.status().failure.is_some());
        assert_eq!(world.events[events..], ["Retrying"]);
        assert!(world.status().history.last().unwrap().contains("Retry"));
        world = world.later(10).pod_gone().settled();
        let attempt = world.attempt();
        assert_eq!((attempt.number, attempt.tries, attempt.open), (2, 2, true));
        assert!(attempt.closed_at.is_none());
        assert!(world.status().failure.is_none());
        assert_eq!(attempt.pod_name, names::attempt_name("net", UID, 2));
    }
}

#[test]
fn retries_stop_at_the_limit() {
    let mut world = World::new().with(|run| run.spec.retry.limit = 2);
    let mut waits = Vec::new();
    for number in 1..=3 {
        world = world.adopted(Phase::Plan);
        assert_eq!(world.attempt().number, number);
        world = world.pod_ended(None);
        let Some(wait) = world.settle() else { break };
        waits.push(wait);
        world = world.later(i64::try_from(wait).unwrap());
    }
    assert_eq!(waits, [10, 20]);
    assert_eq!(world.result(), Some(RunResult::Failed));
    let failure = world.failure().clone();
    assert_eq!(failure.class, FailureClass::Interrupted);
    assert_eq!(failure.reason.as_str(), reason::POD_LOST);
}

#[test]
fn retries_back_off_to_five_minutes() {
    let waits: Vec<_> = [1, 2, 3, 4, 5, 6, 10, 64, 1000]
        .map(|n| timing::backoff(n).as_secs())
        .into();
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300, 300]);
}

#[test]
fn stop_request_between_attempts_ends_the_run_at_once() {
    for (world, result) in [
        (
            World::new().annotate(names::CANCEL, "why"),
            RunResult::Canceled,
        ),
        (
            World::new().annotate(names::DENY, "no"),
            RunResult::Rejected,
        ),
    ] {
        let fresh = world.clone().settled();
        assert_eq!(fresh.result(), Some(result));
        assert!(fresh.status().attempt.is_none());
        let mut between = World::new().adopted(Phase::Plan).pod_ended(None).settled();
        between
            .run
            .metadata
            .annotations
            .clone_from(&world.run.metadata.annotations);
        between.settle();
        assert_eq!(between.result(), Some(result));
    }
}

#[test]
fn deleted_run_loses_its_finalizer_last() {
    let mut fresh = World::new().deleted();
    assert_eq!(
        fresh.decide().actions,
        [Action::Cleanup, Action::RemoveFinalizer]
    );
    fresh.settle();
    assert!(fresh.gone && fresh.status().attempt.is_none());

    let mut working = World::new().adopted(Phase::Plan).deleted();
    assert_eq!(working.settle(), Some(30), "the agent ends it");
    working = working
        .finished(RunResult::Canceled)
        .pod_ended(None)
        .settled();
    assert!(working.gone && !working.attempt().open);

    let done = World::ended(RunResult::Applied).settled();
    let mut done = done.deleted();
    assert_eq!(
        done.decide().actions,
        [Action::Cleanup, Action::RemoveFinalizer]
    );
    done.settle();
    assert!(done.gone);
}
