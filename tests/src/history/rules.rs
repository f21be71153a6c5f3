//! The rules, one function each; what they say is a sentence on what happened.

use std::collections::HashSet;

use crds::{ApprovalMode, Changed, Phase, RunResult, TerraformRunStatus, names, status_limit::MAX_STATUS_BYTES};
use kube::ResourceExt as _;

use super::{History, Missing, Version, Versions, check::entries};
use crate::ledger::what;

fn status(version: &Version) -> TerraformRunStatus {
    version.run.status.clone().unwrap_or_default()
}

/// Whether a phase follows another, at once or by way of phases that nobody saw.
fn reaches(from: Phase, to: Phase) -> bool {
    let mut seen = HashSet::from([from]);
    let mut next = vec![from];
    while let Some(phase) = next.pop() {
        if phase == to {
            return true;
        }
        next.extend(phase.successors().iter().copied().filter(|after| seen.insert(*after)));
    }
    false
}

/// Phases move along their table.
pub(super) fn phase(before: &Version, after: &Version, whole: bool) -> Option<String> {
    let (Some(from), Some(to)) = (status(before).phase, status(after).phase) else {
        let lost = status(before).phase.is_some() && status(after).phase.is_none();
        return lost.then(|| "the phase was taken away".to_owned());
    };
    let legal = from == to || if whole { from.successors().contains(&to) } else { reaches(from, to) };
    (!legal).then(|| format!("phase {from} was followed by {to}"))
}

/// What ended, and what was claimed, stays.
pub(super) fn frozen(before: &Version, after: &Version) -> Option<String> {
    let (old, new) = (status(before), status(after));
    if before.run.spec != after.run.spec {
        return Some("the spec changed".into());
    }
    if old.result.is_some() && old.result != new.result {
        return Some(format!("the result {:?} became {:?}", old.result, new.result));
    }
    if old.is_terminal() && old.phase != new.phase {
        return Some(format!("the phase {:?} of a run that had ended became {:?}", old.phase, new.phase));
    }
    (old.claim.is_some() && old.claim != new.claim).then(|| "the claim changed".to_owned())
}

/// Attempts count up one by one, and the one before is closed. Where a version may be missing, so may the one that closed it.
pub(super) fn attempts(before: &Version, after: &Version, whole: bool) -> Option<String> {
    let number = |version: &Version| status(version).attempt.map_or(0, |attempt| attempt.number);
    let (old, new) = (number(before), number(after));
    if new < old || (whole && new > old + 1) {
        return Some(format!("attempt {old} was followed by {new}"));
    }
    let open = status(before).attempt.is_some_and(|attempt| attempt.open);
    (whole && new > old && open).then(|| format!("attempt {new} was opened while {old} was open"))
}

/// A claimed run gets no further attempt.
pub(super) fn claimed_is_last(before: &Version, after: &Version) -> Option<String> {
    let (old, new) = (status(before), status(after));
    let further = new.attempt.as_ref().map(|a| a.number) > old.attempt.as_ref().map(|a| a.number);
    (old.claim.is_some() && further).then(|| "a claimed run got a further attempt".to_owned())
}

/// A pod writes the status of its own open attempt only.
pub(super) fn writer(before: &Version, after: &Version) -> Option<String> {
    if !after.of_status || after.by.pod_uid.is_empty() {
        return None;
    }
    let (old, new) = (status(before), status(after));
    let ours = new.adopted.as_ref().is_some_and(|adopted| adopted.pod_uid == after.by.pod_uid);
    let from_pod = after.by.user.contains(":serviceaccount:") && old.attempt.as_ref().is_some_and(|a| a.pod_name == after.by.pod);
    let is_controller = new.adopted == old.adopted && !ours;
    if is_controller && !from_pod {
        return None;
    }
    match old.attempt {
        Some(attempt) if attempt.open && attempt.pod_name == after.by.pod => None,
        attempt => Some(format!("the pod {} wrote while the attempt was {attempt:?}", after.by.pod)),
    }
}

/// A status fits.
pub(super) fn size(version: &Version) -> Option<String> {
    (version.status_bytes > MAX_STATUS_BYTES).then(|| format!("its status had {} bytes", version.status_bytes))
}

/// A run that ended says how, and one that failed says why and what to do next.
pub(super) fn named(version: &Version) -> Option<String> {
    let status = status(version);
    if !status.is_terminal() {
        return None;
    }
    if status.message.as_deref().unwrap_or_default().is_empty() {
        return Some("it ended without a message".into());
    }
    let needs = matches!(status.result, Some(RunResult::Failed | RunResult::Indeterminate));
    if needs && status.failure.as_ref().is_none_or(|failure| failure.reason.is_empty() || failure.message.is_empty()) {
        return Some("it failed without a reason".into());
    }
    (needs && status.next_step.as_deref().unwrap_or_default().is_empty())
        .then(|| "it failed and says not what to do next".to_owned())
}

