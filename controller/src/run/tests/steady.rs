//! Properties of every state: a second decision changes nothing, idle runs cost nothing, and writes are few.

use super::*;
use crate::state_queue::lease::Taken;

/// A world for every situation in the other tables.
pub(super) fn worlds() -> Vec<(String, World)> {
    let mut all = Vec::new();
    for (mode, new) in [
        ("manual", World::new as fn() -> World),
        ("automatic", World::automatic),
    ] {
        let mut states = vec![
            ("new".to_owned(), new()),
            ("opened".into(), new().opened()),
            ("claimed".into(), new().claimed()),
        ];
        let mut away = new().claimed();
        away.o.datastore_away = Some("refused".into());
        states.push(("away".into(), away));
        for phase in [
            Phase::Setup,
            Phase::Init,
            Phase::Plan,
            Phase::AwaitingApproval,
        ] {
            states.push((phase.to_string(), new().adopted(phase)));
        }
        for taken in [
            Taken::Yes,
            Taken::Behind("else/b".into()),
            Taken::Refused("403".into()),
        ] {
            let mut world = new().kept();
            world.status_mut().plan.as_mut().unwrap().state_key = Some(OTHER.into());
            world.lease = taken.clone();
            states.push((format!("lease {taken:?}"), world));
        }
        if mode == "manual" {
            let held = new().kept();
            let waiting = held.clone().unheld();
            let restoring = waiting.clone().annotate(names::APPROVE, SUM).settled();
            let adopted = restoring.clone().adopted(Phase::AwaitingApproval);
            let mut superseded = held.clone();
            superseded.o.newer = Some("newer".into());
            let stale = super::kept::stale(waiting.clone());
            let held_stale = super::kept::stale(held.clone());
            let kept = [
                ("held", held),
                ("waiting", waiting),
                ("restoring", restoring),
                ("restores", adopted),
                ("old", superseded),
                ("stale", stale),
                ("held and stale", held_stale),
            ];
            states.extend(kept.map(|(name, world)| (name.to_owned(), world)));
        }
        for result in RunResult::ALL {
            let begun = if result.needs_claim() {
                new().claimed()
            } else {
                new().adopted(Phase::Plan)
            };
            states.push((result.to_string(), begun.finished(result)));
        }
        for (state, world) in states {
            let messages = [
                None,
                Some(message(None, Some(failure(FailureClass::Transient)))),
                Some(message(Some(RunResult::Applied), None)),
            ];
            let mut pods = vec![
                ("as it is", world.clone()),
                ("gone", world.clone().pod_gone()),
            ];
            pods.extend(messages.map(|said| ("ended", world.clone().pod_ended(said))));
            for (pod, world) in pods {
                for (asked, world) in [
                    ("", world.clone()),
                    ("approved", world.clone().annotate(names::APPROVE, SUM)),
                    ("stale", world.clone().annotate(names::APPROVE, OTHER)),
                    ("cancelled", world.clone().annotate(names::CANCEL, "x")),
                    ("denied", world.clone().annotate(names::DENY, "x")),
                    ("rerun", world.clone().annotate(names::RERUN, "true")),
                    ("deleted", world.clone().deleted()),
                ] {
                    for policies in [
                        Enforcement::Unknown,
                        Enforcement::Enforced,
                        Enforcement::NotEnforced {
                            missing: Missing::policy("x"),
                            retry_at: world.now,
                        },
                    ] {
                        let mut world = world.clone();
                        world.o.policies = policies.clone();
                        all.push((
                            format!("{mode}, {state}, pod {pod}, {asked}, {policies:?}"),
                            world,
                        ));
                    }
                }
            }
        }
    }
    all
}

/// `World::settle` ends, at any time, and `World::write` checks each write against the rules of the schema. A terminal run never changes
/// its result, a claim is never retried, and an attempt is never opened beside an open one.
#[test]
fn every_situation_becomes_steady() {
    let all = worlds();
    assert!(all.len() > 3000, "{}", all.len());
    for (name, mut world) in all {
        let number = |world: &World| {
            world
                .status()
                .attempt
                .as_ref()
                .map(|attempt| attempt.number)
        };
        let claimed = world.status().claim.as_ref().map(|_| number(&world));
        let result = world.result();
        for wait in [0, 3, 30, 61, 700, 40_000] {
            world = world.later(wait).settled();
            assert!(
                claimed.is_none_or(|attempt| attempt == number(&world)),
                "{name}"
            );
            assert!(result.is_none() || world.result() == result, "{name}");
            let (status, writes) = (world.status().clone(), world.writes.len());
            world.settle();
            assert_eq!(world.status(), &status, "{name}");
            assert_eq!(
                world.writes.len(),
                writes,
                "{name}: a second look wrote again"
            );
            if world.gone {
                break;
            }
        }
    }
}

/// Closing a claimed attempt ends its run in the same write, so here another writer closed it. No attempt follows either.
#[test]
fn no_attempt_follows_a_claim_closed_by_another_writer() {
    for (name, new) in [
        ("manual", World::new as fn() -> World),
        ("automatic", World::automatic),
    ] {
        for mut world in [
            new().claimed(),
            new().claimed().pod_ended(None),
            new().claimed().pod_gone(),
        ] {
            let attempt = world.attempt().number;
            world.status_mut().attempt.as_mut().unwrap().open = false;
            for wait in [0, 3, 61, 100_000] {
                world = world.later(wait).settled();
                assert_eq!(world.attempt().number, attempt, "{name}");
            }
            assert!(
                world.result().is_none_or(RunResult::needs_claim),
                "{name}: {:?}",
                world.result()
            );
        }
    }
}

