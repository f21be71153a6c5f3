//! Checks at every step and at the end. The numbers are those of `design/invariants.md`.

use std::collections::{BTreeMap, BTreeSet};

use crds::{
    ApprovalMode, Attempt, Changed, Claim, RunResult, TerraformRun, TerraformRunStatus, conditions,
    names, reason,
};
use kube::ResourceExt;
use played::store::{is_leaving, label, text};
use played::trace::{self, Step};
use serde_json::Value;

use crate::{
    deeds::{Applied, Hooked, others_work},
    layered::{self, Layered},
    person::{EXPIRES_AFTER, FORGED, says_it_is_lost},
    schedule::{Fault, Schedule, Strike},
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
    world.came_to("deleted");
}

pub(crate) fn changed(world: &mut World, step: &Step, bytes: usize) {
    for (invariant, text) in trace::step(step)
        .into_iter()
        .chain(trace::version(step.after, bytes))
    {
        world.violated(invariant, &text);
    }
    let (empty, new) = (TerraformRunStatus::default(), step.after);
    bounded(world, new);
    layered::run(world, step.before, new);
    let was = step
        .before
        .and_then(|run| run.status.as_ref())
        .unwrap_or(&empty);
    let is = new.status.as_ref().unwrap_or(&empty);
    let uid = new.uid().unwrap_or_default();
    let unverified = |run: &TerraformRun| {
        has_condition(run, (conditions::APPROVED, "False", reason::UNVERIFIED))
    };
    if unverified(new) && !step.before.is_some_and(unverified) {
        world.note("   the run says that its approval was revoked");
        world.came_to("revoked");
    }
    if says_it_is_lost(new) && !step.before.is_some_and(says_it_is_lost) {
        world.note("   the run says NodeUnreachable");
        world.came_to("node lost");
    }
    if let Some(Attempt {
        number, restores, ..
    }) = is.attempt
    {
        let watcher = &mut world.watcher;
        watcher
            .phases
            .extend(is.phase.map(|phase| (uid.clone(), number, phase.as_str())));
        let adopted = is
            .adopted
            .iter()
            .filter(|adopted| adopted.attempt == number);
        watcher
            .adoptions
            .extend(adopted.map(|adopted| (uid.clone(), number, adopted.nonce.clone())));
        if was.attempt.as_ref().map(|old| old.number) != Some(number) {
            opened(world, new, was);
        }
        if restores.is_some() && is.claim.is_some() {
            world.came_to("restored");
        }
        if number > 1 {
            world.came_to("retried");
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
            let attempt = is.plan.as_ref().map_or(0, |plan| plan.attempt);
            let made = world.watcher.planned.get(&(uid.clone(), attempt));
            // Allow for two clocks that may each be a second and a round trip behind, and for a stored time in whole seconds.
            if made.is_none_or(|made| millis() + 3_000 < made + EXPIRES_AFTER * 1000) {
                world.violated("S63", "a plan expired before its time");
            }
        }
        let hooked = world.watcher.hooked.get(&uid).copied();
        let by_agent = step.by.is_some_and(|by| !by.pod.is_empty());
        if hooked == Some(Hooked::After { failed: true }) && by_agent && is.failed_hook.is_none() {
            world.violated(
                "S71",
                "a hook behind the apply failed, and nothing is said of it",
            );
        }
        if let Some(failed) = &is.failed_hook {
            world.came_to(if failed.name.is_empty() {
                "hooks left out"
            } else {
                "hook failed"
            });
        }
        let ended = Ended {
            name: new.name_any(),
            result,
            changes,
            settled: false,
        };
        world.watcher.results.insert(uid.clone(), ended);
    }
    let given_up = annotation(new, names::ABANDON).is_some_and(|why| why != FORGED);
    if given_up
        && is.result == Some(RunResult::Indeterminate)
        && world.watcher.given_up.insert(uid.clone())
    {
        world.came_to("given up");
    }
    let message = is.message.as_deref().unwrap_or_default();
    if message.contains(&format!("abandoned the apply: {FORGED}")) && !world.believes_forgeries() {
        world.violated("S3", "an apply was given up in forged words");
    }
    if let (None, Some(settled)) = (&was.settled, &is.settled) {
        world.came_to("settled");
        if let Some(ended) = world.watcher.results.get_mut(&uid) {
            ended.settled = matches!(settled.result, RunResult::Applied | RunResult::Destroyed);
        }
    }
}

