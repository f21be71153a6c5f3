//! Checks at every step and at the end. The numbers are those of `design/invariants.md`.

use std::collections::{BTreeMap, BTreeSet};

use crds::{ApprovalMode, Changed, Claim, RunResult, TerraformRun, TerraformRunStatus, conditions, names, reason};
use kube::ResourceExt;
use played::trace::{self, Step};
use serde_json::Value;

use crate::{
    deeds::{Applied, Hooked, others_work},
    layered::{self, Layered},
    person::{EXPIRES_AFTER, FORGED, says_it_is_lost},
    schedule::{Fault, Strike},
    world::{NS, Process, World, millis},
};

#[derive(Clone, Debug)]
pub(crate) struct Ended {
    name: String,
    pub result: RunResult,
    changes: Changed,
    /// A later proof showed that it was applied.
    settled: bool,
}

/// Observations of a life that later checks need.
#[derive(Default)]
pub(crate) struct Watcher {
    pub violations: Vec<String>,
    pub endings: BTreeSet<&'static str>,
    pub refused_wrong: bool,
    pub flaky: u8,
    /// By UID of the run, like the following fields.
    pub applied: BTreeMap<String, Applied>,
    pub hooked: BTreeMap<String, Hooked>,
    pub claims: BTreeMap<String, Claim>,
    /// By UID and attempt: when its plan began.
    pub planned: BTreeMap<(String, u32), u64>,
    pub results: BTreeMap<String, Ended>,
    /// Runs whose apply a person gave up.
    pub given_up: BTreeSet<String>,
    pub phases: BTreeSet<(String, u32, &'static str)>,
    pub adoptions: BTreeSet<(String, u32, String)>,
    /// By UID and attempt: whether it counts as an apply or as a plan. `None` counts as neither.
    counts: BTreeMap<(String, u32), Option<bool>>,
    /// By run, attempt and UID of the pod.
    pods: BTreeSet<(String, u32, String)>,
    /// Pods created after a process had adopted their attempt.
    pub second_pods: Vec<String>,
    pub layered: Layered,
}

pub(crate) fn gone(world: &mut World, run: &TerraformRun) {
    let status = run.status.clone().unwrap_or_default();
    if status.attempt.is_some_and(|attempt| attempt.open) {
        world.violated("L2", "a run went while its attempt was open");
    }
    world.watcher.endings.insert("deleted");
}

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
    let unverified = |run: &TerraformRun| {
        let mut all = run.status.iter().flat_map(|status| &status.conditions);
        all.any(|c| c.type_ == conditions::APPROVED && c.status == "False" && c.reason == reason::UNVERIFIED)
    };
    if unverified(new) && !step.before.is_some_and(unverified) {
        world.note("   the run says that its approval was revoked");
        world.watcher.endings.insert("revoked");
    }
    if says_it_is_lost(new) && !step.before.is_some_and(says_it_is_lost) {
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
            // Allow for two clocks that may each be a second and a round trip behind, and for a stored time in whole seconds.
            if made.is_none_or(|made| millis() + 3_000 < made + EXPIRES_AFTER * 1000) {
                world.violated("S63", "a plan expired before its time");
            }
        }
        let hooked = world.watcher.hooked.get(&uid).copied();
        let by_agent = step.by.is_some_and(|by| !by.pod.is_empty());
        if hooked == Some(Hooked::After { failed: true }) && by_agent && is.failed_hook.is_none() {
            world.violated("S71", "a hook behind the apply failed, and nothing is said of it");
        }
        let said = is.failed_hook.as_ref().map(|failed| if failed.name.is_empty() { "hooks left out" } else { "hook failed" });
        world.watcher.endings.extend(said);
        world.watcher.results.insert(uid.clone(), Ended { name: new.name_any(), result, changes, settled: false });
    }
    let abandoned = new.annotations().get(names::ABANDON).filter(|_| is.result == Some(RunResult::Indeterminate));
    if abandoned.is_some_and(|why| why != FORGED) && world.watcher.given_up.insert(uid.clone()) {
        world.watcher.endings.insert("given up");
    }
    let by_forgery = is.message.as_ref().is_some_and(|message| message.contains(&format!("abandoned the apply: {FORGED}")));
    if by_forgery && !world.believes_forgeries() {
        world.violated("S3", "an apply was given up in words that were forged while the policies were away");
    }
    if let (None, Some(settled)) = (&was.settled, &is.settled) {
        world.watcher.endings.insert("settled");
        if let Some(ended) = world.watcher.results.get_mut(&uid) {
            ended.settled = matches!(settled.result, RunResult::Applied | RunResult::Destroyed);
        }
    }
    if is.attempt.as_ref().is_some_and(|a| a.restores.is_some()) && is.claim.is_some() {
        world.watcher.endings.insert("restored");
    }
    if is.attempt.as_ref().is_some_and(|a| a.number > 1) {
        world.watcher.endings.insert("retried");
    }
}

