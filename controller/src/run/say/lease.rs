//! The lease on the state: the queue for it, its record, its return, and a lock that was left on the state.

use kube::ResourceExt as _;
use serde_json::json;

use super::patch::StatusPatch;
use crate::run::{
    expectations::WaitReason,
    outcome::{Lease, Retained},
};
use crds::{Phase, conditions, names, reason, text::clip};

/// The reason and the text of a wait.
pub(in crate::run) fn words(why: &WaitReason) -> (&'static str, String) {
    match why {
        WaitReason::Turn { first, place } => (
            reason::QUEUED,
            format!("waits for its turn on the state behind {first}, in place {place}"),
        ),
        WaitReason::Refused(text) => (reason::LEASE_REFUSED, text.clone()),
        WaitReason::Frozen(frozen) => (reason::FROZEN, frozen.to_string()),
        WaitReason::SlotsFull(full) => (reason::SLOTS_FULL, full.to_string()),
        WaitReason::Source(text) => (reason::SOURCE_NOT_READY, text.clone()),
        WaitReason::Datastore(text) => (
            reason::DATASTORE_UNAVAILABLE,
            format!("waits for the datastore: {text}"),
        ),
    }
}

/// The message of a run that waits without a pod.
pub(super) fn waits_message(patch: &mut StatusPatch<'_>, why: &WaitReason, text: &str) {
    let status = patch.status();
    let planned = status
        .plan
        .as_ref()
        .filter(|_| status.phase == Some(Phase::AwaitingApproval));
    let message = planned.map_or_else(
        || text.to_owned(),
        |plan| format!("plan {} is approved; {text}; no pod is held", plan.summary),
    );
    patch.message(&message).clear("nextStep");
    if let WaitReason::Frozen(frozen) = why {
        patch.set("nextStep", frozen.next_step());
    }
}

/// The run has the lease.
pub(super) fn taken(patch: &mut StatusPatch<'_>, lease: &Lease) {
    let at = patch.time();
    patch.set(
        "lease",
        json!({"stateKey": lease.key, "name": lease.name, "at": at}),
    );
    patch.condition(
        conditions::STATE_LEASED,
        Some(true),
        reason::LEASED,
        "it is this run's turn on the state",
    );
}

/// The run waits for the lease. While an attempt is open, its agent owns the message.
pub(super) fn queued(patch: &mut StatusPatch<'_>, why: &WaitReason) {
    let (status, (reason, text)) = (patch.status(), words(why));
    let told = status.condition(conditions::STATE_LEASED, reason);
    // The text of SlotsFull has a number that changes with the queue, so it is written once.
    if told.is_some_and(|c| reason == reason::SLOTS_FULL || c.message == clip(&text, 512)) {
        return;
    }
    patch.condition(conditions::STATE_LEASED, Some(false), reason, &text);
    if told.is_none() {
        patch.note(reason, reason == reason::LEASE_REFUSED, text.clone());
    }
    if status.attempt.as_ref().is_none_or(|attempt| !attempt.open) {
        waits_message(patch, why, &text);
    }
}

/// The same without a pod: the message reports the wait.
pub(super) fn queued_to_open(patch: &mut StatusPatch<'_>, why: &WaitReason) {
    queued(patch, why);
    if conditions::status(&patch.status().conditions, conditions::STALLED) == Some(true) {
        // The trouble that blocked the run before is over.
        patch.condition(conditions::STALLED, Some(false), reason::PROGRESSING, "");
        patch.message(&words(why).1).clear("nextStep");
    }
    if !patch.is_empty() {
        patch.pending();
    }
}

/// Returns the lease: no process of the run can apply any more.
pub(super) fn give_back(patch: &mut StatusPatch<'_>) {
    if patch.status().lease.is_some() {
        patch.clear("lease");
        patch.forget(conditions::STATE_LEASED);
    }
}

/// An ended run retains its lease. `abandonable`: a person may abandon its apply.
pub(super) fn retained(patch: &mut StatusPatch<'_>, why: &Retained, abandonable: bool) {
    let may_run = |why: &str| format!("retained, because the apply may still run: {why}");
    let mut text = match why {
        Retained::Lock(text) => format!(
            "retained until the lock that the apply may have left on its state is released: {text}"
        ),
        Retained::EndUnconfirmed => may_run("the end of its pod is not confirmed"),
        Retained::MayRun(text) => may_run(text),
    } + "; other runs of this state wait";
    if abandonable {
        let run = patch.run();
        let command = names::abandon_command(&run.namespace().unwrap_or_default(), &run.name_any());
        text = format!("{text}. To abandon the apply: {command}");
    }
    let conditions = &patch.status().conditions;
    if !conditions
        .iter()
        .any(|c| c.type_ == conditions::STATE_LEASED && c.message == clip(&text, 512))
    {
        patch.condition(
            conditions::STATE_LEASED,
            Some(true),
            reason::APPLY_UNCONFIRMED,
            &text,
        );
    }
}

/// The pod ended to wait for the state. It did not fail.
pub(super) fn requeued(patch: &mut StatusPatch<'_>) {
    let waits = patch
        .status()
        .condition(conditions::STATE_LEASED, reason::QUEUED);
    patch
        .uncount()
        .set("phase", Phase::Pending)
        .clear("failure")
        .clear("nextStep");
    patch.message(waits.map_or("it is this run's turn on the state", |c| c.message.as_str()));
    patch.condition_if_new(conditions::PLANNED, Some(false), reason::QUEUED, "");
}

/// A process that has ended left the lock which blocks the run.
pub(super) fn lock_left(patch: &mut StatusPatch<'_>, by: &str) {
    let Some(lock) = &patch.status().state_lock else {
        return;
    };
    patch.set(
        "lockRelease",
        json!({"id": lock.id, "holder": clip(by, 256)}),
    );
    patch.note(
        "LockReleased",
        false,
        format!("the lock {} was left by {by}; it may be released", lock.id),
    );
}