/// Whether a run has a condition of this type, status and reason.
pub(crate) fn has_condition(run: &TerraformRun, wanted: (&str, &str, &str)) -> bool {
    let mut all = run.status.iter().flat_map(|status| &status.conditions);
    all.any(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str()) == wanted)
}

/// Checks a written pod. Before its adoption an attempt may get another pod, afterwards never.
pub(crate) fn podded(world: &mut World, pod: &Value) {
    let (run, attempt) = (
        label(pod, names::LABEL_RUN_UID),
        label(pod, names::LABEL_ATTEMPT),
    );
    let (name, number) = (text(pod, "/metadata/name"), attempt.parse().unwrap_or(0));
    let watcher = &mut world.watcher;
    if !watcher.pods.insert((
        run.to_owned(),
        number,
        text(pod, "/metadata/uid").to_owned(),
    )) {
        return;
    }
    if watcher
        .adoptions
        .iter()
        .any(|(of, attempt, _)| of == run && *attempt == number)
    {
        watcher.second_pods.push(name.to_owned());
        world.note(&format!("   a second pod {name}"));
    }
}

/// Checks that no pod that can still act runs when a further attempt is opened.
fn opened(world: &mut World, run: &TerraformRun, was: &TerraformRunStatus) {
    let selector = format!("{}={}", names::LABEL_RUN_UID, run.uid().unwrap_or_default());
    let before = was.attempt.as_ref().map_or(0, |attempt| attempt.number);
    let recorded = was
        .attempt
        .as_ref()
        .and_then(|attempt| attempt.pod(was.adopted.as_ref()));
    for pod in world.store.list("pods", NS, &selector) {
        let ended = ["Succeeded", "Failed"].contains(&text(&pod, "/status/phase"));
        // These pods must have no effect (S17, S47): pods of attempts that have a successor, and pods other than the recorded one.
        let other = label(&pod, names::LABEL_ATTEMPT) != before.to_string()
            || recorded != Some(text(&pod, "/metadata/uid"));
        let node = text(&pod, "/spec/nodeName");
        let never = node.is_empty() && is_leaving(&pod);
        // Closing the attempt fenced the pod, because its node was lost.
        let lost = world.lost.contains_key(node);
        if !ended && !never && !other && !lost {
            world.violated("S9", "a further attempt while the pod of another runs");
        }
    }
}

/// Checks the number of open attempts.
fn bounded(world: &mut World, new: &TerraformRun) {
    let Schedule {
        scene,
        faults,
        strikes,
        ..
    } = &world.schedule;
    // The bound may be exceeded in two cases: two leaders do not see each other's attempts, and a new process does not see a request of its
    // dead predecessor that takes effect later.
    let has_late = faults
        .iter()
        .any(|(_, fault)| matches!(fault, Fault::Late(_)));
    let is_death = |fault: &Fault| matches!(fault, Fault::CrashBefore | Fault::CrashAfter);
    let has_deaths = faults.iter().any(|(_, fault)| is_death(fault))
        || strikes
            .iter()
            .any(|(_, strike)| matches!(strike, Strike::KillController(_)));
    let bound = usize::from(scene.slots);
    if bound == 0 || scene.two || has_late && has_deaths {
        return;
    }
    let open = |run: &TerraformRun| {
        let attempt = run.status.as_ref()?.attempt.as_ref()?;
        attempt.open.then_some(attempt.number)
    };
    let key = |run: &TerraformRun| Some((run.uid()?, open(run)?));
    if let (Some(key), Some(status)) = (key(new), &new.status) {
        let TerraformRunStatus {
            approval,
            plan,
            attempt,
            lease,
            claim,
            ..
        } = status;
        let approved = approval
            .as_ref()
            .is_some_and(|record| record.checksum.is_some());
        let kept = plan.as_ref().is_some_and(|plan| plan.bundle.is_some());
        let restores = attempt
            .as_ref()
            .is_some_and(|attempt| attempt.restores.is_some());
        // It has returned its slot and cannot end yet.
        let holds = lease.is_some() || claim.is_some() || kept || restores;
        let waits = approved && !holds && !status.is_terminal();
        let is = (!waits).then(|| approved && lease.is_some() || restores);
        let counts = world.watcher.counts.entry(key).or_insert(is);
        // An attempt that left the class of plans does not return to it when its approval is withdrawn, since another attempt may have its
        // slot. A process that starts afterwards counts it as a plan, so here it counts in neither class.
        *counts = match (is, *counts) {
            (Some(false), Some(true) | None) if has_deaths => None,
            (Some(false), before) => before,
            (is, _) => is,
        };
    }
    let others = world
        .runs
        .values()
        .map(|run| &**run)
        .filter(|run| run.uid() != new.uid());
    let counted = |run: &TerraformRun| world.watcher.counts.get(&key(run)?).copied().flatten();
    let open: Vec<bool> = others.chain([new]).filter_map(counted).collect();
    for what in [false, true] {
        let count = open.iter().filter(|is_apply| **is_apply == what).count();
        if count > bound {
            let text =
                format!("{count} attempts are open that are applies: {what}; {bound} may be");
            world.violated("S80", &text);
        }
    }
    let mut conditions = new.status.iter().flat_map(|status| &status.conditions);
    if conditions.any(|condition| condition.reason == reason::SLOTS_FULL) {
        world.came_to("waited for a slot");
    }
}

