//! From the creation of a run to the adoption of its attempt.

use super::*;
use crds::reason;
use serving::call::CallError;

#[test]
fn new_run_gets_finalizer_then_attempt_then_pod() {
    let mut world = World::new().with(|run| run.metadata.finalizers = None);
    assert_eq!(
        world.decide().actions,
        [Action::AddFinalizer { prove: false }]
    );
    world.apply(&Action::AddFinalizer { prove: false });
    let decision = world.decide();
    let [Action::Write(write)] = decision.actions.as_slice() else {
        panic!("{decision:?}")
    };
    assert_eq!(write.kind, Kind::Open);
    assert!(write.status.get("approval").is_none());
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Pending));
    let attempt = world.attempt();
    assert_eq!((attempt.number, attempt.tries, attempt.open), (1, 1, true));
    assert_eq!(attempt.pod_name, names::attempt_name("net", UID, 1));
    assert_eq!(world.events, ["AttemptStarted"]);
    assert_eq!(
        world.condition(SUCCEEDED),
        ("Unknown".into(), "Running".into())
    );
    assert_eq!(world.condition(FINISHED), is_false("Running"));
}

#[test]
fn pod_is_created_only_on_a_live_read() {
    let world = World::new();
    let Some(open) = world.decide().actions.pop() else {
        panic!("no write")
    };
    assert!(open.needs_live());
    let mut world = world.first_write().without_pod();
    assert!(world.decide().actions.contains(&Action::CreatePod));
    assert!(Action::CreatePod.needs_live());
    world.o.pod_live = false;
    assert!(
        !world.seen().is_live(),
        "an open attempt's pod has to be looked for"
    );
}

#[test]
fn proven_policies_open_and_approve_an_automatic_run() {
    let mut world = World::automatic().with(|run| run.metadata.finalizers = None);
    world.o.policies = Enforcement::Unknown;
    assert_eq!(
        world.decide().actions,
        [Action::AddFinalizer { prove: true }],
        "both at once"
    );
    world = World::automatic();
    world.o.policies = Enforcement::Unknown;
    assert_eq!(world.decide().actions, [Action::ProbePolicies]);
    world.settle();
    let approval = world.status().approval.clone().unwrap();
    assert_eq!(approval.by.as_str(), "automatic");
    assert_eq!(approval.checksum, None);
    assert_eq!(world.condition(APPROVED), is_true("Automatic"));
}

#[test]
fn automatic_run_waits_until_policies_are_enforced() {
    let mut world = World::automatic().not_enforced(Missing::policy("a claim was not refused"));
    assert_eq!(world.settle(), Some(5));
    assert_eq!(world.condition(STALLED), is_true("PolicyMissing"));
    assert!(world.status().attempt.is_none());
    assert!(world.message().contains("a claim was not refused"));
    assert_eq!(world.writes.len(), 1);
    assert_eq!(world.events.as_slice(), ["PolicyMissing"].as_slice());
    let mut world = world.later(5);
    assert_eq!(
        world.decide().actions,
        [Action::ProbePolicies],
        "and asks again"
    );
    world.settle();
    assert_eq!(world.condition(STALLED), is_false("Progressing"));
    assert!(world.attempt().open && world.status().next_step.is_none());
}

#[test]
fn terminating_namespace_is_reported_not_the_policies() {
    let mut world = World::automatic().not_enforced(Missing::namespace("team"));
    assert_eq!(world.settle(), Some(5));
    assert_eq!(world.condition(STALLED), is_true("NamespaceTerminating"));
    assert_eq!(
        world.message(),
        "namespace team is being deleted, and nothing can be created in it"
    );
    assert_eq!(
        world.next_step(),
        "create the run in a namespace that is not being deleted"
    );
    assert_eq!(world.writes.len(), 1);
    assert_eq!(world.events.as_slice(), ["NamespaceTerminating"].as_slice());
}

