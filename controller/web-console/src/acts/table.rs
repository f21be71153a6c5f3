//! The table of acts.

use crds::{
    Phase, RunResult, TerraformLayer, TerraformRun, approval, names,
    reason::{self, next_step},
};

use super::{Kind, NamespaceState, Object};

/// The value that an act writes to an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The checksum of the plan that waits.
    Checksum,
    /// The required comment.
    Reason,
    /// The optional comment; the annotation is removed without one.
    Remark,
    /// The name of the person who acts.
    Person,
    /// The Unix time in seconds.
    Now,
    Fixed(&'static str),
    /// The annotation is removed.
    Remove,
}

/// One act.
pub struct Row {
    pub kind: Kind,
    /// The name in paths.
    pub act: &'static str,
    pub label: &'static str,
    /// Whether something can be lost. An approval of a plan that destroys is always marked.
    pub danger: bool,
    pub writes: &'static [(&'static str, Word)],
    /// Whether the object's state permits it.
    pub offered: fn(&Object<'_>) -> bool,
}

/// A row: kind, name, label, danger, annotations, condition on the object.
macro_rules! rows {
    ($($kind:ident $act:literal $label:literal $danger:literal [$($name:ident $word:expr),*] $offered:expr;)*) => {
        &[$(Row {
            kind: Kind::$kind,
            act: $act,
            label: $label,
            danger: $danger,
            writes: &[$((names::$name, $word)),*],
            offered: |object| match object {
                Object::$kind(object) => $offered(object),
                _ => false,
            },
        }),*]
    };
}

/// All acts. The first that fits is the main one of the page.
pub const ROWS: &[Row] = rows! {
    Run "approve" "Approve" false [APPROVE Word::Checksum, APPROVED_BY Word::Person, COMMENT Word::Remark] may_approve;
    Run "deny" "Deny" false [DENY Word::Reason, DENIED_BY Word::Person] |run| waits(run) && !run.is_stopped();
    Run "withdraw" "Withdraw approval" false [APPROVE Word::Remove, APPROVED_BY Word::Remove, COMMENT Word::Remove] may_withdraw;
    Run "cancel" "Cancel" true [CANCEL Word::Reason, CANCELED_BY Word::Person] |run| !has_ended(run) && !run.is_stopped();
    Run "abandon" "Abandon apply" true [ABANDON Word::Reason, ABANDONED_BY Word::Person] is_lost;
    Run "recover" "Recover" false [RECOVER Word::Fixed("true"), ASKED_BY Word::Person] may_recover;
    Run "rerun" "Run again" false [RERUN Word::Fixed("true"), ASKED_BY Word::Person] may_rerun;
    Layer "plan" "Plan now" false [PLAN Word::Fixed("now"), REQUESTED_BY Word::Person]
        |layer| !is_suspended(layer) && layer.metadata.deletion_timestamp.is_none();
    Layer "suspend" "Suspend" false [SUSPEND Word::Fixed("true")] |layer| !is_suspended(layer);
    // `spec.suspend` is a field: people change it where the manifest is.
    Layer "resume" "Resume" false [SUSPEND Word::Remove, REQUESTED_BY Word::Person]
        |layer: &TerraformLayer| has(&layer.metadata, names::SUSPEND);
    Layer "confirm" "Confirm author" true [UNVERIFIED Word::Remove, REQUESTED_BY Word::Person]
        |layer: &TerraformLayer| has(&layer.metadata, names::UNVERIFIED);
    Repository "reconcile" "Check refs now" false [RECONCILE Word::Now] |_| true;
    // A person who may not read the namespace is offered both.
    Namespace "freeze" "Freeze" true [FREEZE Word::Fixed("true")] |of: &NamespaceState<'_>| of.frozen != Some(true);
    Namespace "unfreeze" "Unfreeze" true [FREEZE Word::Remove] |of: &NamespaceState<'_>| of.frozen != Some(false);
};

