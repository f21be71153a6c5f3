//! Prints the data of one run for the analysis of a violation: the log is removed with the cluster.

use std::fmt::Write as _;

use crds::{Phase, names};
use kube::ResourceExt as _;

use super::{History, Missing, Version, entries};

/// The data of the run `NAMESPACE/NAME`: versions, pods, ledger entries, and places where a version may be missing. Empty if the subject is
/// not a run.
#[must_use]
pub fn evidence(history: &History, of: &str) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for versions in history.runs.values() {
        let Some(last) = versions.last().filter(|last| last.of() == of) else {
            continue;
        };
        let uid = last.run.uid().unwrap_or_default();
        let _ = writeln!(text, "{of}, UID {uid}:");
        for (n, version) in versions.iter().enumerate() {
            let missing = if n == 0 {
                Missing::Nothing
            } else {
                history.missing(&versions[n - 1], version)
            };
            let note = match missing {
                Missing::Nothing => "",
                Missing::Perhaps => "; one before it may be missing",
                Missing::Explained | Missing::Unexplained => "; the one before it is missing",
            };
            let _ = writeln!(text, "  {}{note}", line(version));
        }
        for entry in entries(history, versions) {
            let _ = writeln!(text, "  ledger: {entry:?}");
        }
        let pods = format!("{of}-{}-a", names::short_hash(&uid));
        for (at, pod) in history
            .pods
            .iter()
            .filter(|(_, pod)| pod.starts_with(&pods))
        {
            let _ = writeln!(text, "  {at} pod {pod} created");
        }
    }
    if text.is_empty() {
        return text;
    }
    for (from, to, _) in history.lost.iter().filter(|(_, _, run)| run == of) {
        let _ = writeln!(
            text,
            "  {from} to {to}: a write was answered with an error of the server"
        );
    }
    for gap in &history.gaps {
        let _ = writeln!(text, "  {gap} the API server was killed");
    }
    text
}

fn line(version: &Version) -> String {
    let status = version.status().clone();
    let attempt = status.attempt.map_or("no attempt".to_owned(), |attempt| {
        format!(
            "attempt {} {}",
            attempt.number,
            if attempt.open { "open" } else { "closed" }
        )
    });
    let by = if version.by.pod.is_empty() {
        &version.by.user
    } else {
        &version.by.pod
    };
    let phase = status.phase.map_or("no phase", Phase::as_str);
    let result = status
        .result
        .map(|result| format!(", {result}"))
        .unwrap_or_default();
    let adopted = status
        .adopted
        .map(|adopted| format!(", adopted by {}", adopted.pod_uid));
    let claim = status
        .claim
        .map(|claim| format!(", claimed by {}", claim.pod_uid));
    let (adopted, claim) = (adopted.unwrap_or_default(), claim.unwrap_or_default());
    let what = if version.of_status {
        "status"
    } else {
        "object"
    };
    format!(
        "{} {} {what} by {by}: {phase}{result}, {attempt}{adopted}{claim}",
        version.at, version.revision
    )
}