/// Closing an attempt, ending a run and creating a pod need a live read.
#[test]
fn closing_or_ending_needs_a_live_read() {
    for (name, world) in worlds() {
        for action in world.decide().actions {
            if let Action::Write(write) = &action {
                let closes = write
                    .status
                    .get("attempt")
                    .is_some_and(|a| a["open"] == false);
                let ends = write.status.contains_key("result");
                assert!(!(closes || ends) || action.needs_live(), "{name}");
            }
        }
    }
}

/// An action on a cached run is the action on the whole run.
#[test]
fn decision_on_the_cache_equals_the_live_one() {
    for (name, world) in worlds() {
        let mut cached = world.clone();
        (cached.o.run_live, cached.o.pod_live) = (false, false);
        let decision = cached.decide();
        if !decision.actions.is_empty() && !decision.needs_live() {
            assert_eq!(decision, world.decide(), "{name}");
        }
    }
}

#[test]
fn finished_run_causes_no_action_or_timer() {
    let mut world = World::ended(RunResult::Applied);
    assert_eq!(world.settle(), None, "no timer either");
    (world.o.run_live, world.o.pod_live, world.o.pod) = (false, false, PodState::Absent);
    assert_eq!(world.decide(), Decision::wait());
}

#[test]
fn short_automatic_run_takes_two_status_writes() {
    let mut world = World::applying();
    assert_eq!(world.settle(), Some(2));
    world = world.finished(RunResult::Applied).pod_ended(None).settled();
    assert_eq!(world.writes, [Kind::Open, Kind::Close]);
}

#[test]
fn long_automatic_run_reports_its_plan() {
    let world = World::applying().later(2).settled();
    assert_eq!(world.writes, [Kind::Open, Kind::Conditions]);
    assert_eq!(world.condition(PLANNED), is_true("Planned"));
}

#[test]
fn rerun_request_is_answered_once_and_only_after_the_end() {
    let world = World::ended(RunResult::Applied).settled();
    let mut world = world.annotate(names::RERUN, "true");
    assert!(matches!(
        world.decide().actions.as_slice(),
        [Action::CreateRerun, Action::Write(_)]
    ));
    world.settle();
    assert_eq!(world.status().rerun, Some(names::rerun_name("net", UID)));
    assert_eq!(world.events.last(), Some(&"RerunCreated"));
    assert!(world.decide().actions.is_empty());
    assert!(
        !world
            .run
            .metadata
            .annotations
            .as_ref()
            .unwrap()
            .contains_key(names::RERUN),
        "so that asking once more is seen"
    );
    let running = World::new()
        .adopted(Phase::Plan)
        .annotate(names::RERUN, "true");
    assert!(
        running.decide().actions.is_empty(),
        "when it has ended, not before"
    );
}

#[test]
fn finished_runs_expire_unless_indeterminate() {
    let finished = |ttl: Option<u32>, default: Option<u32>, result| {
        let mut world = World::automatic()
            .with(|run| run.spec.ttl_seconds_after_finished = ttl)
            .claimed();
        world.settings.default_ttl_seconds = default;
        world = world.finished(result).pod_ended(None);
        let wait = world.settle();
        (wait, world)
    };
    assert_eq!(finished(None, None, RunResult::Applied).0, None);
    assert_eq!(finished(None, Some(100), RunResult::Applied).0, Some(100));
    let (wait, world) = finished(Some(50), Some(100), RunResult::Applied);
    assert_eq!(wait, Some(50));
    let world = world.later(50);
    assert_eq!(world.decide().actions, [Action::Prune]);
    assert!(
        world.deleted().decide().actions != [Action::Prune],
        "it goes already"
    );
    let (wait, world) = finished(Some(0), None, RunResult::Indeterminate);
    assert_eq!((wait, world.gone), (None, false));
    assert!(finished(Some(0), None, RunResult::Applied).1.gone);
}

#[test]
fn run_managed_by_a_deploy_tool_is_not_pruned() {
    let of = |key: &str| {
        let world = World::automatic().with(|run| {
            run.spec.ttl_seconds_after_finished = Some(0);
            run.metadata.labels = Some([(key.to_owned(), "x".to_owned())].into());
        });
        let world = world
            .claimed()
            .finished(RunResult::Applied)
            .pod_ended(None)
            .settled();
        world.gone
    };
    assert!(of("team"));
    for key in crate::gc::expired_runs::KEPT_BY {
        assert!(!of(key), "{key}: it would be made again, and apply again");
    }
}

#[test]
fn recreated_run_is_canceled_before_it_begins() {
    for new in [World::new as fn() -> World, World::automatic] {
        let world = new().annotate(names::LIFE, "another").settled();
        assert_eq!(world.result(), Some(RunResult::Canceled));
        assert!(world.status().attempt.is_none());
        has(world.message(), "made again from the run of UID another");
        assert!(world.next_step().contains(names::RERUN));
        let own = new().annotate(names::LIFE, UID).settled();
        assert!(own.attempt().open, "its own");
        // A run that has begun continues, whatever is annotated.
        let begun = new()
            .adopted(Phase::Plan)
            .annotate(names::LIFE, "another")
            .settled();
        assert!(begun.attempt().open && begun.result().is_none());
    }
}