/// Checks a written pod. Before its adoption an attempt may get another pod, afterwards never.
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

/// Checks that no pod that can still act runs when a further attempt is opened.
fn opened(world: &mut World, run: &TerraformRun, was: &TerraformRunStatus) {
    let selector = format!("{}={}", names::LABEL_RUN_UID, run.uid().unwrap_or_default());
    for pod in world.store.list("pods", NS, &selector) {
        let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        // These pods must have no effect (S17): pods of attempts that have a successor, and pods other than the adopted one.
        let before = was.attempt.as_ref().map_or(0, |attempt| attempt.number);
        let adopted = was.adopted.as_ref().filter(|adopted| adopted.attempt == before);
        let other = pod["metadata"]["labels"][names::LABEL_ATTEMPT] != *before.to_string()
            || adopted.is_some_and(|adopted| pod["metadata"]["uid"] != *adopted.pod_uid);
        let never = pod["spec"]["nodeName"].is_null() && !pod["metadata"]["deletionTimestamp"].is_null();
        // Closing the attempt fenced the pod, because its node was lost.
        let lost = pod["spec"]["nodeName"].as_str().is_some_and(|node| world.lost.contains_key(node));
        if !ended && !never && !other && !lost {
            world.violated("S9", "a further attempt while the pod of the one before runs");
        }
    }
}

