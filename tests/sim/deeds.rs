//! Effects of agents on the world, and checks at that moment. The numbers are those of `design/invariants.md`.

use crds::{Phase, RunResult};
use kube::ResourceExt;
use played::trace::{Deed, Deeds};
use runner_agent::settings::Settings;

use crate::{
    layered,
    world::{Lock, Process, World, millis},
};

/// An effect of an agent's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Init,
    Plan,
    HooksBefore { failed: bool },
    HooksAfter { applied: bool },
    HookAfterFailed,
    Apply { bytes: String, checksum: String },
    Tool(Deed),
}

/// The apply of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Applied {
    process: String,
    pub deeds: Deeds,
}

impl Applied {
    /// Whether its tool still works on the state.
    fn works(&self, world: &World) -> bool {
        self.deeds.ended.is_none() && !self.deeds.killed && alive(world, &self.process)
    }
}

/// Progress of the hooks around a run's apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hooked {
    Before { failed: bool },
    After { failed: bool },
}

#[expect(clippy::needless_pass_by_value, reason = "what was done is told once")]
pub(crate) fn did(world: &mut World, process: &Process, settings: &Settings, done: Done) {
    world.note(&format!("   {} did {done:?}", process.name));
    let uid = settings.run_uid.clone();
    match &done {
        Done::Init | Done::Plan => {
            if !world.watcher.adoptions.contains(&(
                uid.clone(),
                settings.attempt,
                settings.nonce.clone(),
            )) {
                world.violated(
                    "S17",
                    &format!("{} works without having adopted", process.name),
                );
            }
            let phase = if done == Done::Init {
                Phase::Init
            } else {
                Phase::Plan
            };
            if !world
                .watcher
                .phases
                .contains(&(uid.clone(), settings.attempt, phase.as_str()))
            {
                world.violated("S12", &format!("{done:?} before its phase was recorded"));
            }
            if done == Done::Plan {
                world
                    .watcher
                    .planned
                    .insert((uid, settings.attempt), millis());
            }
        }
        Done::HooksBefore { failed } => {
            if world
                .watcher
                .claims
                .get(&uid)
                .is_none_or(|claim| claim.nonce != settings.nonce)
            {
                world.violated(
                    "S70",
                    &format!(
                        "{} runs hooks before an apply that it has no claim of",
                        process.name
                    ),
                );
            }
            let before = world
                .watcher
                .hooked
                .insert(uid.clone(), Hooked::Before { failed: *failed });
            if before.is_some() || world.watcher.applied.contains_key(&uid) {
                world.violated("S70", "hooks before the apply a second time, or behind it");
            }
        }
        Done::HooksAfter { applied: false } => {}
        Done::HookAfterFailed => {
            if let Some(Hooked::After { failed }) = world.watcher.hooked.get_mut(&uid) {
                *failed = true;
            }
        }
        Done::HooksAfter { applied: true } => {
            // Without the run, no result can be checked later.
            if world
                .run(&settings.run)
                .is_some_and(|run| run.uid().as_deref() == Some(&uid))
            {
                world
                    .watcher
                    .hooked
                    .insert(uid.clone(), Hooked::After { failed: false });
            }
            let kept = world
                .data
                .results
                .get(&(uid.clone(), settings.attempt))
                .and_then(|message| message.result);
            let is_kept = matches!(kept, Some(RunResult::Applied | RunResult::Destroyed));
            if world.schedule.scene.datastore && !is_kept {
                world.violated(
                    "S71",
                    "a hook behind the apply begins, and its result is not with the datastore",
                );
            }
            if world
                .watcher
                .applied
                .get(&uid)
                .is_none_or(|applied| applied.deeds.ended != Some(true))
            {
                world.violated("S71", "hooks behind an apply that has not ended well");
            }
        }
        Done::Apply { bytes, checksum } => {
            match world.watcher.hooked.get(&uid) {
                None if world.schedule.scene.hooks => {
                    world.violated("S70", "an apply without the hooks before it");
                }
                Some(Hooked::Before { failed: true }) => {
                    world.violated("S70", "an apply behind a hook that failed");
                }
                Some(_) | None => {}
            }
            if world.applied_at.is_none() {
                world.applied_at = Some(world.boundaries);
            }
            let claim = world.watcher.claims.get(&uid).cloned();
            let own = claim
                .as_ref()
                .map(|claim| claim.nonce == settings.nonce && claim.pod_uid == settings.pod_uid);
            if claim.is_none_or(|claim| claim.checksum != *bytes || claim.checksum != *checksum) {
                world.violated("S4", "other bytes are applied than were claimed");
            }
            if others_work(world, &uid) {
                world.violated("S14", "two applies of one state at once");
            }
            layered::applies(world, &settings.run);
            world
                .watcher
                .applied
                .entry(uid.clone())
                .or_default()
                .process = process.name.to_string();
            deed(world, &uid, Deed::Applies(own));
        }
        Done::Tool(what) => {
            if world
                .watcher
                .applied
                .get(&uid)
                .is_some_and(|applied| applied.process == *process.name)
            {
                deed(world, &uid, *what);
                if *what == Deed::Ended(true) {
                    layered::applied(world, &settings.run);
                }
            }
        }
    }
}

fn deed(world: &mut World, uid: &str, what: Deed) {
    let result = world.watcher.results.get(uid).map(|ended| ended.result);
    let applied = world.watcher.applied.entry(uid.to_owned()).or_default();
    for (invariant, text) in applied.deeds.add(what, result) {
        world.violated(invariant, text);
    }
}

/// Whether the tool of another run works on the state, which all runs of a simulation share. Ignores runs whose apply a person abandoned.
pub(crate) fn others_work(world: &World, uid: &str) -> bool {
    let others = world
        .watcher
        .applied
        .iter()
        .filter(|(of, _)| *of != uid && !world.watcher.given_up.contains(*of));
    others.into_iter().any(|(_, applied)| applied.works(world))
}

fn alive(world: &World, name: &str) -> bool {
    world
        .agents
        .values()
        .flatten()
        .any(|process| *process.name == *name && !process.is_dead())
}

/// Releases the lock of the state if `is` holds for it. An agent does so with the controller's permission; the controller also does so
/// itself.
pub(crate) fn unlock(world: &mut World, is: impl FnOnce(&Lock) -> bool) {
    let Some(lock) = world.lock.take_if(|lock| is(lock)) else {
        return;
    };
    if alive(world, &lock.holder) && !world.watcher.given_up.contains(&lock.uid) {
        world.violated(
            "S31",
            &format!("the lock of {} was released, which lives", lock.holder),
        );
    }
    world.came_to("lock released");
}
