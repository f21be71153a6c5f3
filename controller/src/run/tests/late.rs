//! Results that arrive through the datastore.

use super::*;
use crds::reason;

fn with_datastore() -> World {
    World::automatic().with_datastore().claimed()
}

fn indeterminate() -> World {
    let mut world = with_datastore().pod_ended(None).settled();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    world.o.pod = PodState::Absent;
    world
}

#[test]
fn silent_claim_is_looked_up_in_the_datastore_first() {
    for result in [RunResult::Applied, RunResult::Failed] {
        let mut ended = with_datastore().pod_ended(None);
        let mut gone = with_datastore().pod_gone();
        assert_eq!(gone.settle(), Some(60));
        gone = gone.later(60);
        let mut closed = with_datastore();
        closed.status_mut().attempt.as_mut().unwrap().open = false;
        closed.o.pod = PodState::Absent;
        for world in [&mut ended, &mut gone, &mut closed] {
            assert_eq!(world.asked, 0);
            assert_eq!(world.decide().actions, [Action::AskDatastore]);
            assert!(Action::AskDatastore.needs_live());
            world.stored = Some(message(Some(result), None));
            world.settle();
            assert_eq!((world.result(), world.asked), (Some(result), 1));
            assert_eq!(world.message(), "what the agent said");
            assert!(world.status().settled.is_none() && !world.attempt().open);
        }
    }
}

#[test]
fn termination_message_needs_no_datastore_lookup() {
    let world = with_datastore().reports(RunResult::Applied).settled();
    assert_eq!((world.result(), world.asked), (Some(RunResult::Applied), 0));
    let without = World::applying().pod_ended(None).settled();
    assert_eq!(without.result(), Some(RunResult::Indeterminate));
    assert_eq!(without.asked, 0);
}

#[test]
fn stored_result_of_another_process_proves_nothing() {
    for stored in no_results() {
        let mut world = with_datastore().pod_ended(None);
        world.stored.clone_from(&stored);
        world.settle();
        assert_eq!(world.result(), Some(RunResult::Indeterminate), "{stored:?}");
        world = world.later(10_000).settled();
        assert!(world.status().settled.is_none(), "{stored:?}");
    }
}

#[test]
fn late_proof_is_recorded_once_beside_the_result() {
    let mut world = indeterminate();
    let text = world.status().message.clone();
    assert_eq!(world.settle(), Some(10));
    world = world.later(10);
    world.stored = Some(message(Some(RunResult::Applied), None));
    assert_eq!(world.settle(), None, "and nothing more is asked");
    let status = world.status();
    let settled = status.settled.clone().unwrap();
    assert_eq!(settled.result, RunResult::Applied);
    assert_eq!(settled.message.as_str(), "what the agent said");
    assert_eq!(status.phase, Some(Phase::Failed));
    assert_eq!(status.result, Some(RunResult::Indeterminate));
    assert_eq!(status.message, text);
    assert_eq!(
        status.failure.as_ref().unwrap().reason,
        reason::APPLY_UNCONFIRMED
    );
    assert_eq!(world.events.last(), Some(&"Settled"));
    assert_eq!(world.written(Kind::Settled), 1);
    assert!(
        Action::Write(Write {
            kind: Kind::Settled,
            status: serde_json::Map::new(),
            notes: vec![],
            finished: None,
            incomplete: false
        })
        .needs_live()
    );
}

#[test]
fn late_result_is_polled_for_a_week_with_backoff() {
    let mut world = indeterminate();
    let (mut waits, mut whole) = (Vec::new(), 0);
    while let Some(wait) = world.settle() {
        waits.push(wait);
        whole += wait;
        world = world.later(i64::try_from(wait).unwrap());
    }
    let week = 7 * 24 * 3600;
    assert_eq!(
        waits[..10],
        [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600]
    );
    assert!(
        waits[10..].iter().all(|wait| *wait == 3600) && (week..week + 3600).contains(&whole),
        "{whole}"
    );
    assert_eq!(world.asked as usize, waits.len());
}

#[test]
fn restart_polls_the_late_result_again() {
    let mut world = indeterminate().later(5000).settled();
    let asked = world.asked;
    (world.o.notes, world.o.late_result) = (Notes::default(), LateResult::Unknown);
    assert_eq!(world.settle(), Some(10));
    assert_eq!(world.asked, asked + 1);
}

#[test]
fn indeterminate_stored_result_ends_the_polling() {
    let mut world = with_datastore().pod_ended(None);
    world.stored = Some(message(Some(RunResult::Indeterminate), None));
    assert_eq!(world.settle(), None);
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert_eq!(world.asked, 1);
    assert!(world.status().settled.is_none());
}

#[test]
fn late_termination_message_settles_the_run() {
    // Another writer closed the attempt while its pod still existed.
    let mut world = World::applying();
    world.status_mut().attempt.as_mut().unwrap().open = false;
    let pod = world.o.pod.clone();
    world = world.pod_gone().settled();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    world.o.pod = pod;
    world = world.reports(RunResult::Applied).settled();
    assert_eq!(
        world.status().settled.as_ref().unwrap().result,
        RunResult::Applied
    );
    assert!(!world.pod().held, "read before it was let go");
}
