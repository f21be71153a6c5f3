//! Decides which lease a run requests, and whether it is entitled to it.

use jiff::Timestamp;
use kube::ResourceExt;

use crds::{ApprovalMode, Operation, Phase, TerraformRun, approval, state_key};

use crate::{run_requests, settings::Settings};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The state.
    pub key: String,
    /// The time of its approval, or of its creation if no person approves.
    pub since: Timestamp,
}

/// The lease that a run requests, whether or not it holds it; `None` for a run that does not apply now.
///
/// A Manual run requests it once its approval is recorded, or with `approved_now`, when the same write records it. An Automatic run
/// requests it as soon as it may start, so that it waits without a pod and plans after its predecessor's apply.
pub fn requested_lease(
    run: &TerraformRun,
    approved_now: bool,
    has_datastore: bool,
) -> Option<LeaseRequest> {
    wanted(
        run,
        |recorded, annotated| annotated && (recorded || approved_now),
        has_datastore,
    )
}

/// Like [`requested_lease`]; `approved` is called with two facts: whether the approval is recorded, and whether it is annotated.
fn wanted(
    run: &TerraformRun,
    approved: impl FnOnce(bool, bool) -> bool,
    has_datastore: bool,
) -> Option<LeaseRequest> {
    let status = run.status.clone().unwrap_or_default();
    if status.is_terminal()
        || status.claim.is_some()
        || run_requests::asked(run).is_some()
        || run.unknown_word().is_some()
    {
        return None;
    }
    match run.spec.operation {
        Operation::Apply | Operation::Destroy => {}
        Operation::Plan | Operation::RefreshOnly | Operation::Unknown => return None,
    }
    match run.approval_mode() {
        ApprovalMode::Manual => {
            let plan = status
                .plan
                .as_ref()
                .filter(|_| status.phase == Some(Phase::AwaitingApproval))?;
            let recorded = status
                .approval
                .as_ref()
                .filter(|record| record.checksum.as_deref() == Some(&plan.checksum));
            if !approved(
                recorded.is_some(),
                approval::is_annotated(run.annotations(), &plan.checksum),
            ) {
                return None;
            }
            let since = recorded.map_or(Timestamp::MAX, |record| record.at.0);
            Some(LeaseRequest {
                key: plan.state_key.clone()?,
                since,
            })
        }
        ApprovalMode::Automatic => {
            let planned = status.plan.as_ref().and_then(|plan| plan.state_key.clone());
            let namespace = run.namespace().unwrap_or_default();
            let key = planned.or_else(|| {
                state_key::expected(&namespace, &run.name_any(), &run.spec, has_datastore)
            })?;
            Some(LeaseRequest {
                key,
                since: run
                    .creation_timestamp()
                    .map_or(Timestamp::UNIX_EPOCH, |at| at.0),
            })
        }
        ApprovalMode::Unknown => None,
    }
}

/// Whether this run, read live, is still entitled to a Lease that names it: the run has recorded the Lease, or its controller may be about
/// to. A run with an unknown value remains entitled, and so does a run whose withdrawn approval is still recorded.
pub fn is_entitled(holder: &TerraformRun, lease: &str, settings: &Settings) -> bool {
    let recorded = holder
        .status
        .as_ref()
        .and_then(|status| status.lease.as_ref());
    recorded.is_some_and(|recorded| recorded.name == lease)
        || holder.unknown_word().is_some()
        || wanted(
            holder,
            |recorded, annotated| recorded || annotated,
            settings.has_datastore(),
        )
        .is_some_and(|want| {
            settings
                .shared_states
                .lease_name(&holder.namespace().unwrap_or_default(), &want.key)
                == lease
        })
}
