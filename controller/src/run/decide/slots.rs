//! Whether an attempt may begin: nothing is frozen, and a slot is free (`design/0031-slots.md`).
//!
//! A run takes its lease before its slot, so a run that waits for one resource holds none that another run waits for.

use crate::{
    run::{
        expectations::WaitReason,
        outcome::{Action, Decision, Outcome},
        situation::{OpenAttempt, Situation},
    },
    slots::{Class, Slot},
};
use crds::{conditions, reason};

/// Whether the slots admit an approved apply.
pub(super) enum Gate {
    Open,
    Ask,
    Shut(WaitReason),
}

/// Whether the open attempt may start an approved apply, or the lease for it may be taken. Without an open attempt the next one asks for
/// the slot.
pub(super) fn gate(s: &Situation<'_>) -> Gate {
    if let Some(frozen) = s.frozen {
        return Gate::Shut(WaitReason::Frozen(frozen.clone()));
    }
    match s.slot {
        Slot::Free | Slot::Taken(Class::Apply) => Gate::Open,
        _ if s.run.open_attempt().is_none() => Gate::Open,
        Slot::Unasked | Slot::Taken(Class::Plan) => Gate::Ask,
        Slot::Full(full) => Gate::Shut(WaitReason::SlotsFull(full.clone())),
    }
}

/// The status reports the wait already. Its numbers are written once, when the wait begins, so that a change of the queue causes no write.
pub(super) fn still_waits(s: &Situation<'_>) -> Option<Decision> {
    let said = |reason| s.status().condition(conditions::SUCCEEDED, reason);
    let waits = match (s.frozen, s.slot) {
        (Some(frozen), _) => said(reason::FROZEN).is_some_and(|c| c.message == frozen.to_string()),
        (None, Slot::Full(_)) => said(reason::SLOTS_FULL).is_some(),
        (None, Slot::Free | Slot::Unasked | Slot::Taken(_)) => false,
    };
    waits.then(Decision::wait)
}

/// The namespace is frozen: reports it. The end of the freeze triggers a reconcile.
pub(super) fn frozen(s: &Situation<'_>) -> Option<Decision> {
    s.frozen
        .map(|frozen| Decision::write(Outcome::Blocked(WaitReason::Frozen(frozen.clone()))))
}

/// Before an attempt of that class is opened: `None` when it has its slot; otherwise requests one, or waits for one without a pod.
pub(super) fn before_opening(s: &Situation<'_>, class: Class) -> Option<Decision> {
    let full = match s.slot {
        Slot::Free => return None,
        Slot::Taken(taken) if *taken == class => return None,
        Slot::Unasked | Slot::Taken(_) => return Some(Decision::act(Action::TakeSlot { class })),
        Slot::Full(full) => full,
    };
    let blocked = || Decision::write(Outcome::Blocked(WaitReason::SlotsFull(full.clone())));
    Some(still_waits(s).unwrap_or_else(blocked))
}

/// Whether a waiting pod must free its slot for other runs. Its agent then ends the hold as soon as the datastore has the plan.
pub(super) fn ends_hold(s: &Situation<'_>, open: &OpenAttempt<'_>) -> bool {
    let status = s.status();
    let goes_on = status.approval.is_some() && status.lease.is_some();
    s.slot_wanted && open.waiting.is_some() && !goes_on && !open.attempt.end_hold
}
