//! A controller in the model: `decide` verbatim, on what was seen now or on an older version, and the writes that it orders.

use std::sync::Arc;

use controller::{
    run::{Action, Enforcement, Notes, Observed, PodState, RunView, decide},
    settings::Settings,
};
use crds::names;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tests::played::User;

use crate::{
    agent,
    state::{Pod, Seen, World, state_key, view},
};

fn user() -> User {
    User::with("controller", &[names::VERB_CONTROL])
}

/// The time of day after so many ticks of two minutes.
fn time(ticks: u8) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + i64::from(ticks) * 120).unwrap()
}

/// Looks at the run: as it is, or as a late watch has it.
pub(crate) fn observe(world: &mut World, index: usize, stale: bool) {
    let run = if stale { world.before.clone() } else { world.run.clone() };
    world.seen[index] = run.map(|run| {
        let pod = world.pod_of(&run);
        Seen { run, pod, live: !stale, leased: false }
    });
    // Nothing to do is nothing to remember.
    if decided(world, index).is_empty() {
        world.seen[index] = None;
    }
}

/// Whether a controller that looks now finds nothing to do, or nothing that changes anything here.
pub(crate) fn is_quiet(world: &World, index: usize) -> bool {
    let mut looked = world.clone();
    observe(&mut looked, index, false);
    if looked.seen[index].is_some() {
        act(&mut looked, index, usize::MAX);
        // It has taken the lease, and goes on.
        if looked.seen[index].is_some() {
            return false;
        }
    }
    looked.seen[index].clone_from(&world.seen[index]);
    looked == *world
}

fn observed(world: &World, index: usize, seen: &Seen) -> Observed {
    let now = time(world.now);
    let pod = seen.pod.as_ref().map_or(PodState::Absent, |(attempt, pod)| PodState::Present(view(*attempt, pod)));
    let created = Some(world.created[index]).filter(|number| *number > 0).map(|number| (u32::from(number), now));
    let notes = Notes {
        // Asked for before the last tick: the grace of those who are told is over.
        asked_at: Some(now.checked_sub(SignedDuration::from_secs(60)).unwrap()),
        created,
        ..Notes::default()
    };
    let run = if seen.live { RunView::live(Arc::clone(&seen.run.typed)) } else { RunView::cached(&seen.run.typed) };
    Observed {
        run_live: seen.live,
        pod,
        pod_live: seen.live,
        policies: Enforcement::Enforced,
        notes,
        taken: seen.leased.then(|| (state_key(), format!("pawl-state-{}", state_key()))),
        ..Observed::of(run)
    }
}

/// What the controller would do on what it has seen.
pub(crate) fn decided(world: &World, index: usize) -> Vec<Action> {
    let Some(seen) = &world.seen[index] else { return Vec::new() };
    let decision = decide(&observed(world, index, seen), &Settings::default(), time(world.now));
    // What needs a live read is looked at again first.
    if decision.needs_live() && !seen.live { Vec::new() } else { decision.actions }
}

