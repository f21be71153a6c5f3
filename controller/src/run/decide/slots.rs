//! Whether something new may begin: nothing is frozen, and a slot is free (`design/0031-slots.md`).
//!
//! A lease comes before a slot: whoever waits for one thing holds nothing that another waits for.

use jiff::Timestamp;

use super::draft::Draft;
use crate::{
    run::{
        decision::{Action, Decision, Kind, Write},
        observed::Observed,
        situation::OpenAttempt,
    },
    slots::{Class, Slot},
};
use crds::{Phase, conditions, reason};

/// What an apply that a person approved is to do about its slot.
pub(super) enum Gate {
    Open,
    Ask,
    /// Wait, for this reason and in these words.
    Shut(&'static str, String),
}

/// Whether an attempt may go over to an apply that a person approved, or the lease for it may be taken: without one that is open the
/// slot comes later, with the next.
pub(super) fn gate(o: &Observed) -> Gate {
    if let Some(frozen) = &o.frozen {
        return Gate::Shut(reason::FROZEN, frozen.to_string());
    }
    match &o.slot {
        Slot::Free | Slot::Taken(Class::Apply) => Gate::Open,
        _ if o.run.open_attempt().is_none() => Gate::Open,
        Slot::Unasked | Slot::Taken(Class::Plan) => Gate::Ask,
        Slot::Full(full) => Gate::Shut(reason::SLOTS_FULL, full.to_string()),
    }
}

/// Before anything is asked of anybody: the run said already that it waits. The number of runs before it is written once, when it
/// begins to wait, so that no change of the queue causes a write.
pub(super) fn still_waits(o: &Observed) -> Option<Decision> {
    let said = |reason| o.status().condition(conditions::SUCCEEDED, reason);
    let waits = match (&o.frozen, &o.slot) {
        (Some(frozen), _) => said(reason::FROZEN).is_some_and(|c| c.message == frozen.to_string()),
        (None, Slot::Full(_)) => said(reason::SLOTS_FULL).is_some(),
        (None, Slot::Free | Slot::Unasked | Slot::Taken(_)) => false,
    };
    waits.then(Decision::wait)
}

/// Nothing new begins in the namespace: the run says so, and is looked at when that ends.
pub(super) fn frozen(o: &Observed, now: Timestamp) -> Option<Decision> {
    let frozen = o.frozen.as_ref()?;
    let mut draft = Draft::new(&o.run, now);
    waits(&mut draft, reason::FROZEN, &frozen.to_string());
    draft.set("nextStep", frozen.next_step());
    Some(Decision::act(Action::Write(draft.finish(Kind::Begin))))
}

/// Before an attempt of that class is opened: nothing (`None`), ask for its slot, or wait for one without a pod.
pub(super) fn before_opening(o: &Observed, class: Class, now: Timestamp) -> Option<Decision> {
    let full = match &o.slot {
        Slot::Free => return None,
        Slot::Taken(taken) if *taken == class => return None,
        Slot::Unasked | Slot::Taken(_) => return Some(Decision::act(Action::TakeSlot { class })),
        Slot::Full(full) => full,
    };
    if let Some(decision) = still_waits(o) {
        return Some(decision);
    }
    let mut draft = Draft::new(&o.run, now);
    waits(&mut draft, reason::SLOTS_FULL, &full.to_string());
    Some(Decision::act(Action::Write(draft.finish(Kind::Begin))))
}

/// Says why nothing begins.
fn waits(draft: &mut Draft<'_>, reason: &'static str, text: &str) {
    let status = draft.status();
    draft.pending();
    if conditions::status(&status.conditions, conditions::STALLED) == Some(true) {
        // Whatever held the run up before is over.
        draft.condition(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    }
    draft.condition(conditions::SUCCEEDED, None, reason, text);
    if status.condition(conditions::SUCCEEDED, reason).is_none() {
        draft.note(reason, false, text);
    }
    let planned = status.plan.as_ref().filter(|_| status.phase == Some(Phase::AwaitingApproval));
    let message =
        planned.map_or_else(|| text.to_owned(), |plan| format!("plan {} is approved; {text}; no pod is held", plan.summary));
    draft.message(&message).clear("nextStep");
}

/// What kept the run from beginning is over.
pub(super) fn goes_on(draft: &mut Draft<'_>) {
    let said = |reason| draft.status().condition(conditions::SUCCEEDED, reason).is_some();
    if said(reason::SLOTS_FULL) || said(reason::FROZEN) {
        draft.condition(conditions::SUCCEEDED, None, reason::RUNNING, "");
    }
}

/// Others wait for the slot of a pod that only waits itself: its agent is told to end as soon as the plan is kept.
pub(super) fn ends_hold(o: &Observed, open: &OpenAttempt<'_>, now: Timestamp) -> Option<Write> {
    let status = o.status();
    let goes_on = status.approval.is_some() && status.lease.is_some();
    if !o.slot_wanted || open.waiting.is_none() || goes_on || open.attempt.end_hold {
        return None;
    }
    let mut draft = Draft::new(&o.run, now);
    draft.set("attempt", serde_json::json!({"endHold": true}));
    Some(draft.finish(Kind::Conditions))
}
