//! Prints the data of one run for the analysis of a violation: the log is removed with the cluster.

use std::fmt::Write as _;

use crds::names;
use kube::ResourceExt as _;

use super::{History, Missing, Version, entries};

/// The data of the run `NAMESPACE/NAME`: versions, pods, ledger entries, and places where a version may be missing. Empty if the subject is
/// not a run.
#[must_use]
pub fn evidence(history: &History, of: &str) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for versions in history.runs.values() {
        let Some(last) = versions.last().filter(|last| last.of() == of) else { continue };
        let uid = last.run.uid().unwrap_or_default();
        let _ = writeln!(text, "{of}, UID {uid}:");
        for (n, version) in versions.iter().enumerate() {
            let missing = if n == 0 { Missing::Nothing } else { history.missing(&versions[n - 1], version) };
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
        for (at, pod) in history.pods.iter().filter(|(_, pod)| pod.starts_with(&pods)) {
            let _ = writeln!(text, "  {at} pod {pod} created");
        }
    }
    if text.is_empty() {
        return text;
    }
    for (from, to, _) in history.lost.iter().filter(|(_, _, run)| run == of) {
        let _ = writeln!(text, "  {from} to {to}: a write was answered with an error of the server");
    }
    for gap in &history.gaps {
        let _ = writeln!(text, "  {gap} the API server was killed");
    }
    text
}

fn line(version: &Version) -> String {
    let status = version.run.status.clone().unwrap_or_default();
    let attempt = status.attempt.map_or_else(
        || "no attempt".to_owned(),
        |attempt| format!("attempt {} {}", attempt.number, if attempt.open { "open" } else { "closed" }),
    );
    let by = if version.by.pod.is_empty() { &version.by.user } else { &version.by.pod };
    let phase = status.phase.map_or_else(|| "no phase".to_owned(), |phase| phase.to_string());
    let result = status.result.map_or_else(String::new, |result| format!(", {result}"));
    let adopted = status.adopted.map_or_else(String::new, |adopted| format!(", adopted by {}", adopted.pod_uid));
    let claim = status.claim.map_or_else(String::new, |claim| format!(", claimed by {}", claim.pod_uid));
    let what = if version.of_status { "status" } else { "object" };
    format!("{} {} {what} by {by}: {phase}{result}, {attempt}{adopted}{claim}", version.at, version.revision)
}
