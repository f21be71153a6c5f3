//! Rules that need more than two versions of a run: about its pods, its end, and the ledger.

use crds::{Changed, Claim, TerraformRunStatus, names};
use kube::ResourceExt as _;

use super::{History, Version, Versions, entries};
use ledger::what;
use played::trace::{self, Deed, Deeds};

fn status(version: &Version) -> TerraformRunStatus {
    version.run.status.clone().unwrap_or_default()
}

/// The run ended, or was deleted.
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

/// The pod of an attempt is created once, after the previous attempt was closed.
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

/// The result of a run matches the ledger.
pub(super) fn truth(versions: &Versions, history: &History) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let Some(last) = versions.last() else { return found };
    let claimed = versions.iter().find_map(|version| version.run.status.as_ref()?.claim.clone());
    let pod = |claim: &Claim| names::attempt_name(&last.run.name_any(), &last.run.uid().unwrap_or_default(), claim.attempt);
    let mut deeds = Deeds::default();
    for entry in entries(history, versions) {
        let deed = match (entry.what.as_str(), entry.text("command")) {
            (what::COMMAND_START, Some("apply")) => Deed::Applies(claimed.as_ref().map(|claim| pod(claim) == entry.who)),
            (what::COMMAND_END, Some("apply")) => Deed::Ended(entry.number("exit") == Some(0)),
            (what::RESOURCE, _) => Deed::Changed,
            _ => continue,
        };
        found.extend(deeds.add(deed, None).into_iter().map(|(invariant, text)| (invariant, format!("{text}, by {}", entry.who))));
    }
    let status = status(last);
    let changes = status.failure.map_or(Changed::Unknown, |failure| failure.changes);
    found.extend(status.result.and_then(|result| trace::truth(result, changes, claimed.is_some(), &deeds)));
    found
}
