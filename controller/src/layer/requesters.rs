//! The users whose requests a layer's run answers. None of them may approve it where another person has to (`design/0004`, four eyes).

use crds::{RunResult, TerraformLayer, digest::hex_digest, names::REQUESTED_BY, state_key};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::situation::Situation;
use crate::run_requests::requesters;

/// All named since the layer's fields were as its last applied run had them: another person approved that run, which named all before.
/// The admission policy admits another name only when the one before is recorded, so no request is missed.
pub(super) fn open(s: &Situation<'_>) -> Vec<String> {
    let status = s.o.status();
    let asks = status.observed_generation != s.o.layer.metadata.generation || s.o.asked().is_some();
    let is_applied = applied_spec(s).is_some_and(|applied| applied == spec_digest(&s.o.layer));
    // The resumed work is planned, by a run that names who resumed it.
    let is_planned = s.wanted.is_ok() && s.is_planned();
    if is_applied && is_planned && !asks && !s.o.is_deleted() {
        return Vec::new();
    }
    with_last(s, &status.requested_by)
}

/// The same and the last one named, one a line; empty if no one ever was.
pub(super) fn of_run(s: &Situation<'_>) -> String {
    with_last(s, &open(s)).join("\n")
}

fn with_last(s: &Situation<'_>, all: &[String]) -> Vec<String> {
    let last = s.o.annotation(REQUESTED_BY);
    requesters(all.iter().map(String::as_str).chain(last))
}

/// [`spec_digest`] of the last applied run. A run without changes was approved by no one.
pub(super) fn applied_spec(s: &Situation<'_>) -> Option<String> {
    let last = s.facts.last_apply.as_ref();
    let is_last = |run: &str, uid: &str| {
        last.is_some_and(|last| last.run == run && last.uid.as_deref() == Some(uid))
    };
    let applied =
        s.o.runs
            .iter()
            .find(|run| is_last(&run.name, &run.uid) && run.result == Some(RunResult::Applied));
    match applied {
        Some(run) => run.layer_spec.as_deref().map(str::to_owned),
        None => s.o.status().applied_spec,
    }
}

/// Digest of the fields that the policy `pawl-layer` requires a name for, since they determine what the layer's runs do.
pub(super) fn spec_digest(layer: &TerraformLayer) -> String {
    let spec = &layer.spec;
    let fields = json!([
        layer.repository_key(),
        spec.git_ref,
        spec.path,
        spec.template,
        spec.remediation,
        spec.deletion_policy
    ]);
    hex_digest(&Sha256::digest(state_key::canonical(&fields)))
}