/// Checks the number of open attempts.
fn bounded(world: &mut World, new: &TerraformRun) {
    let scene = &world.schedule.scene;
    // The bound may be exceeded in two cases: two leaders do not see each other's attempts, and a new process does not see a request of its
    // dead predecessor that takes effect later.
    let has_late = world.schedule.faults.iter().any(|(_, fault)| matches!(fault, Fault::Late(_)));
    let has_deaths = world.schedule.faults.iter().any(|(_, fault)| matches!(fault, Fault::CrashBefore | Fault::CrashAfter))
        || world.schedule.strikes.iter().any(|(_, strike)| matches!(strike, Strike::KillController(_)));
    let bound = usize::from(scene.slots);
    if bound == 0 || scene.two || has_late && has_deaths {
        return;
    }
    let open =
        |run: &TerraformRun| run.status.as_ref()?.attempt.as_ref().filter(|attempt| attempt.open).map(|attempt| attempt.number);
    let key = |run: &TerraformRun| Some((run.uid()?, open(run)?));
    if let (Some(key), Some(status)) = (key(new), &new.status) {
        let approved = status.approval.as_ref().is_some_and(|record| record.checksum.is_some());
        let kept = status.plan.as_ref().is_some_and(|plan| plan.bundle.is_some());
        let restores = status.attempt.as_ref().is_some_and(|attempt| attempt.restores.is_some());
        // It has returned its slot and cannot end yet.
        let waits = approved && status.lease.is_none() && status.claim.is_none() && !kept && !restores && !status.is_terminal();
        let is = (!waits).then(|| approved && status.lease.is_some() || restores);
        let counts = world.watcher.counts.entry(key).or_insert(is);
        // An attempt that left the class of plans does not return to it when its approval is withdrawn, since another attempt may have its
        // slot. A process that starts afterwards counts it as a plan, so here it counts in neither class.
        *counts = match (is, *counts) {
            (Some(false), Some(true) | None) if has_deaths => None,
            (Some(false), before) => before,
            (is, _) => is,
        };
    }
    let others = world.runs.values().map(|run| &**run).filter(|run| run.uid() != new.uid());
    let open: Vec<bool> = others.chain([new]).filter_map(|run| world.watcher.counts.get(&key(run)?).copied().flatten()).collect();
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

fn claimed(world: &mut World, run: &TerraformRun) {
    let status = run.status.clone().unwrap_or_default();
    let by = status.approval.as_ref().map(|record| record.by.as_str());
    let annotated = run.annotations().get(names::APPROVED_BY).map(String::as_str);
    if run.spec.approval.mode == ApprovalMode::Manual && (by, annotated) != (Some("alice"), Some("alice")) {
        world.violated("S3", "a claim of an approval by somebody else than who may approve");
    }
    if status.approval.is_some_and(|record| record.comment.as_deref() == Some(FORGED)) && !world.believes_forgeries() {
        world.violated("S3", "a claim of an approval that was forged while the policies were away");
    }
    if status.plan.is_none_or(|plan| plan.state_key.is_none()) {
        world.violated("S29", "a claim of a plan that names no state");
    }
    if others_work(world, &run.uid().unwrap_or_default()) {
        world.violated("S30", "a claim while the tool of another run works on the state");
    }
}

/// Whether nothing remains to happen: every run has ended and is cleaned up, or is gone.
pub(crate) fn at_rest(world: &World) -> bool {
    world.runs.values().all(|run| {
        run.metadata.deletion_timestamp.is_none()
            && run.status.as_ref().is_some_and(|status| {
                let open = status.attempt.as_ref().is_some_and(|attempt| attempt.open);
                let told = conditions::status(&status.conditions, conditions::FINISHED) == Some(true);
                let asked = run.annotations().contains_key(names::RERUN) && status.rerun.is_none();
                // A retained lease blocks other runs.
                status.is_terminal() && !open && told && !asked && status.lease.is_none()
            })
    }) && !proof_is_there(world)
        && world.store.list("pods", NS, "").iter().all(|pod| {
            pod["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) && pod["metadata"]["deletionTimestamp"].is_null()
        })
        && world.agents.values().flatten().all(Process::is_dead)
}

/// Whether the datastore has the result of an abandoned run that no controller has recorded yet.
fn proof_is_there(world: &World) -> bool {
    world.runs.values().any(|run| {
        let status = run.status.clone().unwrap_or_default();
        let claim = status.claim.as_ref().map_or(0, |claim| claim.attempt);
        let known =
            world.data.results.get(&(run.uid().unwrap_or_default(), claim)).is_some_and(|message| message.result.is_some());
        status.result == Some(RunResult::Indeterminate) && status.settled.is_none() && known
    })
}

/// Checks the end of a life: no activity is left, and the results of the runs equal the tool's actions.
pub(crate) fn judge(world: &mut World, rested: bool) {
    if !rested {
        let stuck: Vec<String> = world.runs.values().map(|run| format!("{}: {}", run.name_any(), say(run))).collect();
        let processes: Vec<_> = world.agents.values().flatten().filter(|p| !p.is_dead()).map(|p| p.name.to_string()).collect();
        world.violated("L1", &format!("no rest after {} s: {stuck:?}; alive: {processes:?}", millis() / 1000));
        return;
    }
    let results = std::mem::take(&mut world.watcher.results);
    for (uid, Ended { name, result, changes, settled }) in &results {
        let deeds = world.watcher.applied.get(uid).map(|applied| applied.deeds.clone()).unwrap_or_default();
        let fine = deeds.ended == Some(true);
        let claimed = world.watcher.claims.contains_key(uid);
        world.watcher.endings.insert(ending(*result, claimed));
        // The simulated tool reports its changes, so a failure must report them as well.
        let failed = *result == RunResult::Failed && (fine || (*changes == Changed::Some && deeds.changed == 0));
        let lie = trace::truth(*result, *changes, claimed, &deeds);
        if lie.is_some() || failed || (*settled && !fine) {
            world.violated("S28", &format!("{name} ended {result} with changes {changes:?}; it was {deeds:?}"));
        }
        // A pod that ended during its hooks has applied, which the datastore knows.
        let is_applied = *settled || matches!(result, RunResult::Applied | RunResult::Destroyed);
        let hooked = world.watcher.hooked.get(uid).copied();
        if matches!(hooked, Some(Hooked::After { .. })) && world.schedule.scene.datastore && !is_applied {
            world.violated("S71", &format!("{name} ended {result}, though it was applied and its hooks had begun"));
        }
        if hooked.is_some() {
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

/// Objects that are no longer needed, by kind and name. Pods stay as long as their run.
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