#[test]
fn waiting_pod_has_a_reason_and_fails_at_the_deadline() {
    for (reason, class) in [
        (reason::IMAGE_NOT_AVAILABLE, FailureClass::Configuration),
        (reason::UNSCHEDULABLE, FailureClass::Timeout),
        (reason::POD_NOT_STARTED, FailureClass::Timeout),
    ] {
        let mut world = World::new().opened();
        world.pod_mut().trouble = Some(trouble(reason));
        assert_eq!(world.settle(), Some(600), "{reason}");
        assert_eq!(world.condition(STALLED), is_true(reason));
        let said = world.failure().clone();
        assert_eq!(said.reason.as_str(), reason, "at once");
        assert_eq!(said.class, class, "at once");
        assert_eq!(said.changes, Changed::None, "at once");
        let message = world.message();
        has(message, &said.message);
        has(message, "waits until 08:10:00 UTC (timeouts.start 10m)");
        assert!(world.next_step().contains("the run goes on by itself"));
        assert_eq!(world.events.last(), Some(&reason));
        world = world.later(599).settled_silently().later(1).settled();
        assert_eq!(world.result(), Some(RunResult::Failed));
        let failure = world.failure().clone();
        assert_eq!(failure.reason.as_str(), reason);
        assert_eq!(failure.class, class);
        assert_eq!(failure.changes, Changed::None);
        let next = world.next_step();
        has(&next, ", then: kubectl ");
        has(&next, "pawl.run/rerun=true");
        let pod = world.pod();
        assert!(pod.deleting && !pod.held && !world.attempt().open);
    }
}

#[test]
fn silent_pod_fails_at_the_deadline() {
    for world in [World::new().opened(), super::kept::restoring()] {
        let world = world.later(600).settled();
        assert_eq!(world.result(), Some(RunResult::Failed));
        assert_eq!(world.failure().reason, reason::POD_NOT_STARTED);
    }
}

#[test]
fn start_failure_is_cleared_when_its_cause_is_gone() {
    let mut world = World::new().opened();
    world.pod_mut().trouble = Some(trouble(reason::UNSCHEDULABLE));
    world.settle();
    world.pod_mut().trouble = None;
    world.settle();
    assert_eq!(world.condition(STALLED), is_false("Progressing"));
    let status = world.status();
    assert!(status.failure.is_none() && status.next_step.is_none());
    has(world.message(), "waits for pod");
}

#[test]
fn start_failure_is_reported_only_on_a_live_read() {
    // The cache lacks the message and the names that the run gives its pods.
    let mut world = World::new().opened();
    world.pod_mut().trouble = Some(trouble(reason::UNSCHEDULABLE));
    let held_up = world.decide();
    world.settle();
    world.pod_mut().trouble = None;
    for decision in [held_up, world.decide()] {
        let [Action::Write(write)] = decision.actions.as_slice() else {
            panic!("{decision:?}")
        };
        assert!(write.kind == Kind::Start && decision.needs_live());
    }
}

#[test]
fn pod_that_dies_before_adoption_is_always_retried() {
    let mut world = World::new().opened();
    world.pod_mut().trouble = Some(trouble(reason::IMAGE_NOT_AVAILABLE));
    world.settle();
    assert_eq!(world.failure().class, FailureClass::Configuration);
    world = world.pod_ended(None).settled();
    assert!(world.result().is_none(), "{:?}", world.status().failure);
    assert!(!world.attempt().open, "{:?}", world.status().failure);
    assert_eq!(world.failure().reason, reason::POD_LOST);
    assert!(world.status().next_step.is_none());
}

#[test]
fn missing_service_account_is_named_and_awaited() {
    let refused = |message: &str, account| {
        let causes = if message.contains("terminated") {
            json!([{"reason": "NamespaceTerminating", "message": "", "field": ""}])
        } else {
            json!([])
        };
        let status = json!({"code": 403, "reason": "Forbidden", "message": message, "details": {"causes": causes}});
        let status = serde_json::from_value(status).unwrap();
        refusal(
            &CallError::Refused {
                what: "create pod",
                status,
            }
            .into(),
            "team",
            account,
        )
        .unwrap()
    };
    let text = "pods \"net-x8dlm-a1\" is forbidden: error looking up service account team/aws: serviceaccount \"aws\" not found";
    let missing = refused(text, Some("aws"));
    assert_eq!(
        (missing.reason, missing.text.as_str()),
        (
            reason::SERVICE_ACCOUNT_NOT_FOUND,
            "there is no ServiceAccount aws in namespace team"
        )
    );
    assert_eq!(
        refused(text, None).reason,
        reason::POD_REJECTED,
        "that of the attempt, which is made anew"
    );
    assert_eq!(
        refused("pods is forbidden: exceeded quota: none", Some("aws")).reason,
        reason::QUOTA_EXCEEDED
    );
    let going = refused(
        "pods \"net-x8dlm-a1\" is forbidden: unable to create new content in namespace team because it is being terminated",
        None,
    );
    let said = "namespace team is being deleted, and nothing can be created in it";
    assert_eq!(going.reason, reason::NAMESPACE_TERMINATING);
    assert_eq!(going.text.as_str(), said);
    assert_eq!(
        refused("denied by a webhook", Some("aws")).reason,
        reason::POD_REJECTED
    );

    let mut world =
        World::new().with(|run| run.spec.runner.service_account_name = Some("aws".into()));
    world = world.first_write().without_pod();
    world.o.notes.refused = Some(refused_again(None, 1, missing, world.now));
    world.settle();
    let failure = world.failure();
    assert_eq!(failure.reason.as_str(), reason::SERVICE_ACCOUNT_NOT_FOUND);
    assert_eq!(failure.class, FailureClass::Configuration);
    let step = "create the ServiceAccount, and the run goes on by itself, then: kubectl create serviceaccount -n team aws";
    assert_eq!(world.next_step(), step);
    world = world.later(1).settled();
    assert!(world.status().failure.is_none(), "it was created");
    assert!(world.status().next_step.is_none(), "it was created");
    assert_eq!(world.condition(STALLED), is_false("Progressing"));
}