fn claimed(world: &mut World, run: &TerraformRun) {
    let TerraformRunStatus { approval, plan, .. } = run.status.clone().unwrap_or_default();
    let by = approval.as_ref().map(|record| record.by.as_str());
    let approvers = (by, annotation(run, names::APPROVED_BY));
    if run.spec.approval.mode == ApprovalMode::Manual && approvers != (Some("alice"), Some("alice"))
    {
        world.violated("S3", "a claim of an approval by a user without the right");
    }
    let comment = approval
        .as_ref()
        .and_then(|record| record.comment.as_deref());
    if comment == Some(FORGED) && !world.believes_forgeries() {
        world.violated("S3", "a claim of a forged approval");
    }
    if plan.is_none_or(|plan| plan.state_key.is_none()) {
        world.violated("S29", "a claim of a plan that names no state");
    }
    if others_work(world, &run.uid().unwrap_or_default()) {
        world.violated("S30", "a claim while the tool of another run works");
    }
}

fn annotation<'a>(run: &'a TerraformRun, name: &str) -> Option<&'a str> {
    run.annotations().get(name).map(String::as_str)
}

/// Whether nothing remains to happen: every run has ended and is cleaned up, or is gone.
pub(crate) fn at_rest(world: &World) -> bool {
    let is_over = |status: &TerraformRunStatus, run: &TerraformRun| {
        let open = status.attempt.as_ref().is_some_and(|attempt| attempt.open);
        let told = conditions::status(&status.conditions, conditions::FINISHED) == Some(true);
        let asked = annotation(run, names::RERUN).is_some() && status.rerun.is_none();
        // A retained lease blocks other runs.
        status.is_terminal() && !open && told && !asked && status.lease.is_none()
    };
    let mut runs = world.runs.values();
    let over = runs.all(|run| {
        run.metadata.deletion_timestamp.is_none()
            && run.status.as_ref().is_some_and(|s| is_over(s, run))
    });
    let is_free = |pod: &Value| {
        pod["metadata"]["finalizers"]
            .as_array()
            .is_none_or(Vec::is_empty)
            && !is_leaving(pod)
    };
    over && !proof_is_there(world)
        && world
            .store
            .list("pods", NS, "")
            .iter()
            .all(|pod| is_free(pod))
        && world.agents.values().flatten().all(Process::is_dead)
}

/// Whether the datastore has the result of an abandoned run that no controller has recorded yet.
fn proof_is_there(world: &World) -> bool {
    world.runs.values().any(|run| {
        let status = run.status.clone().unwrap_or_default();
        let claim = status.claim.as_ref().map_or(0, |claim| claim.attempt);
        let message = world
            .data
            .results
            .get(&(run.uid().unwrap_or_default(), claim));
        let known = message.is_some_and(|message| message.result.is_some());
        status.result == Some(RunResult::Indeterminate) && status.settled.is_none() && known
    })
}

