//! One apply at a time on a state: which run takes the lease, which run waits, and when the lease is returned.

use super::*;
use crate::{
    runner_pod,
    state_queue::{
        lease::Taken,
        lease_request::{is_entitled, requested_lease},
        queue::Ahead,
    },
};
use crds::StateLease;

const KEY: &str = "sha256:3333333333333333333333333333333333333333333333333333333333333333";

/// Name of the Lease for the namespace of the tests.
fn lease_name(key: &str) -> String {
    names::lease_name("team", key)
}

fn lease(key: &str) -> StateLease {
    StateLease {
        state_key: key.into(),
        name: lease_name(key),
        at: whole_seconds(t0()),
    }
}

/// A plan of that state waits for an approval.
fn waiting() -> World {
    World::new().kept().planned_on(KEY)
}

fn behind(mut world: World) -> World {
    world.lease = Taken::Behind("else/b".into());
    world
}

/// An Automatic run whose spec names its state.
fn automatic() -> World {
    World::automatic().with(|run| {
        run.spec.backend =
            serde_json::from_value(json!({"type": "http", "config": {"address": "http://s/a"}}))
                .unwrap();
    })
}

fn expected(world: &World) -> String {
    requested_lease(&world.run, false, false).unwrap().key
}

#[test]
fn approval_and_lease_are_one_write() {
    let mut world = waiting().annotate(names::APPROVE, SUM);
    let before = world.writes.len();
    world.settle();
    assert_eq!(world.writes[before..], [Kind::Approval]);
    assert_eq!(world.status().lease.as_ref().unwrap().state_key, KEY);
    assert_eq!(world.condition(STATE_LEASED), is_true("Leased"));
}

#[test]
fn approved_run_queues_for_the_lease_and_gets_it() {
    let mut world = behind(waiting().annotate(names::APPROVE, SUM));
    let wait = world.settle();
    assert_eq!(wait, Some(10), "the first in line looks again");
    assert!(world.is_approved() && !world.has_lease());
    assert_eq!(world.condition(STATE_LEASED), is_false("Queued"));
    world = world.later(11).settled_silently();
    world.lease = Taken::Yes;
    world = world.later(11).settled();
    assert_eq!(
        (
            world.status().lease.clone().unwrap().state_key.as_str(),
            world.writes.last()
        ),
        (KEY, Some(&Kind::Lease))
    );
    assert_eq!(world.condition(STATE_LEASED), is_true("Leased"));
}

#[test]
fn run_behind_others_requests_no_lease() {
    let mut world = waiting().annotate(names::APPROVE, SUM);
    world.o.ahead = Some(Ahead {
        place: 2,
        first: "else/b".into(),
    });
    world.settle();
    let condition = world.whole_condition(STATE_LEASED);
    assert_eq!(
        condition.message,
        "waits for its turn on the state behind else/b, in place 2"
    );
    assert!(
        !world
            .decide()
            .actions
            .iter()
            .any(|action| matches!(action, Action::TakeLease { .. }))
    );
    // The runs ahead of it have finished.
    world.o.ahead = None;
    world.settle();
    assert!(world.has_lease());
}

#[test]
fn withdrawal_returns_the_lease() {
    let world = waiting().annotate(names::APPROVE, SUM).settled();
    let world = world.withdrawn().settled();
    assert!(!world.is_approved() && !world.has_lease());
    assert_eq!(world.condition(STATE_LEASED), Default::default());
}

#[test]
fn approved_plan_gets_no_pod_before_its_lease() {
    let world = waiting().unheld();
    let mut world = behind(world.annotate(names::APPROVE, SUM)).settled();
    assert!(!world.attempt().open, "{:?}", world.status());
    has(
        world.message(),
        "is approved; waits for its turn on the state behind else/b",
    );
    world.lease = Taken::Yes;
    world = world.later(11).settled();
    assert!(world.attempt().open);
    assert_eq!(world.attempt().restores, Some(1));
}

#[test]
fn automatic_run_takes_the_lease_with_its_attempt() {
    let mut world = automatic();
    let key = expected(&world);
    world.settle();
    assert_eq!(
        world.writes,
        [Kind::Open],
        "no write more than without a lease"
    );
    assert_eq!(world.status().lease.clone().unwrap().state_key, key);
    let mut world = behind(automatic()).settled();
    assert!(world.status().attempt.is_none());
    assert!(world.o.pod == PodState::Absent);
    assert_eq!(world.phase(), Some(Phase::Pending));
    assert_eq!(world.condition(STATE_LEASED), is_false("Queued"));
    world.lease = Taken::Yes;
    world = world.later(11).settled();
    assert!(world.attempt().open && world.has_lease());
}

#[test]
fn plan_of_another_state_moves_the_lease() {
    let world = automatic().adopted(Phase::Plan).planned_on(KEY).settled();
    assert_eq!(world.status().lease.clone().unwrap().state_key, KEY);
    assert!(
        !is_entitled(
            &world.run,
            &lease_name(&expected(&automatic())),
            &world.settings
        ),
        "the other one is free"
    );
    assert!(is_entitled(&world.run, &lease_name(KEY), &world.settings));
}