#[test]
fn refused_pod_is_retried_until_the_deadline() {
    let mut world = World::new().first_write().without_pod();
    let refused = refused_again(None, 1, trouble(reason::QUOTA_EXCEEDED), world.now);
    assert_eq!(
        refused.retry_at,
        world.now.checked_add(SignedDuration::from_secs(1)).unwrap()
    );
    world.o.notes.refused = Some(refused.clone());
    assert_eq!(world.settle(), Some(1));
    assert_eq!(world.condition(STALLED), is_true("QuotaExceeded"));
    world = world.later(1);
    assert_eq!(world.decide().actions, [Action::CreatePod]);
    let again = refused_again(
        Some(&refused),
        1,
        trouble(reason::QUOTA_EXCEEDED),
        world.now,
    );
    assert_eq!(again.times, 2);
    let mut after_restart = world.clone().later(600);
    after_restart.o.notes = Notes::default();
    world.o.notes.refused = Some(PodRejection { times: 60, ..again });
    for world in [world.later(600), after_restart].map(World::settled) {
        let failure = world.failure().clone();
        assert_eq!(failure.reason.as_str(), reason::QUOTA_EXCEEDED);
        assert_eq!(failure.class, FailureClass::Timeout);
    }
}

#[test]
fn refused_pod_retries_back_off_to_thirty_seconds() {
    let mut refused = None;
    let waits: Vec<i64> = (0..8)
        .map(|_| {
            let next = refused_again(refused.as_ref(), 1, trouble(reason::POD_REJECTED), t0());
            let wait = next.retry_at.as_second() - t0().as_second();
            refused = Some(next);
            wait
        })
        .collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
    assert_eq!(
        refused_again(refused.as_ref(), 2, trouble(reason::POD_REJECTED), t0()).times,
        1,
        "per attempt"
    );
    let many = PodRejection {
        times: u32::MAX,
        ..refused.unwrap()
    };
    assert_eq!(
        refused_again(Some(&many), 1, trouble(reason::POD_REJECTED), t0()).times,
        u32::MAX
    );
}

#[test]
fn new_pod_missing_in_the_cache_is_not_lost() {
    let mut world = World::new().opened();
    world.o.pod = PodState::Unknown;
    assert_eq!(world.settle(), Some(5));
    let created = world.o.notes.clone();
    assert!(created.just_created(1, world.now));
    assert!(!created.just_created(2, world.now));
    assert!(!created.just_created(1, world.clone().later(5).now));
}

#[test]
fn deleted_run_with_a_foreign_finalizer_is_ignored() {
    let world = World::new()
        .with(|run| run.metadata.finalizers = Some(vec!["other/one".into()]))
        .deleted()
        .settled();
    assert!(world.decide().actions.is_empty());
    assert!(world.status().attempt.is_none());
}

#[test]
fn recorded_pod_is_not_created_again_after_a_restart() {
    let mut world = World::new().opened();
    assert_eq!(world.written(Kind::Open), 1);
    assert_eq!(world.writes.len(), 1, "no write but the opening");
    world.o.notes = Notes::default();
    assert_eq!(world.decide().actions, []);
    world = world.pod_gone();
    assert_eq!(world.decide().actions, [Action::CreatePod]);
}