/// Every claim stood on a live approval of the plan, by the pod that had adopted the open attempt.
pub(super) fn claim(versions: &Versions, history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let Some(at) = versions.iter().position(|version| status(version).claim.is_some()) else { return found };
    let (version, new) = (&versions[at], status(&versions[at]));
    let Some(claim) = new.claim else { return found };
    if new.plan.as_ref().is_none_or(|plan| plan.checksum != claim.checksum) {
        found.push("the claim names another plan than the status".into());
    }
    if new.adopted.as_ref().is_none_or(|adopted| adopted.pod_uid != claim.pod_uid || adopted.nonce != claim.nonce) {
        found.push("the claim is of a process that did not adopt the attempt".into());
    }
    let annotations = version.run.annotations();
    if version.run.spec.approval.mode == ApprovalMode::Manual {
        if annotations.get(names::APPROVE) != Some(&claim.checksum) {
            found.push("the claim stands on no approval".into());
        }
        if new.approval.as_ref().and_then(|record| record.checksum.as_ref()) != Some(&claim.checksum) {
            found.push("the claim stands on no record of an approval".into());
        }
    }
    if at > 0 && history.missing(&versions[at - 1], version) != Missing::Nothing {
        // The claim itself may be what is missing: who wrote this, what was asked for since and what was given back says
        // nothing of it.
        return found;
    }
    if version.by.pod_uid != claim.pod_uid && version.of_status && !version.by.pod_uid.is_empty() {
        found.push(format!("the claim of {} was written by {}", claim.pod_uid, version.by.pod_uid));
    }
    if annotations.contains_key(names::CANCEL) || annotations.contains_key(names::DENY) {
        found.push("a run was claimed that had been cancelled or denied".into());
    }
    if version.run.metadata.deletion_timestamp.is_some() {
        found.push("a run was claimed that was being deleted".into());
    }
    let key = new.plan.as_ref().and_then(|plan| plan.state_key.clone());
    if key.is_some() && new.lease.as_ref().map(|lease| lease.state_key.clone()) != key {
        found.push("the claim stands on no lease of its state".into());
    }
    found
}

/// The run ended; one that was deleted is gone.
pub(super) fn ended(versions: &Versions, history: &History) -> Option<String> {
    let last = versions.last()?;
    let live = last.run.uid().and_then(|uid| history.last.get(&uid).cloned());
    let status = live.unwrap_or_else(|| status(last));
    let closed = status.attempt.as_ref().is_none_or(|attempt| !attempt.open);
    if status.is_terminal() && closed {
        return None;
    }
    let begun = last.run.metadata.deletion_timestamp.is_some() && status.phase.is_none();
    (!begun).then(|| format!("it did not end: phase {:?}, attempt {:?}, {:?}", status.phase, status.attempt, status.message))
}

/// The pod of an attempt is created after the one before was closed, and once.
pub(super) fn pods(versions: &Versions, history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let Some(last) = versions.last() else { return found };
    let (namespace, name) = (last.run.namespace().unwrap_or_default(), last.run.name_any());
    let uid = last.run.uid().unwrap_or_default();
    let newest = status(last).attempt.map_or(0, |attempt| attempt.number);
    for number in 1..=newest {
        let pod = format!("{namespace}/{}", names::attempt_name(&name, &uid, number));
        let created: Vec<_> = history.pods.iter().filter(|(_, created)| *created == pod).collect();
        if created.len() > 1 {
            found.push(format!("the pod {pod} was created {} times", created.len()));
        }
        let closed = |version: &&Version| {
            status(version)
                .attempt
                .is_some_and(|attempt| attempt.number >= number || (attempt.number + 1 == number && !attempt.open))
        };
        if let (Some((at, _)), Some(before)) = (created.first(), versions.iter().find(closed))
            && *at < before.at
            && number > 1
            && !history.may_miss(&last.of(), *at, before.at)
        {
            found.push(format!("the pod {pod} was created before the attempt before it was closed"));
        }
    }
    found
}

/// What a run says of itself is what the ledger saw.
pub(super) fn truth(versions: &Versions, history: &History) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let Some(last) = versions.last() else { return found };
    let status = status(last);
    let entries = entries(history, versions);
    let of = |kind: &str| entries.iter().filter(|entry| entry.what == kind).copied().collect::<Vec<_>>();
    let applies: Vec<_> = of(what::COMMAND_START).into_iter().filter(|entry| entry.text("command") == Some("apply")).collect();
    let touched = of(what::RESOURCE);
    if applies.len() > 1 {
        found.push(("S1", format!("apply was started {} times", applies.len())));
    }
    let claimed = versions.iter().find_map(|version| version.run.status.as_ref()?.claim.clone());
    match (&claimed, applies.first()) {
        (None, Some(entry)) => found.push(("S1", format!("{} applied without a claim", entry.who))),
        (Some(claim), Some(entry)) => {
            let pod = names::attempt_name(&last.run.name_any(), &last.run.uid().unwrap_or_default(), claim.attempt);
            if entry.who != pod {
                found.push(("S17", format!("{} applied under the claim of {pod}", entry.who)));
            }
        }
        (_, None) => {}
    }
    if !status.is_terminal() {
        return found;
    }
    match status.result {
        Some(RunResult::Applied | RunResult::Destroyed) => {
            let ended = of(what::COMMAND_END);
            let well = ended.iter().any(|e| e.text("command") == Some("apply") && e.number("exit") == Some(0));
            if !well {
                found.push(("S28", format!("it says {:?}, and no apply ended well", status.result)));
            }
        }
        Some(RunResult::NoChanges | RunResult::Planned | RunResult::Drifted) if !touched.is_empty() => {
            found.push(("S28", format!("it says {:?}, and {} objects were touched", status.result, touched.len())));
        }
        Some(RunResult::Canceled | RunResult::Rejected | RunResult::Expired | RunResult::Superseded) if !applies.is_empty() => {
            found.push(("S11", "it says that nothing was applied, and apply was started".into()));
        }
        Some(RunResult::Failed) => {
            let none = status.failure.as_ref().is_some_and(|failure| failure.changes == Changed::None);
            if none && !touched.is_empty() {
                found.push(("S28", format!("it says that nothing was changed, and {} objects were touched", touched.len())));
            }
        }
        Some(RunResult::Indeterminate) if claimed.is_none() => {
            found.push(("S28", "it is Indeterminate without a claim".into()));
        }
        _ => {}
    }
    found
}