#[test]
fn attempt_that_ended_for_the_queue_uses_no_retry() {
    let world = behind(World::automatic())
        .adopted(Phase::Plan)
        .planned_on(KEY)
        .settled();
    assert_eq!(world.condition(STATE_LEASED), is_false("Queued"));
    let mut world = world.exits().settled();
    assert_eq!(world.phase(), Some(Phase::Pending));
    assert!(!world.attempt().open);
    assert_eq!(world.attempt().tries, 0);
    assert!(world.status().failure.is_none());
    world = world.pod_gone().settled();
    assert!(!world.attempt().open, "no pod before its turn");
    world.lease = Taken::Yes;
    world = world.later(11).settled();
    assert_eq!(world.counts(), (2, 1, true));
    assert_eq!(world.status().lease.clone().unwrap().state_key, KEY);
}

/// A claimed run that has its lease.
fn applying() -> World {
    let mut world = World::applying();
    world.status_mut().lease = Some(lease(KEY));
    world
}

#[test]
fn confirmed_end_of_the_pod_returns_the_lease() {
    let mut world = applying().finished(RunResult::Applied).settled();
    assert!(world.has_lease(), "the pod still runs");
    world = world.pod_ended(None).settled();
    assert!(!world.has_lease());
    let world = applying().pod_ended(None).settled();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert!(!world.has_lease());
    let mut world = World::automatic()
        .adopted(Phase::Plan)
        .annotate(names::CANCEL, "x");
    world.status_mut().lease = Some(lease(KEY));
    world = world.pod_ended(None).settled();
    assert_eq!(world.result(), Some(RunResult::Canceled));
    assert!(!world.has_lease());
}

#[test]
fn missing_pod_retains_the_lease_until_its_node_proves() {
    let mut world = applying().pod_gone().settled().later(61).settled();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert!(world.has_lease(), "its process may still apply");
    world.nodes = Err("node n1 is not Ready".into());
    let grace = runner_pod::grace_seconds(&world.run);
    world = world.later(grace).settled();
    assert!(world.has_lease(), "its own grace is not over");
    world = world.later(61).settled();
    assert!(world.has_lease());
    let condition = world.whole_condition(STATE_LEASED);
    has(&condition.message, "node n1 is not Ready");
    // Not even a deletion releases it.
    let mut world = world.deleted().settled();
    assert!(!world.gone);
    world.nodes = Ok(());
    world = world.later(120).settled();
    assert!(!world.has_lease() && world.gone);
}

#[test]
fn end_of_a_pod_with_another_uid_retains_the_lease() {
    let mut world = applying();
    let pod = world.o.pod.clone();
    world = world.pod_gone().settled();
    // A creation that arrived late: its process adopts nothing and ends at once.
    world.o.pod = pod;
    world.pod_mut().uid = "late".into();
    let world = world.pod_ended(None).later(61).settled();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert!(!world.pod().held, "it is let go all the same");
    assert!(
        world.has_lease(),
        "the process that claimed may still apply"
    );
}

#[test]
fn stored_result_returns_the_lease() {
    let mut world = applying().pod_gone();
    world.settings.datastore_url = Some("https://x".into());
    world.settle();
    world = world.later(61).settled();
    assert!(world.has_lease());
    let mut deleted = world.clone().deleted().settled();
    for world in [&mut world, &mut deleted] {
        world.stored = Some(message(Some(RunResult::Applied), None));
        *world = world.clone().later(20);
        world.settle();
        assert!(world.status().settled.is_some() && !world.has_lease());
    }
    assert!(
        deleted.gone,
        "and of a run that is deleted it is asked for all the same"
    );
}

#[test]
fn missing_right_to_leases_is_reported() {
    let mut world = automatic();
    world.lease = Taken::Refused("the controller may not take the lease on the state: 403".into());
    assert_eq!(world.settle(), Some(10));
    assert_eq!(world.condition(STATE_LEASED), is_false("LeaseRefused"));
    assert!(world.status().attempt.is_none());
    assert!(world.events.contains(&"LeaseRefused"));
    world.lease = Taken::Yes;
    world = world.later(11).settled();
    assert!(world.attempt().open);
}

#[test]
fn lease_belongs_to_a_run_from_approval_to_return() {
    let entitled = |world: &World| is_entitled(&world.run, &lease_name(KEY), &world.settings);
    assert!(!entitled(&waiting()), "nobody approved");
    assert!(
        entitled(&waiting().annotate(names::APPROVE, SUM)),
        "its controller is about to record it"
    );
    assert!(!entitled(
        &waiting()
            .annotate(names::APPROVE, SUM)
            .annotate(names::CANCEL, "x")
    ));
    let mut withdrawn = waiting();
    let record = json!({"checksum": SUM, "by": "alice", "at": "2026-01-01T00:00:00Z"});
    withdrawn.status_mut().approval = Some(serde_json::from_value(record).unwrap());
    assert!(
        entitled(&withdrawn),
        "until the write that takes the record away: the annotation may be put back"
    );
    withdrawn.settle();
    assert!(!entitled(&withdrawn));
    assert!(entitled(&applying()));
    assert!(
        entitled(&applying().finished(RunResult::Applied)),
        "until the write that gives it back"
    );
    let done = applying()
        .finished(RunResult::Applied)
        .pod_ended(None)
        .settled();
    assert!(!entitled(&done));
}