fn has(metadata: &kube::core::ObjectMeta, name: &str) -> bool {
    metadata
        .annotations
        .as_ref()
        .is_some_and(|all| all.contains_key(name))
}

fn has_ended(run: &TerraformRun) -> bool {
    run.status
        .as_ref()
        .is_some_and(crds::TerraformRunStatus::is_terminal)
}

fn result(run: &TerraformRun) -> Option<RunResult> {
    run.status.as_ref()?.result
}

fn has_claim(run: &TerraformRun) -> bool {
    run.status
        .as_ref()
        .is_some_and(|status| status.claim.is_some())
}

fn waits(run: &TerraformRun) -> bool {
    let phase = run.status.as_ref().and_then(|status| status.phase);
    phase == Some(Phase::AwaitingApproval) && run.plan().is_some() && !has_claim(run)
}

fn may_approve(run: &TerraformRun) -> bool {
    let annotations = run.metadata.annotations.as_ref();
    let is_approved = run.plan().is_some_and(|plan| {
        annotations.is_some_and(|all| approval::is_annotated(all, &plan.checksum))
    });
    waits(run) && !run.is_stopped() && !is_approved
}

fn may_withdraw(run: &TerraformRun) -> bool {
    has(&run.metadata, names::APPROVE) && !has_claim(run) && !has_ended(run)
}

/// As `pawl-approval` has it.
fn is_lost(run: &TerraformRun) -> bool {
    let Some(status) = run.status.as_ref().filter(|status| status.claim.is_some()) else {
        return false;
    };
    let is_unreachable = status.conditions.iter().any(|condition| {
        condition.type_ == "Stalled"
            && condition.status == "True"
            && condition.reason == reason::NODE_UNREACHABLE
    });
    let is_lost = match status.phase {
        Some(Phase::Apply) => is_unreachable,
        _ => status.result == Some(RunResult::Indeterminate) && status.lease.is_some(),
    };
    is_lost && !has(&run.metadata, names::ABANDON)
}

/// As `pawl-creation` has it.
fn may_recover(run: &TerraformRun) -> bool {
    let failed = matches!(
        result(run),
        Some(RunResult::Failed | RunResult::Indeterminate)
    );
    let answered = run
        .status
        .as_ref()
        .is_some_and(|status| status.recovery.is_some());
    failed && has_claim(run) && !answered && !has(&run.metadata, names::RECOVER)
}

fn may_rerun(run: &TerraformRun) -> bool {
    let answered = run
        .status
        .as_ref()
        .is_some_and(|status| status.rerun.is_some());
    result(run).is_some() && !answered && !has(&run.metadata, names::RERUN)
}

fn is_suspended(layer: &TerraformLayer) -> bool {
    layer.spec.suspend || names::is_on(&layer.metadata, names::SUSPEND)
}

/// The act that the run's phase, result and reason suggest; [`super::next`] leaves it out where it is not offered.
pub(super) fn next(run: &TerraformRun) -> Option<&'static str> {
    let status = run.status.as_ref()?;
    if waits(run) {
        return Some("approve");
    }
    if is_lost(run) {
        return Some("abandon");
    }
    match status.result? {
        RunResult::Expired => Some("rerun"),
        RunResult::Failed | RunResult::Indeterminate => {
            let unrecorded = status
                .journal
                .as_ref()
                .is_some_and(crds::Journal::wants_recovery);
            let reason = status
                .failure
                .as_ref()
                .map(|failure| failure.reason.as_str());
            if unrecorded {
                Some("recover")
            } else {
                reason
                    .filter(|reason| next_step::is_rerun(reason))
                    .map(|_| "rerun")
            }
        }
        RunResult::NoChanges
        | RunResult::Planned
        | RunResult::Applied
        | RunResult::Destroyed
        | RunResult::Drifted
        | RunResult::Rejected
        | RunResult::Canceled
        | RunResult::Superseded
        | RunResult::Unknown => None,
    }
}
