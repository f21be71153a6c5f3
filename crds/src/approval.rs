//! Decides whether a plan is approved: the annotation that a person set, the controller's record of it, and the plan's
//! checksum.

use std::collections::BTreeMap;

use crate::{TerraformRun, names};

/// Whether a person's annotation approves the plan with this checksum. The whole checksum must match.
pub fn is_annotated(annotations: &BTreeMap<String, String>, checksum: &str) -> bool {
    annotations
        .get(names::APPROVE)
        .is_some_and(|given| given == checksum)
}

/// Whether the plan with this checksum is approved: both the annotation and the controller's record must match.
pub fn stands(run: &TerraformRun, checksum: &str) -> bool {
    let recorded = run
        .status
        .as_ref()
        .and_then(|status| status.approval.as_ref())
        .and_then(|record| record.checksum.as_deref());
    recorded == Some(checksum)
        && run
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|all| is_annotated(all, checksum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn approval_needs_the_whole_checksum_and_the_record() {
        let run = |given: &str, recorded: &str| -> TerraformRun {
            let approval =
                json!({"checksum": recorded, "by": "alice", "at": "2026-01-01T00:00:00Z"});
            serde_json::from_value(json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun",
                "metadata": {"name": "a", "annotations": {names::APPROVE: given}}, "spec": {"source": {}},
                "status": {"approval": approval}}))
            .unwrap()
        };
        assert!(stands(&run("sha256:12", "sha256:12"), "sha256:12"));
        for (given, recorded) in [
            ("sha256:1", "sha256:12"),
            ("sha256:12", "sha256:1"),
            ("", ""),
            ("sha256:123", "sha256:123"),
        ] {
            assert!(
                !stands(&run(given, recorded), "sha256:12"),
                "{given} {recorded}"
            );
        }
    }
}
