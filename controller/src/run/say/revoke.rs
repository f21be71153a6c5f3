//! Annotations and creations that were revoked: the admission policies were not enforced when they were set.

use super::patch::StatusPatch;
use crds::{conditions, reason, text::clip};

const WHY: &str = "was removed: the admission policies were not enforced when it was set, so its author is unverified";

/// Reports a removed request or abandon.
pub(in crate::run) fn order(annotation: &str) -> String {
    format!("{annotation} {WHY}. Set it again.")
}

/// Reports a removed approval. `manual`: the run needs another one.
pub(in crate::run) fn approval(by: Option<&str>, manual: bool) -> String {
    let whose = by.map_or_else(
        || "An approval".to_owned(),
        |by| format!("{}'s approval", clip(by, 80)),
    );
    let then = if manual {
        "Nothing was applied. Approve again."
    } else {
        "The run approves itself."
    };
    format!("{whose} {WHY}. {then}")
}

/// Why a run that has not begun is canceled.
pub(in crate::run) fn creation(asks: &str) -> String {
    format!(
        "the run {asks}, and the admission policies were not enforced when it was created, so its author is unverified. Create it again"
    )
}

/// Reports the removed approval. The record of the approval is removed as with any withdrawal.
pub(super) fn unverified(patch: &mut StatusPatch<'_>, by: Option<&str>) {
    patch.condition(
        conditions::APPROVED,
        Some(false),
        reason::UNVERIFIED,
        &approval(by, true),
    );
}
