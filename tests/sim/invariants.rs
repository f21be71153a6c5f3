//! What must hold at every step and at the end; the numbers are those of `design/invariants.md`.

use std::collections::{BTreeMap, BTreeSet};

use crds::{ApprovalMode, Changed, Claim, Phase, RunResult, TerraformRun, TerraformRunStatus, conditions, names, reason};
use kube::ResourceExt;
use runner_agent::settings::Settings;
use serde_json::Value;
use tests::trace::{self, Deeds, Step};

use crate::{
    layered::{self, Layered},
    person::{EXPIRES_AFTER, FORGED},
    schedule::{Fault, Strike},
    world::{Lock, NS, Process, World, millis},
};

/// What an agent's work did to the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Init,
    Plan,
    HooksBefore,
    HooksAfter { applied: bool },
    ApplyBegun { bytes: String, checksum: String },
    Created,
    ApplyEnded { fine: bool },
    Interrupted,
    Killed,
}

/// The apply of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Applied {
    process: String,
    created: u32,
    interrupts: u32,
    ended: Option<bool>,
    killed: bool,
}

/// What is remembered of a life in order to judge it.
#[derive(Default)]
pub(crate) struct Watcher {
    pub violations: Vec<String>,
    /// Endings that were reached.
    pub endings: BTreeSet<&'static str>,
    pub refused_wrong: bool,
    pub flaky: u8,
    /// By UID of the run.
    applied: BTreeMap<String, Applied>,
    /// By UID of the run: whether hooks behind its apply have begun.
    hooked: BTreeMap<String, bool>,
    claims: BTreeMap<String, Claim>,
    /// By run and attempt: when its plan was begun.
    planned: BTreeMap<(String, u32), u64>,
    results: BTreeMap<String, (String, RunResult, Changed, bool)>,
    phases: BTreeSet<(String, u32, &'static str)>,
    adoptions: BTreeSet<(String, u32, String)>,
    /// By run, attempt and their own UID.
    pods: BTreeSet<(String, u32, String)>,
    /// Pods that came when a process had adopted their attempt already.
    pub second_pods: Vec<String>,
    /// Of layers.
    pub layered: Layered,
}

/// An agent did something.
#[expect(clippy::needless_pass_by_value, reason = "what was done is told once")]
pub(crate) fn did(world: &mut World, process: &Process, settings: &Settings, done: Done) {
    world.note(&format!("   {} did {done:?}", process.name));
    let uid = settings.run_uid.clone();
    let adopted = (uid.clone(), settings.attempt, settings.nonce.clone());
    let phase = |world: &World, phase: Phase| world.watcher.phases.contains(&(uid.clone(), settings.attempt, phase.as_str()));
    match &done {
        Done::Init | Done::Plan => {
            if !world.watcher.adoptions.contains(&adopted) {
                world.violated("S17", &format!("{} works without having adopted", process.name));
            }
            if !phase(world, if done == Done::Init { Phase::Init } else { Phase::Plan }) {
                world.violated("S12", &format!("{done:?} before its phase was recorded"));
            }
            if done == Done::Plan {
                world.watcher.planned.insert((uid, settings.attempt), millis());
            }
        }
        Done::HooksBefore => {
            if world.watcher.claims.get(&uid).is_none_or(|claim| claim.nonce != settings.nonce) {
                world.violated("S70", &format!("{} runs hooks before an apply that it has no claim of", process.name));
            }
            if world.watcher.hooked.insert(uid.clone(), false).is_some() || world.watcher.applied.contains_key(&uid) {
                world.violated("S70", "hooks before the apply a second time, or behind it");
            }
        }
        Done::HooksAfter { applied } => {
            if !applied {
                return;
            }
            world.watcher.hooked.insert(uid.clone(), true);
            let kept = world.data.results.get(&(uid.clone(), settings.attempt)).and_then(|message| message.result);
            let is_kept = matches!(kept, Some(RunResult::Applied | RunResult::Destroyed));
            if world.schedule.scene.datastore && !is_kept {
                world.violated("S71", "a hook behind the apply begins, and its result is not with the datastore");
            }
            if world.watcher.applied.get(&uid).is_none_or(|applied| applied.ended != Some(true)) {
                world.violated("S71", "hooks behind an apply that has not ended well");
            }
        }
        Done::ApplyBegun { bytes, checksum } => {
            let hooks = world.schedule.scene.hooks;
            if hooks && !world.watcher.hooked.contains_key(&uid) {
                world.violated("S70", "an apply without the hooks before it");
            }
            if world.applied_at.is_none() {
                world.applied_at = Some(world.boundaries);
            }
            let claim = world.watcher.claims.get(&uid).cloned();
            let own = claim.as_ref().is_some_and(|c| c.nonce == settings.nonce && c.pod_uid == settings.pod_uid);
            if !own {
                world.violated("S1", &format!("{} applies without a claim of its own", process.name));
            }
            if claim.is_none_or(|claim| claim.checksum != *bytes || claim.checksum != *checksum) {
                world.violated("S4", "other bytes are applied than were claimed");
            }
            if world.watcher.applied.contains_key(&uid) {
                world.violated("S1", "a second apply of one run");
            }
            if world.watcher.results.get(&uid).is_some_and(|(_, result, ..)| result.phase() == Phase::Canceled) {
                world.violated("S11", "an apply of a run that is Canceled");
            }
            let other = world.watcher.applied.values().any(|a| a.ended.is_none() && !a.killed && alive(world, &a.process));
            if other {
                world.violated("S14", "two applies of one state at once");
            }
            layered::applies(world, &settings.run);
            world.watcher.applied.insert(uid, Applied { process: process.name.to_string(), ..Applied::default() });
        }
        Done::Created | Done::ApplyEnded { .. } | Done::Interrupted | Done::Killed => {
            let Some(applied) = world.watcher.applied.get_mut(&uid).filter(|a| a.process == *process.name) else { return };
            match done {
                Done::Created => applied.created += 1,
                Done::ApplyEnded { fine } => {
                    applied.ended = Some(fine);
                    if fine {
                        layered::applied(world, &settings.run);
                    }
                }
                Done::Interrupted if applied.ended.is_none() => {
                    applied.interrupts += 1;
                    if applied.interrupts > 1 {
                        world.violated("S13", "a second SIGINT");
                    }
                }
                Done::Killed if applied.ended.is_none() => {
                    let asked = applied.interrupts > 0;
                    applied.killed = true;
                    if !asked {
                        world.violated("S13", "a tool behind a claim was killed and had not been asked to end");
                    }
                }
                Done::Interrupted
                | Done::Killed
                | Done::Init
                | Done::Plan
                | Done::HooksBefore
                | Done::HooksAfter { .. }
                | Done::ApplyBegun { .. } => {}
            }
        }
    }
}

fn alive(world: &World, name: &str) -> bool {
    world.agents.values().flatten().any(|process| *process.name == *name && !process.is_dead())
}

/// The lock of the state is released, if it is that one: by who had the controller's word, or by the controller itself.
pub(crate) fn unlock(world: &mut World, is: impl FnOnce(&Lock) -> bool) {
    let Some(lock) = world.lock.take_if(|lock| is(lock)) else { return };
    if alive(world, &lock.holder) {
        world.violated("S31", &format!("the lock of {} was released, which lives", lock.holder));
    }
    world.watcher.endings.insert("lock released");
}

/// A run is gone from the API.
pub(crate) fn gone(world: &mut World, run: &TerraformRun) {
    let status = run.status.clone().unwrap_or_default();
    if status.attempt.is_some_and(|attempt| attempt.open) && status.adopted.is_some() {
        world.violated("L2", "a run went while its attempt was open");
    }
    world.watcher.endings.insert("deleted");
}

/// A run changed in the API.
pub(crate) fn changed(world: &mut World, step: &Step, bytes: usize) {
    for (invariant, text) in trace::step(step).into_iter().chain(trace::version(step.after, bytes)) {
        world.violated(invariant, &text);
    }
    let (empty, new) = (TerraformRunStatus::default(), step.after);
    bounded(world, new);
    layered::run(world, step.before, new);
    let was = step.before.and_then(|run| run.status.as_ref()).unwrap_or(&empty);
    let is = new.status.as_ref().unwrap_or(&empty);
    let uid = new.uid().unwrap_or_default();
    let lost = |status: &TerraformRunStatus| {
        status
            .conditions
            .iter()
            .any(|c| c.type_ == conditions::STALLED && c.status == "True" && c.reason == reason::NODE_UNREACHABLE)
    };
    if lost(is) && !lost(was) {
        world.note("   the run says NodeUnreachable");
        world.watcher.endings.insert("node lost");
    }
    if let Some(attempt) = &is.attempt {
        if let Some(phase) = is.phase {
            world.watcher.phases.insert((uid.clone(), attempt.number, phase.as_str()));
        }
        if let Some(adopted) = is.adopted.as_ref().filter(|adopted| adopted.attempt == attempt.number) {
            world.watcher.adoptions.insert((uid.clone(), adopted.attempt, adopted.nonce.clone()));
        }
        if was.attempt.as_ref().map(|old| old.number) != Some(attempt.number) {
            opened(world, new, was);
        }
    }
    if let (None, Some(claim)) = (&was.claim, &is.claim) {
        claimed(world, new);
        world.watcher.claims.insert(uid.clone(), claim.clone());
    }
    if let (false, Some(result)) = (was.is_terminal(), is.result) {
        let failure = is.failure.as_ref();
        let changes = failure.map_or(Changed::None, |failure| failure.changes);
        if result == RunResult::Expired {
            let made = is.plan.as_ref().and_then(|plan| world.watcher.planned.get(&(uid.clone(), plan.attempt)));
            // Of two clocks each may be behind by a second and a round trip, and a stored time names whole seconds.
            if made.is_none_or(|made| millis() + 3_000 < made + EXPIRES_AFTER * 1000) {
                world.violated("S63", "a plan expired before its time");
            }
        }
        world.watcher.results.insert(uid, (new.name_any(), result, changes, false));
    }
    if let (None, Some(settled)) = (&was.settled, &is.settled) {
        world.watcher.endings.insert("settled");
        if let Some(found) = world.watcher.results.get_mut(&new.uid().unwrap_or_default()) {
            found.3 = settled.result == RunResult::Applied;
        }
    }
    if is.attempt.as_ref().is_some_and(|a| a.restores.is_some()) && is.claim.is_some() {
        world.watcher.endings.insert("restored");
    }
    if is.attempt.as_ref().is_some_and(|a| a.number > 1) {
        world.watcher.endings.insert("retried");
    }
}

/// A pod was written. Before its adoption an attempt may need another pod, afterwards it never gets one.
pub(crate) fn podded(world: &mut World, pod: &Value) {
    let of = |field: &str, key: &str| match field {
        "" => pod["metadata"][key].as_str().unwrap_or_default().to_owned(),
        field => pod["metadata"][field][key].as_str().unwrap_or_default().to_owned(),
    };
    let (run, number) = (of("labels", names::LABEL_RUN_UID), of("labels", names::LABEL_ATTEMPT).parse().unwrap_or(0));
    if !world.watcher.pods.insert((run.clone(), number, of("", "uid"))) {
        return;
    }
    if world.watcher.adoptions.iter().any(|(of_run, attempt, _)| *of_run == run && *attempt == number) {
        world.note(&format!("   a second pod {}", of("", "name")));
        world.watcher.second_pods.push(of("", "name"));
    }
}

/// A further attempt was opened.
fn opened(world: &mut World, run: &TerraformRun, was: &TerraformRunStatus) {
    let selector = format!("{}={}", names::LABEL_RUN_UID, run.uid().unwrap_or_default());
    for pod in world.store.list("pods", NS, &selector) {
        let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        // Pods that have no effect (S17): of attempts that were followed already, and others than the one that adopted.
        let before = was.attempt.as_ref().map_or(0, |attempt| attempt.number);
        let adopted = was.adopted.as_ref().filter(|adopted| adopted.attempt == before);
        let other = pod["metadata"]["labels"][names::LABEL_ATTEMPT] != *before.to_string()
            || adopted.is_some_and(|adopted| pod["metadata"]["uid"] != *adopted.pod_uid);
        let never = pod["spec"]["nodeName"].is_null() && !pod["metadata"]["deletionTimestamp"].is_null();
        // Closing the attempt was the fence, as nothing was heard of the node.
        let lost = pod["spec"]["nodeName"].as_str().is_some_and(|node| world.lost.contains_key(node));
        if !ended && !never && !other && !lost {
            world.violated("S9", "a further attempt while the pod of the one before runs");
        }
    }
}

/// How many attempts are open at once.
fn bounded(world: &mut World, new: &TerraformRun) {
    let scene = &world.schedule.scene;
    // Two that both lead know nothing of each other's openings, nor does one of what its dead predecessor sent and lands later.
    let has_late = world.schedule.faults.iter().any(|(_, fault)| matches!(fault, Fault::Late(_)));
    let has_deaths = world.schedule.faults.iter().any(|(_, fault)| matches!(fault, Fault::CrashBefore | Fault::CrashAfter))
        || world.schedule.strikes.iter().any(|(_, strike)| matches!(strike, Strike::KillController(_)));
    let bound = usize::from(scene.slots);
    if bound == 0 || scene.two || has_late && has_deaths {
        return;
    }
    let is_apply = |run: &TerraformRun| {
        let status = run.status.as_ref()?;
        let attempt = status.attempt.as_ref().filter(|attempt| attempt.open)?;
        let approved = status.approval.as_ref().is_some_and(|record| record.checksum.is_some());
        let kept = status.plan.as_ref().is_some_and(|plan| plan.bundle.is_some());
        // It has given its slot back, and could not end.
        let waits = approved && status.lease.is_none() && status.claim.is_none() && !kept && attempt.restores.is_none();
        (!waits).then(|| approved && status.lease.is_some() || attempt.restores.is_some())
    };
    let others = world.runs.values().map(|run| &**run).filter(|run| run.uid() != new.uid());
    let open: Vec<bool> = others.chain([new]).filter_map(is_apply).collect();
    for what in [false, true] {
        let count = open.iter().filter(|is_apply| **is_apply == what).count();
        if count > bound {
            world.violated("S80", &format!("{count} attempts are open that are applies: {what}; {bound} may be"));
        }
    }
    let waits = new.status.iter().flat_map(|status| &status.conditions).any(|c| c.reason == reason::SLOTS_FULL);
    if waits {
        world.watcher.endings.insert("waited for a slot");
    }
}

/// A claim was written.
fn claimed(world: &mut World, run: &TerraformRun) {
    let status = run.status.clone().unwrap_or_default();
    let by = status.approval.as_ref().map(|record| record.by.as_str());
    let annotated = run.annotations().get(names::APPROVED_BY).map(String::as_str);
    if run.spec.approval.mode == ApprovalMode::Manual && (by, annotated) != (Some("alice"), Some("alice")) {
        world.violated("S3", "a claim of an approval by somebody else than who may approve");
    }
    if status.approval.is_some_and(|record| record.comment.as_deref() == Some(FORGED)) {
        world.violated("S3", "a claim of an approval that was forged while the policies were away");
    }
    if status.plan.is_none_or(|plan| plan.state_key.is_none()) {
        world.violated("S29", "a claim of a plan that names no state");
    }
    // All runs of a life are of one state.
    let uid = run.uid().unwrap_or_default();
    let others: Vec<_> =
        world.watcher.applied.iter().filter(|(of, applied)| **of != uid && applied.ended.is_none() && !applied.killed).collect();
    if others.iter().any(|(_, applied)| alive(world, &applied.process)) {
        world.violated("S30", "a claim while the tool of another run works on the state");
    }
}

/// Whether nothing is left to come: every run has ended and is tidied up, or is gone.
pub(crate) fn at_rest(world: &World) -> bool {
    world.runs.values().all(|run| {
        run.metadata.deletion_timestamp.is_none()
            && run.status.as_ref().is_some_and(|status| {
                let open = status.attempt.as_ref().is_some_and(|attempt| attempt.open);
                let told = conditions::status(&status.conditions, conditions::FINISHED) == Some(true);
                let asked = run.annotations().contains_key(names::RERUN) && status.rerun.is_none();
                // A lease that is kept keeps others from the state.
                status.is_terminal() && !open && told && !asked && status.lease.is_none()
            })
    }) && !proof_is_there(world)
        && world.store.list("pods", NS, "").iter().all(|pod| {
            pod["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) && pod["metadata"]["deletionTimestamp"].is_null()
        })
        && world.agents.values().flatten().all(Process::is_dead)
}

/// The datastore has the result of a run that was given up, and nobody has recorded it yet.
fn proof_is_there(world: &World) -> bool {
    world.runs.values().any(|run| {
        let status = run.status.clone().unwrap_or_default();
        let claim = status.claim.as_ref().map_or(0, |claim| claim.attempt);
        let known =
            world.data.results.get(&(run.uid().unwrap_or_default(), claim)).is_some_and(|message| message.result.is_some());
        status.result == Some(RunResult::Indeterminate) && status.settled.is_none() && known
    })
}

/// The end of a life: everything has come to rest, and what the runs say is true.
pub(crate) fn judge(world: &mut World, rested: bool) {
    if !rested {
        let stuck: Vec<String> = world.runs.values().map(|run| format!("{}: {}", run.name_any(), say(run))).collect();
        let processes: Vec<_> = world.agents.values().flatten().filter(|p| !p.is_dead()).map(|p| p.name.to_string()).collect();
        world.violated("L1", &format!("no rest after {} s: {stuck:?}; alive: {processes:?}", millis() / 1000));
        return;
    }
    let results = std::mem::take(&mut world.watcher.results);
    for (uid, (name, result, changes, settled)) in &results {
        let applied = world.watcher.applied.get(uid).cloned();
        let created = applied.as_ref().map_or(0, |applied| applied.created);
        let fine = applied.as_ref().is_some_and(|applied| applied.ended == Some(true));
        let claimed = world.watcher.claims.contains_key(uid);
        world.watcher.endings.insert(ending(*result, claimed));
        let deeds = Deeds { applies: applied.iter().len(), ended_well: fine, changed: created as usize };
        // The tool says here what it did, so that a failure says it as well.
        let failed = *result == RunResult::Failed && (fine || (*changes == Changed::Some && created == 0));
        let lie = trace::truth(*result, *changes, claimed, &deeds);
        if lie.is_some() || failed || (*settled && !fine) {
            world.violated("S28", &format!("{name} ended {result} with changes {changes:?}; it was {applied:?}"));
        }
        // A pod that ended among its hooks has applied, as the datastore knows.
        let is_applied = *settled || matches!(result, RunResult::Applied | RunResult::Destroyed);
        if world.watcher.hooked.get(uid) == Some(&true) && world.schedule.scene.datastore && !is_applied {
            world.violated("S71", &format!("{name} ended {result}, though it was applied and its hooks had begun"));
        }
        if world.watcher.hooked.contains_key(uid) {
            world.watcher.endings.insert("hooks");
        }
    }
    world.watcher.results = results;
    if world.watcher.refused_wrong {
        world.watcher.endings.insert("wrong approval refused");
    }
    for (resource, name) in litter(world) {
        world.violated("L2", &format!("{resource} {name} of a run that is gone, or of an attempt that is closed"));
    }
}

/// Whether a sweep has something to do.
pub(crate) fn has_litter(world: &World) -> bool {
    !litter(world).is_empty()
}

/// Objects that nobody needs any more: by kind and name. Pods stay as long as their run.
fn litter(world: &World) -> Vec<(&'static str, String)> {
    let open = |run: &TerraformRun| run.status.clone().and_then(|status| status.attempt).filter(|attempt| attempt.open);
    let living: BTreeMap<String, Option<String>> =
        world.runs.values().filter_map(|run| Some((run.uid()?, open(run).map(|attempt| attempt.number.to_string())))).collect();
    let mut found = Vec::new();
    for resource in ["pods", "serviceaccounts", "roles", "rolebindings"] {
        for object in world.store.list(resource, NS, "") {
            let label = |name: &str| object["metadata"]["labels"][name].as_str().unwrap_or_default().to_owned();
            let needed = match living.get(&label(names::LABEL_RUN_UID)) {
                Some(open) => resource == "pods" || *open == Some(label(names::LABEL_ATTEMPT)),
                None => false,
            };
            if !needed {
                found.push((resource, object["metadata"]["name"].to_string()));
            }
        }
    }
    found
}

fn ending(result: RunResult, claimed: bool) -> &'static str {
    match (result, claimed) {
        (RunResult::Failed, true) => "Failed behind the claim",
        (RunResult::Failed, false) => "Failed before the claim",
        (result, _) => result.as_str(),
    }
}

fn say(run: &TerraformRun) -> String {
    let status = run.status.clone().unwrap_or_default();
    let attempt = status.attempt.as_ref().map(|a| format!("a{}{}", a.number, if a.open { " open" } else { "" }));
    format!(
        "{:?} {:?} {:?} claim={} deleted={} {}",
        status.phase,
        status.result,
        attempt.unwrap_or_default(),
        status.claim.is_some(),
        run.metadata.deletion_timestamp.is_some(),
        status.message.unwrap_or_default()
    )
}

/// A line of the trace.
pub(crate) fn differences(old: Option<&TerraformRun>, new: &TerraformRun, deleted: bool) -> String {
    let version = new.metadata.resource_version.clone().unwrap_or_default();
    let approval = new.status.as_ref().is_some_and(|status| status.approval.is_some());
    let begun = if old.is_none() { " (new)" } else { "" };
    format!("   => {}{begun}@{version}{}: {} approved={approval}", new.name_any(), if deleted { " GONE" } else { "" }, say(new))
}
