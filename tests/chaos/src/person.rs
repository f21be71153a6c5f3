//! A simulated person: approves, sometimes the wrong plan, withdraws, denies, cancels, deletes.

use std::time::Duration;

use crds::{Phase, TerraformRun, names};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use rand::{Rng as _, rngs::StdRng};
use serde_json::{Value, json};

use super::lab::Lab;

/// A person's intent for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// Approves a waiting plan.
    Approve,
    /// Approves, withdraws, approves again.
    Hesitate,
    Deny,
    /// Cancels at a random time.
    Cancel,
    /// Deletes at a random time.
    Delete,
}

impl Intent {
    pub(super) fn draw(random: &mut StdRng) -> Self {
        match random.random_range(0..100) {
            0..80 => Self::Approve,
            80..90 => Self::Hesitate,
            90..93 => Self::Deny,
            93..97 => Self::Cancel,
            _ => Self::Delete,
        }
    }
}

pub(super) async fn annotate(lab: &Lab, name: &str, annotations: Value) -> bool {
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    lab.runs()
        .patch(name, &PatchParams::default(), &patch)
        .await
        .is_ok()
}

pub(super) fn approval(checksum: &str) -> Value {
    json!({names::APPROVE: checksum, names::APPROVED_BY: "admin"})
}

/// Acts once on the run's present state. Returns whether the intent is completed.
pub(super) async fn act(
    lab: &Lab,
    run: &TerraformRun,
    intent: Intent,
    random: &mut StdRng,
) -> bool {
    let name = run.name_any();
    let status = run.status.clone().unwrap_or_default();
    match intent {
        Intent::Cancel | Intent::Delete => {
            if status.phase.is_none() || !random.random_bool(0.02) {
                return false;
            }
            if intent == Intent::Cancel {
                return annotate(lab, &name, json!({names::CANCEL: "by chance"})).await;
            }
            lab.runs()
                .delete(&name, &DeleteParams::default())
                .await
                .is_ok()
        }
        Intent::Approve | Intent::Hesitate | Intent::Deny => {
            let (Some(Phase::AwaitingApproval), Some(plan)) = (status.phase, &status.plan) else {
                return false;
            };
            let given = run.annotations().get(names::APPROVE);
            if given == Some(&plan.checksum) {
                return false;
            }
            if random.random_bool(0.2) {
                // Early, truncated, or another's: refused without an effect.
                let wrong = plan.checksum.chars().rev().collect::<String>();
                annotate(lab, &name, approval(&wrong)).await;
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(0..1500))).await;
            if intent == Intent::Deny {
                return annotate(lab, &name, json!({names::DENY: "by chance"})).await;
            }
            if intent == Intent::Hesitate
                && random.random_bool(0.5)
                && annotate(lab, &name, approval(&plan.checksum)).await
            {
                tokio::time::sleep(Duration::from_millis(random.random_range(0..60))).await;
                let nothing =
                    json!({names::APPROVE: null, names::APPROVED_BY: null, names::COMMENT: null});
                annotate(lab, &name, nothing).await;
                return false;
            }
            annotate(lab, &name, approval(&plan.checksum)).await;
            // The plan may have changed; the next call checks it.
            false
        }
    }
}