#[test]
fn pod_of_unknown_origin_is_created_anew_and_recorded() {
    let mut world = World::new().opened();
    world.pod_mut().uid = "somebody-else".into();
    world.o.notes = Notes::default();
    assert_eq!(
        world.decide().actions,
        [Action::CreatePod],
        "the name and labels of the attempt prove nothing"
    );
    // The same for a pod that was created before its attempt could record it.
    let mut world = World::new().first_write().without_pod();
    assert_eq!(world.decide().actions, [Action::CreatePod]);
    world.apply(&Action::CreatePod);
    world.settle();
    assert_eq!(world.attempt().pod_uid.as_deref(), Some(POD));
    assert_eq!(world.written(Kind::Start), 1);
}

#[test]
fn end_of_a_foreign_pod_is_no_evidence() {
    let mut world = World::applying().reports(RunResult::Applied);
    world.pod_mut().uid = "somebody-else".into();
    assert_eq!(world.settle(), Some(60), "its own pod is gone");
    let world = world.later(60).settled();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert!(world.status().settled.is_none());
}

/// A run of a repository whose revision the datastore cannot give yet.
fn sourceless(why: WaitReason) -> World {
    let source = json!({"repository": {"name": "infra", "revision": "a".repeat(40), "path": "."}});
    let mut world = World::new()
        .with(|run| run.spec.source = serde_json::from_value(source.clone()).unwrap())
        .with_datastore();
    world.source = Some(why);
    world.o.slot = Slot::Unasked;
    world
}

#[test]
fn run_without_its_revision_holds_no_slot_and_uses_no_try() {
    let text = "revision aaaa of TerraformRepository infra is not stored yet";
    let mut world = sourceless(WaitReason::Source(text.into()));
    assert!(world.settle().is_some(), "it asks again");
    for _ in 0..20 {
        world.o.source_ready = false;
        world = world.later(25).settled();
    }
    assert!(world.status().attempt.is_none() && world.o.slot == Slot::Unasked);
    assert_eq!(
        (world.message(), world.events.as_slice()),
        (text, &["SourceNotReady"][..])
    );
    let mut late = world.clone();
    late = late.later(100).settled();
    assert_eq!(late.result(), Some(RunResult::Failed));
    let failure = late.status().failure.clone().unwrap();
    assert_eq!(
        (failure.reason.as_str(), failure.class),
        ("SourceNotReady", FailureClass::Transient)
    );
    assert!(
        failure.message.contains(text) && failure.message.contains("nothing was applied"),
        "{}",
        failure.message
    );
    world.source = None;
    let world = world.later(31).settled();
    assert_eq!((world.attempt().open, world.attempt().tries), (true, 1));
}

#[test]
fn datastore_that_is_away_is_named_by_the_runs_that_wait() {
    let mut world = sourceless(WaitReason::Datastore("connection refused".into()));
    world.settle();
    assert_eq!(
        world.message(),
        "waits for the datastore: connection refused"
    );
    assert_eq!(
        world.whole_condition(SUCCEEDED).reason,
        "DatastoreUnavailable"
    );
    for _ in 0..60 {
        world = world.later(60).settled();
    }
    assert_eq!(
        world.result(),
        None,
        "an outage fails no run that has not begun"
    );
    world.source = None;
    let world = world.later(31).settled();
    assert!(world.attempt().open);
    assert_eq!(world.whole_condition(SUCCEEDED).reason, "Running");
}

#[test]
fn outage_of_the_datastore_is_named_once_while_the_agent_works() {
    for (world, said) in [
        (
            World::new().adopted(Phase::Plan),
            "nothing is applied before",
        ),
        (World::applying(), "the apply continues"),
    ] {
        let mut world = world.settled();
        let (writes, message) = (world.writes.len(), world.message().to_owned());
        for why in ["refused", "timeout", "refused"] {
            world.o.datastore_away = Some(why.into());
            world.settle();
        }
        let condition = world.whole_condition(SUCCEEDED);
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("Unknown", "DatastoreUnavailable")
        );
        assert!(
            condition.message.contains("does not respond: refused")
                && condition.message.contains(said),
            "{}",
            condition.message
        );
        assert_eq!(world.message(), message, "the agent's");
        assert!(world.events.contains(&"DatastoreUnavailable"));
        world.o.datastore_away = None;
        world.settle();
        assert_eq!(world.whole_condition(SUCCEEDED).reason, "Running");
        assert_eq!(world.writes.len(), writes + 2);
    }
    // A stored plan waits for a person, not for the datastore.
    let mut world = World::new().kept().settled();
    world.o.datastore_away = Some("refused".into());
    let writes = world.writes.len();
    world.settle();
    assert_eq!(world.writes.len(), writes);
}
