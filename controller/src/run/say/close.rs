//! Attempts that end while their run continues.

use jiff::Timestamp;

use super::{
    approval, lease, node,
    patch::{StatusPatch, of_tries},
};
use crate::run::outcome::{Cause, NodeLoss};
use crds::{ApprovalMode, Changed, Failure, Phase, conditions, reason, text::clip};

/// The part of log and journal that the pod could not upload to the datastore.
pub(super) fn unkept(patch: &mut StatusPatch<'_>, text: Option<&str>) {
    if let Some(text) = text {
        patch
            .line("Log", text)
            .note("LogTruncated", true, clip(text, 400));
    }
}

/// The failure of an unclaimed attempt.
pub(super) fn failure(patch: &StatusPatch<'_>, cause: &Cause) -> Failure {
    match cause {
        Cause::Told(failure) => failure.clone(),
        Cause::PodEnded { reason, text } => {
            Failure::new(cause.class(), reason, text, Changed::None)
        }
        Cause::PodGone => Failure::new(
            cause.class(),
            reason::POD_GONE,
            &node::gone(patch, None),
            Changed::None,
        ),
    }
}

/// The attempt's try: `attempt 2 of at most 4`.
pub(super) fn tried(patch: &StatusPatch<'_>) -> String {
    of_tries(
        patch.run(),
        patch
            .status()
            .attempt
            .as_ref()
            .map_or(0, |attempt| attempt.tries),
    )
}

/// Another attempt makes a plan after a wait.
pub(super) fn retried(
    patch: &mut StatusPatch<'_>,
    cause: &Cause,
    left: Option<&str>,
    next: Timestamp,
) {
    patch.close();
    unkept(patch, left);
    let failure = failure(patch, cause);
    let text = format!(
        "{} ended: {}; the next begins at {}",
        tried(patch),
        failure.message,
        next.strftime("%H:%M:%S")
    );
    patch.failure(&failure).message(&text).line("Retry", &text);
    patch.condition(conditions::STALLED, Some(false), reason::RETRYING, &text);
    plans_again(patch);
    patch.note("Retrying", true, text);
}

/// The plan waits without a pod.
pub(super) fn plan_kept(patch: &mut StatusPatch<'_>, lost: Option<&Cause>) {
    patch.close();
    approval::waits(patch);
    patch.clear("failure");
    patch.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    if patch
        .status()
        .attempt
        .as_ref()
        .is_some_and(|attempt| attempt.restores.is_some())
    {
        // Its approval had been withdrawn, so it did not fail.
        patch.uncount();
    }
    if let Some(cause) = lost {
        let text = format!(
            "{}; the plan is kept and waits without it",
            failure(patch, cause).message
        );
        patch.line("Kept", &text).note("PlanKept", false, text);
    }
}

/// Another attempt restores the plan after a wait or after an approval.
pub(super) fn restore_retried(patch: &mut StatusPatch<'_>, cause: &Cause, next: Timestamp) {
    patch.close();
    let failure = failure(patch, cause);
    let text = format!(
        "{} to restore and apply the plan ended: {}",
        tried(patch),
        failure.message
    );
    let text = if patch.status().approval.is_some() {
        let text = format!("{text}; the next begins at {}", next.strftime("%H:%M:%S"));
        patch.message(&text).clear("nextStep");
        text
    } else {
        approval::waits(patch);
        format!("{text}; the plan is kept and waits for an approval")
    };
    patch.failure(&failure).line("Retry", &text);
    patch.condition_if_new(conditions::STALLED, Some(false), reason::RETRYING, &text);
    patch.note("Retrying", true, text);
}

/// The node is lost: the attempt did not fail.
pub(super) fn node_lost(patch: &mut StatusPatch<'_>, loss: &NodeLoss, plan_waits: bool) {
    let why = match loss {
        NodeLoss::Over(why) => why.clone(),
        NodeLoss::NotReady { node, pod } => format!("node {node} of pod {pod} is lost"),
    };
    patch.uncount().clear("failure");
    let text = if plan_waits {
        approval::waits(patch);
        format!("{why}; the plan is kept and waits without it")
    } else {
        let text = format!("{why}; another attempt begins, and no retry is used up");
        patch.message(&text);
        plans_again(patch);
        text
    };
    patch.condition_if_new(conditions::STALLED, Some(false), reason::RETRYING, &text);
    patch.line("Lost", &text).note("Retrying", true, text);
}

/// The next attempt makes a new plan.
fn plans_again(patch: &mut StatusPatch<'_>) {
    let (run, status) = (patch.run(), patch.status());
    patch.set("phase", Phase::Pending).clear("nextStep");
    patch.condition_if_new(conditions::PLANNED, Some(false), reason::RETRYING, "");
    if run.approval_mode() == ApprovalMode::Manual {
        // The plan was lost with its pod, and so was the approval.
        if status.approval.is_some() {
            patch.clear("approval");
        }
        lease::give_back(patch);
        patch.condition_if_new(conditions::APPROVED, Some(false), reason::RETRYING, "");
    }
}