/// Checks the end of a life: no activity is left, and the results of the runs equal the tool's actions.
pub(crate) fn judge(world: &mut World, rested: bool) {
    if !rested {
        let runs = world
            .runs
            .values()
            .map(|run| format!("{}: {}", run.name_any(), say(run)));
        let alive = world
            .agents
            .values()
            .flatten()
            .filter(|process| !process.is_dead());
        let alive: Vec<_> = alive.map(|process| &*process.name).collect();
        let text = format!(
            "no rest after {} s: {:?}; alive: {alive:?}",
            millis() / 1000,
            runs.collect::<Vec<_>>()
        );
        world.violated("L1", &text);
        return;
    }
    let results = std::mem::take(&mut world.watcher.results);
    for (
        uid,
        Ended {
            name,
            result,
            changes,
            settled,
        },
    ) in &results
    {
        let deeds = world
            .watcher
            .applied
            .get(uid)
            .map(|applied| applied.deeds.clone())
            .unwrap_or_default();
        let fine = deeds.ended == Some(true);
        let claimed = world.watcher.claims.contains_key(uid);
        world.came_to(ending(*result, claimed));
        // The simulated tool reports its changes, so a failure must report them as well.
        let failed = *result == RunResult::Failed
            && (fine || (*changes == Changed::Some && deeds.changed == 0));
        let lie = trace::truth(*result, *changes, claimed, &deeds);
        if lie.is_some() || failed || (*settled && !fine) {
            let text = format!("{name} ended {result} with changes {changes:?}; it was {deeds:?}");
            world.violated("S28", &text);
        }
        // A pod that ended during its hooks has applied, which the datastore knows.
        let is_applied = *settled || matches!(result, RunResult::Applied | RunResult::Destroyed);
        let hooked = world.watcher.hooked.get(uid).copied();
        let has_begun = matches!(hooked, Some(Hooked::After { .. }));
        if has_begun && world.schedule.scene.datastore && !is_applied {
            let text =
                format!("{name} ended {result}, though it was applied and its hooks had begun");
            world.violated("S71", &text);
        }
        if hooked.is_some() {
            world.came_to("hooks");
        }
    }
    world.watcher.results = results;
    if world.watcher.refused_wrong {
        world.came_to("wrong approval refused");
    }
    for (resource, name) in litter(world) {
        world.violated("L2", &format!("{resource} {name} is not needed any more"));
    }
}

/// Whether a sweep has something to do.
pub(crate) fn has_litter(world: &World) -> bool {
    !litter(world).is_empty()
}

/// Objects that are no longer needed, by kind and name. Pods stay as long as their run.
fn litter(world: &World) -> Vec<(&'static str, String)> {
    let open = |run: &TerraformRun| {
        let attempt = run.status.as_ref()?.attempt.as_ref()?;
        attempt.open.then(|| attempt.number.to_string())
    };
    let living = world
        .runs
        .values()
        .filter_map(|run| Some((run.uid()?, open(run))));
    let living: BTreeMap<String, Option<String>> = living.collect();
    let mut found = Vec::new();
    for resource in ["pods", "serviceaccounts", "roles", "rolebindings"] {
        for object in world.store.list(resource, NS, "") {
            let needed = living
                .get(label(&object, names::LABEL_RUN_UID))
                .is_some_and(|open| {
                    resource == "pods"
                        || open.as_deref() == Some(label(&object, names::LABEL_ATTEMPT))
                });
            if !needed {
                found.push((resource, text(&object, "/metadata/name").to_owned()));
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
    let open = |open: bool| if open { " open" } else { "" };
    let attempt = status
        .attempt
        .map(|a| format!("a{}{}", a.number, open(a.open)))
        .unwrap_or_default();
    let (phase, result, message) = (
        status.phase,
        status.result,
        status.message.unwrap_or_default(),
    );
    let (claim, deleted) = (
        status.claim.is_some(),
        run.metadata.deletion_timestamp.is_some(),
    );
    format!("{phase:?} {result:?} {attempt:?} claim={claim} deleted={deleted} {message}")
}

/// A line of the trace.
pub(crate) fn differences(old: Option<&TerraformRun>, new: &TerraformRun, deleted: bool) -> String {
    let version = new.metadata.resource_version.clone().unwrap_or_default();
    let approval = new
        .status
        .as_ref()
        .is_some_and(|status| status.approval.is_some());
    let (begun, gone) = (
        if old.is_none() { " (new)" } else { "" },
        if deleted { " GONE" } else { "" },
    );
    format!(
        "   => {}{begun}@{version}{gone}: {} approved={approval}",
        new.name_any(),
        say(new)
    )
}
