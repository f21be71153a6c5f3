//! Rules that need more than two versions of a run: about its pods, its end, and the ledger.

use crds::{Changed, TerraformRunStatus};
use kube::ResourceExt as _;

use super::{History, Version, Versions, entries};
use ledger::what;
use played::trace::{self, Deed, Deeds};

/// The run ended, or was deleted.
pub(super) fn ended(versions: &Versions, history: &History) -> Option<String> {
    let last = versions.last()?;
    let live = history.last.get(&last.run.uid().unwrap_or_default());
    let status = live.unwrap_or_else(|| last.status());
    let closed = status.attempt.as_ref().is_none_or(|attempt| !attempt.open);
    if status.is_terminal() && closed {
        return None;
    }
    let begun = last.run.metadata.deletion_timestamp.is_some() && status.phase.is_none();
    let TerraformRunStatus {
        phase,
        attempt,
        message,
        ..
    } = status;
    (!begun).then(|| format!("it did not end: phase {phase:?}, attempt {attempt:?}, {message:?}"))
}

/// The pod of an attempt is created after the previous attempt was closed, and not again once its attempt was adopted.
pub(super) fn pods(versions: &Versions, history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let Some(last) = versions.last() else {
        return found;
    };
    let namespace = last.run.namespace().unwrap_or_default();
    let newest = last
        .status()
        .attempt
        .as_ref()
        .map_or(0, |attempt| attempt.number);
    for number in 1..=newest {
        let pod = format!("{namespace}/{}", last.pod(number));
        let created: Vec<_> = history
            .pods
            .iter()
            .filter(|(_, created)| *created == pod)
            .collect();
        let adopted = |version: &&Version| {
            let adopted = version.status().adopted.as_ref();
            adopted.is_some_and(|adopted| adopted.attempt == number)
        };
        if let (Some((at, _)), Some(adopted)) = (created.last(), versions.iter().find(adopted))
            && *at > adopted.at
        {
            found.push(format!("the pod {pod} was created after its adoption"));
        }
        let closed = |version: &&Version| {
            let attempt = version
                .status()
                .attempt
                .as_ref()
                .map(|a| (a.number, a.open));
            attempt.is_some_and(|(of, open)| of >= number || of + 1 == number && !open)
        };
        if let (Some((at, _)), Some(before)) = (created.first(), versions.iter().find(closed))
            && *at < before.at
            && number > 1
            && !history.may_miss(&last.of(), *at, before.at)
        {
            found.push(format!(
                "the pod {pod} was created before the end of another"
            ));
        }
    }
    found
}

/// The result of a run matches the ledger.
pub(super) fn truth(versions: &Versions, history: &History) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let Some(last) = versions.last() else {
        return found;
    };
    let claim = versions
        .iter()
        .find_map(|version| version.status().claim.as_ref());
    let pod = claim.map(|claim| last.pod(claim.attempt));
    let mut deeds = Deeds::default();
    for entry in entries(history, versions) {
        let deed = match (entry.what.as_str(), entry.text("command")) {
            (what::COMMAND_START, Some("apply")) => {
                Deed::Applies(pod.as_ref().map(|pod| *pod == entry.who))
            }
            (what::COMMAND_END, Some("apply")) => Deed::Ended(entry.number("exit") == Some(0)),
            (what::RESOURCE, _) => Deed::Changed,
            _ => continue,
        };
        for (invariant, text) in deeds.add(deed, None) {
            found.push((invariant, format!("{text}, by {}", entry.who)));
        }
    }
    let status = last.status();
    let changes = status
        .failure
        .as_ref()
        .map_or(Changed::Unknown, |failure| failure.changes);
    let truth = |result| trace::truth(result, changes, claim.is_some(), &deeds);
    found.extend(status.result.and_then(truth));
    found
}
