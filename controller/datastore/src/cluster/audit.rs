//! The facts of a run that its record retains, for people who ask later who approved which change.

use jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use crds::{Operation, TerraformRun, names};

/// Facts of a run at its claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Audit {
    /// The layer that made the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    pub operation: Operation,
    /// Commit of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Counts of the plan: `+1 ~0 -0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<String>,
    /// The approver, or `automatic`.
    pub approved_by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

impl Audit {
    pub(super) fn of(run: &TerraformRun) -> Self {
        let status = run.status.as_ref();
        let plan = status.and_then(|status| status.plan.as_ref());
        let approval = status.and_then(|status| status.approval.as_ref());
        Self {
            layer: run.labels().get(names::LABEL_LAYER).cloned(),
            operation: run.spec.operation,
            revision: plan.and_then(|plan| plan.revision.clone()),
            changes: plan.map(|plan| plan.summary.clone()),
            // The claim of an Automatic run is its approval.
            approved_by: approval.map_or_else(|| "automatic".to_owned(), |by| by.by.clone()),
            approved_at: approval.map(|by| by.at.0),
            comment: approval.and_then(|by| by.comment.clone()),
        }
    }
}