/// Does the first `count` of what was decided, and forgets what was seen: it dies in between, or looks again.
pub(crate) fn act(world: &mut World, index: usize, count: usize) {
    let actions = decided(world, index);
    let Some(seen) = world.seen[index].take() else { return };
    let mut expected = seen.run.clone();
    for action in actions.into_iter().take(count) {
        // A precondition on the version: nobody wrote since.
        let unchanged = world.run.as_ref() == Some(&expected);
        let fine = match action {
            Action::Write(write) => {
                let opens = write.status.get("attempt").is_some_and(|attempt| attempt["number"].is_u64());
                if opens && unchanged {
                    opened(world, &write.status);
                }
                unchanged && world.commit(&user(), &Value::Object(write.status))
            }
            Action::AddFinalizer { .. } => {
                unchanged && {
                    metadata(world, &json!({"finalizers": [names::RUN_FINALIZER]}));
                    true
                }
            }
            Action::CreatePod => create(world, index, &expected.status()),
            Action::DeletePod { name, .. } => each(world, &name, |pod| pod.deleting = true),
            Action::ReleasePod { name, .. } => each(world, &name, |pod| {
                pod.held = false;
                pod.there = !pod.deleting || !pod.ended;
            }),
            Action::Cleanup => {
                for pod in &mut world.pods {
                    pod.held = false;
                    pod.there = false;
                }
                true
            }
            Action::TakeLease { .. } => {
                // It goes on with what it has taken; who is behind another waits and looks again.
                if !world.behind {
                    world.seen[index] = Some(Seen { leased: true, ..seen });
                }
                return;
            }
            Action::RemoveFinalizer => {
                if unchanged {
                    closed_or_wrong(world);
                    world.before = world.run.take();
                }
                unchanged
            }
            Action::DeleteAccount { .. }
            | Action::ProbePolicies
            | Action::Read
            | Action::AskDatastore
            | Action::CreateRerun
            | Action::CreateRecovery
            | Action::Prune
            | Action::TakeSlot { .. }
            | Action::AskNodes
            | Action::ReleaseLock
            | Action::AskLock
            | Action::TakeOff(_) => true,
        };
        if !fine {
            return;
        }
        match &world.run {
            Some(run) => expected = run.clone(),
            None => return,
        }
    }
}

fn metadata(world: &mut World, patch: &Value) {
    let Some(run) = world.run.clone() else { return };
    let mut object = (*run.object).clone();
    tests::played::patch::merge(&mut object["metadata"], patch);
    world.put(object);
}

/// A person's annotations.
pub(crate) fn annotate(world: &mut World, user: &User, annotations: &Value) -> bool {
    let Some(run) = world.run.clone() else { return false };
    let mut object = (*run.object).clone();
    tests::played::patch::merge(&mut object, &json!({"metadata": {"annotations": annotations}}));
    let fine = tests::played::admission::admit(user, Some(&run.object), &object, false).is_ok();
    if fine {
        world.put(object);
    }
    fine
}

/// A person deletes the run.
pub(crate) fn delete(world: &mut World) {
    let held = world.run.as_ref().is_some_and(|run| run.typed.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()));
    if held {
        metadata(world, &json!({"deletionTimestamp": "2027-01-15T08:00:00Z"}));
    } else {
        world.before = world.run.take();
    }
}

fn closed_or_wrong(world: &mut World) {
    let status = world.run.as_ref().map(crate::state::Run::status).unwrap_or_default();
    if status.attempt.as_ref().is_some_and(|attempt| attempt.open) {
        world.wrong = Some("L2: a run went while its attempt was open");
    }
}

/// A further attempt is opened: the one before must be over.
fn opened(world: &mut World, patch: &serde_json::Map<String, Value>) {
    let number = usize::try_from(patch["attempt"]["number"].as_u64().unwrap_or(0)).unwrap_or(0);
    let runs = number.checked_sub(2).and_then(|before| world.pods.get(before)).is_some_and(|pod| pod.there && !pod.ended);
    if runs {
        world.wrong = Some("S9: a further attempt while the pod of the one before runs");
    }
}

fn create(world: &mut World, index: usize, status: &crds::TerraformRunStatus) -> bool {
    let Some(attempt) = &status.attempt else { return false };
    world.created[index] = u8::try_from(attempt.number).unwrap_or(u8::MAX);
    let Some(at) = usize::try_from(attempt.number).ok().and_then(|number| number.checked_sub(1)) else { return false };
    // More attempts than the model has pods for: it never starts.
    if at >= world.pods.len() || world.pods[at].there {
        return true;
    }
    world.pods[at] = Pod { there: true, held: true, ..Pod::default() };
    // A pod of this name may have run before and been taken away: the model starts one process for each.
    if world.agents[at].is_none() {
        agent::start(world, at);
    } else {
        world.pods[at].ended = true;
    }
    true
}

fn each(world: &mut World, name: &str, change: impl Fn(&mut Pod)) -> bool {
    for (index, pod) in world.pods.iter_mut().enumerate() {
        if crate::state::pod_name(index) == name && pod.there {
            change(pod);
        }
    }
    true
}
