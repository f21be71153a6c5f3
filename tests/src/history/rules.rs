//! The rules that need more than two versions of a run: its pods, its end, and the ledger.

use crds::{Changed, TerraformRunStatus, names};
use kube::ResourceExt as _;

use super::{History, Version, Versions, entries};
use crate::{
    ledger::what,
    trace::{self, Deeds},
};

fn status(version: &Version) -> TerraformRunStatus {
    version.run.status.clone().unwrap_or_default()
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
    let entries = entries(history, versions);
    let of = |kind: &str| entries.iter().filter(|entry| entry.what == kind).copied().collect::<Vec<_>>();
    let applies: Vec<_> = of(what::COMMAND_START).into_iter().filter(|entry| entry.text("command") == Some("apply")).collect();
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
    let ended = of(what::COMMAND_END);
    let deeds = Deeds {
        applies: applies.len(),
        ended_well: ended.iter().any(|e| e.text("command") == Some("apply") && e.number("exit") == Some(0)),
        changed: of(what::RESOURCE).len(),
    };
    let status = status(last);
    let changes = status.failure.map_or(Changed::Unknown, |failure| failure.changes);
    found.extend(status.result.and_then(|result| trace::truth(result, changes, claimed.is_some(), &deeds)));
    found
}
