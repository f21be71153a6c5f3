//! Locks of states: their owners, and when they may be released.

use super::*;
use crate::runner_pod::gone_wait;
use crds::StateLock;

fn lock(who: &str) -> StateLock {
    StateLock {
        id: "l1".into(),
        who: who.into(),
        operation: None,
        created: None,
    }
}

fn holder(number: u32) -> String {
    format!("pawl@{}", names::attempt_name("net", UID, number))
}

/// A run in its plan that waits for a lock.
fn waits(who: &str) -> World {
    let mut world = World::new().adopted(Phase::Plan);
    world.status_mut().state_lock = Some(lock(who));
    world
}

#[test]
fn only_lock_holders_with_our_pod_names_are_checked() {
    assert_eq!(
        stale_lock::pod_of(&lock(&holder(3))),
        Some(("net", names::short_hash(UID).as_str(), 3))
    );
    assert_eq!(
        stale_lock::pod_of(&lock("x@a-b-c-2xbdf-a12")),
        Some(("a-b-c", "2xbdf", 12))
    );
    for who in [
        "carol@laptop",
        "unknown",
        "",
        "carol@net-2xbdf-a",
        "carol@net-a1",
        "carol@-2xbdf-a1",
    ] {
        assert_eq!(stale_lock::pod_of(&lock(who)), None, "{who}");
        let world = waits(who).settled();
        assert!(world.status().lock_release.is_none());
        assert!(world.o.notes.lock_asked.is_none(), "{who}: nobody is asked");
    }
}

#[test]
fn lock_is_released_only_after_its_process_has_ended() {
    let mut world = waits(&holder(3));
    assert_eq!(world.settle(), Some(5));
    assert!(world.status().lock_release.is_none());
    world.lock_holder = LockHolder::Ended("team/net, attempt 3".into());
    world = world.later(6).settled();
    let release = world.status().lock_release.clone().unwrap();
    assert_eq!(release.id.as_str(), "l1");
    assert_eq!(release.holder.as_str(), "team/net, attempt 3");
    let writes = world.writes.len();
    world.o.lock_holder = LockHolder::Unknown;
    world = world.later(60).settled();
    assert_eq!(world.writes.len(), writes, "it is said once");
    // The next lock is another one.
    world.status_mut().state_lock.as_mut().unwrap().id = "l2".into();
    world.lock_holder = LockHolder::Unknown;
    world.settle();
    assert_eq!(world.status().lock_release.as_ref().unwrap().id, "l1");
    assert_eq!(world.o.notes.lock_asked.as_ref().unwrap().0, "l2");
}

/// Attempt 1 left a lock and its pod is gone. The status is about attempt 2, on another node.
#[test]
fn nodes_of_the_last_eight_attempts_are_recorded() {
    let mut world = World::new()
        .with(|run| run.spec.retry.limit = 20)
        .adopted(Phase::Plan);
    let node = |number: u32| format!("n{number}");
    for number in 1..=12 {
        world.status_mut().adopted.as_mut().unwrap().node_name = Some(node(number));
        assert_eq!(
            stale_lock::node_of(&world.run, number),
            Some(node(number).as_str())
        );
        world = world
            .pod_ended(None)
            .settled()
            .pod_gone()
            .later(600)
            .adopted(Phase::Plan);
        assert_eq!(world.attempt().number, number + 1);
        assert_eq!(
            stale_lock::node_of(&world.run, number + 1),
            None,
            "its agent says nothing: an older one"
        );
        assert_eq!(
            stale_lock::node_of(&world.run, number),
            Some(node(number).as_str())
        );
    }
    assert_eq!(stale_lock::node_of(&world.run, 5), Some("n5"));
    assert_eq!(stale_lock::node_of(&world.run, 4), None);
    let former = &world.attempt().former;
    assert_eq!(former.len(), 8);
    assert!(
        former.iter().all(|f| f.pod_uid.as_deref() == Some(POD)),
        "another pod of that name proves no end"
    );
    // An attempt that no process adopted left nothing.
    world.status_mut().adopted = None;
    world = world.pod_ended(None).settled().pod_gone();
    let world = world.later(600).opened();
    assert_eq!(world.attempt().number, 14);
    assert_eq!(world.attempt().former.len(), 8);
}

#[test]
fn waiting_apply_gets_the_lock_release_too() {
    let mut world = World::new().claimed();
    world.status_mut().state_lock = Some(lock(&holder(3)));
    world.lock_holder = LockHolder::Ended("team/net, attempt 3".into());
    world.settle();
    assert_eq!(world.status().lock_release.clone().unwrap().id, "l1");
}

#[test]
fn attempt_is_over_when_closed_and_its_pod_ended() {
    let open = World::new().adopted(Phase::Plan);
    let over = |world: &World, number: u32, now: Timestamp| {
        stale_lock::is_over(&world.run, number, &world.o.pod, now)
    };
    assert!(
        over(&open, 1, open.now)
            .unwrap_err()
            .contains("still works")
    );
    assert!(
        over(&open, 2, open.now)
            .unwrap_err()
            .contains("no attempt 2")
    );
    let ended = open.clone().pod_ended(None);
    assert!(
        over(&ended, 1, ended.now).is_err(),
        "ended and not closed: what it claimed is not settled"
    );
    let closed = ended.settled();
    assert_eq!(
        over(&closed, 1, closed.now),
        Ok(stale_lock::Over::Ended("team/net, attempt 1".into()))
    );
    let gone = closed.clone().pod_gone();
    assert!(
        over(&gone, 1, gone.now)
            .unwrap_err()
            .contains("not confirmed")
    );
    let wait = gone_wait(&gone.run);
    let late = gone.now.checked_add(wait).unwrap();
    assert_eq!(
        over(&gone, 1, late),
        Ok(stale_lock::Over::Gone("team/net, attempt 1".into()))
    );
    let mut running = closed;
    running.pod_mut().ended = None;
    assert!(
        over(&running, 1, late).unwrap_err().contains("still runs"),
        "whatever the status says"
    );
}
