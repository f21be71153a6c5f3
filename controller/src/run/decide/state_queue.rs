//! The lease on a state: who wants it, who holds it, and when it is given back (`design/0010-leases-and-locks.md`).
//!
//! A Lease object, one for each state and each group of namespaces that share it, names the run that took it last. Whether that run
//! still holds it is read from the run itself: `status.lease` says so from the write that records it to the write that takes it away,
//! which is the giving back.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::json;

use super::{
    draft::Draft,
    lost_node::{self, Abandon, Fate},
    slots::{self, Gate},
};
use crate::{
    run::{
        decision::{Action, Decision, Kind, Write},
        memory::Waits,
        observed::Observed,
        run_view::Status,
        timing::after,
    },
    runner_pod::gone_wait,
    settings::Settings,
    slots::Class,
    state_queue::lease::Taken,
};
use crds::{ApprovalMode, Phase, RunResult, TerraformRun, conditions, datastore::StateId, names, reason, state_key, text::clip};

/// How often the first in line looks whether the lease is free: its holder may be one that no watch of ours shows.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// How a run stands with the lease it wants.
pub(super) enum Turn {
    /// It has it; `true`: and the status does not say so yet.
    Has(bool),
    /// It may try to take it.
    Take,
    /// It has to ask for a slot first, as its pod is to go on with the apply at once.
    Slot,
    Waits(Waits),
}

pub(super) fn turn(o: &Observed, key: &str, now: Timestamp) -> Turn {
    if o.status().lease.as_ref().is_some_and(|lease| lease.state_key == key) {
        return Turn::Has(false);
    }
    if o.taken.as_ref().is_some_and(|(taken, _)| taken == key) {
        return Turn::Has(true);
    }
    // What a person approved is not begun while nothing is to begin; an Automatic run is under way.
    let manual = o.run.approval_mode() == ApprovalMode::Manual;
    if let (true, Some(frozen)) = (manual, &o.frozen) {
        return shut(key, reason::FROZEN, frozen.to_string(), now);
    }
    if let Some(waits) = o.notes.waits.as_ref().filter(|waits| waits.key == key && now < waits.retry_at) {
        return Turn::Waits(waits.clone());
    }
    if let Some(ahead) = &o.ahead {
        // Woken when the line moves; the time is for what no watch shows.
        let text = format!("waits for its turn on the state behind {}, in place {}", ahead.first, ahead.place);
        let retry_at = after(now, LOOK_AGAIN * 6);
        return Turn::Waits(Waits { key: key.to_owned(), reason: reason::QUEUED, text, retry_at });
    }
    match slots::gate(o) {
        _ if !manual => Turn::Take,
        Gate::Open => Turn::Take,
        Gate::Ask => Turn::Slot,
        Gate::Shut(reason, text) => shut(key, reason, text, now),
    }
}

/// Woken when that is over; the time is for nothing but a second look.
fn shut(key: &str, reason: &'static str, text: String, now: Timestamp) -> Turn {
    Turn::Waits(Waits { key: key.to_owned(), reason, text, retry_at: after(now, LOOK_AGAIN * 360) })
}

/// Why a run that tried to take the lease has to wait; `None` when it has it.
pub(in crate::run) fn refused(taken: &Taken, key: String, now: Timestamp) -> Option<Waits> {
    let retry_at = after(now, LOOK_AGAIN);
    match taken {
        Taken::Yes => None,
        Taken::Behind(first) => {
            let text = format!("waits for its turn on the state behind {first}, in place 1");
            Some(Waits { key, reason: reason::QUEUED, text, retry_at })
        }
        Taken::Refused(text) => Some(Waits { key, reason: reason::LEASE_REFUSED, text: text.clone(), retry_at }),
    }
}

/// Writes that the lease was taken, when one was.
pub(super) fn record(draft: &mut Draft<'_>, o: &Observed) {
    let Some((key, name)) = &o.taken else { return };
    let at = draft.time();
    draft.set("lease", json!({"stateKey": key, "name": name, "at": at}));
    draft.condition(conditions::STATE_LEASED, Some(true), reason::LEASED, "it is this run's turn on the state");
}

/// Says that the run waits, and for whom; in its message as well, which is the agent's while an attempt is open.
pub(super) fn say(draft: &mut Draft<'_>, waits: &Waits) {
    let status = draft.status();
    let told = status.condition(conditions::STATE_LEASED, waits.reason);
    // The text for a full queue has a number that changes with the queue: it is written once.
    if told.is_some_and(|c| waits.reason == reason::SLOTS_FULL || c.message == clip(&waits.text, 512)) {
        return;
    }
    draft.condition(conditions::STATE_LEASED, Some(false), waits.reason, &waits.text);
    if told.is_none() {
        draft.note(waits.reason, waits.reason == reason::LEASE_REFUSED, waits.text.clone());
    }
    if status.attempt.as_ref().is_some_and(|attempt| attempt.open) {
        return;
    }
    let planned = status.plan.as_ref().filter(|_| status.phase == Some(Phase::AwaitingApproval));
    let text = planned
        .map_or_else(|| waits.text.clone(), |plan| format!("plan {} is approved; {}; no pod is held", plan.summary, waits.text));
    draft.message(&text).clear("nextStep");
}

/// What a run that may apply is to do about its lease before anything else: nothing (`None`), take it, record it, or wait.
pub(super) fn before_claim(o: &Observed, key: &str, now: Timestamp) -> Option<Decision> {
    let mut draft = Draft::new(&o.run, now);
    match turn(o, key, now) {
        Turn::Has(false) => None,
        Turn::Has(true) => {
            record(&mut draft, o);
            Some(Decision::act(Action::Write(draft.finish(Kind::Lease))))
        }
        Turn::Take => Some(Decision::act(Action::TakeLease { key: key.to_owned() })),
        Turn::Slot => Some(Decision::act(Action::TakeSlot { class: Class::Apply })),
        Turn::Waits(waits) => {
            say(&mut draft, &waits);
            let mut decision = Decision::until(waits.retry_at, now);
            if !draft.is_empty() {
                decision.actions.push(Action::Write(draft.finish(Kind::Lease)));
            }
            Some(decision)
        }
    }
}

/// The same before an attempt is opened: the run waits without a pod and says so in its message.
pub(super) fn before_opening(o: &Observed, key: &str, now: Timestamp) -> Option<Decision> {
    match turn(o, key, now) {
        Turn::Has(_) => None,
        Turn::Take => Some(Decision::act(Action::TakeLease { key: key.to_owned() })),
        Turn::Slot => Some(Decision::act(Action::TakeSlot { class: Class::Apply })),
        Turn::Waits(waits) => {
            let mut draft = Draft::new(&o.run, now);
            say(&mut draft, &waits);
            if conditions::status(&o.status().conditions, conditions::STALLED) == Some(true) {
                // Whatever kept the run from its turn is over.
                draft.condition(conditions::STALLED, Some(false), reason::PROGRESSING, "");
                draft.message(&waits.text).clear("nextStep");
            }
            let mut decision = Decision::until(waits.retry_at, now);
            if !draft.is_empty() {
                draft.pending();
                decision.actions.push(Action::Write(draft.finish(Kind::Begin)));
            }
            Some(decision)
        }
    }
}

/// Gives the lease back: nothing of this run can apply any more.
pub(super) fn give_back(draft: &mut Draft<'_>) {
    if draft.status().lease.is_some() {
        draft.clear("lease");
        draft.forget(conditions::STATE_LEASED);
    }
}

/// Gives the lease back with the end of a run. An apply of which nobody knows the end may go on until its pod has ended, and one
/// that failed may have left the lock of its state: theirs is given back by [`confirmed`].
pub(super) fn give_back_at_end(draft: &mut Draft<'_>, result: RunResult) {
    let locks = may_leave_lock(draft.status(), result) && draft.whole().is_some_and(is_managed);
    if result != RunResult::Indeterminate && !locks {
        give_back(draft);
    }
}

/// Whether an apply with that result may have left the lock of its state. A tool that went through to its end has given it back.
fn may_leave_lock(status: &Status, result: RunResult) -> bool {
    status.claim.is_some() && !matches!(result, RunResult::Applied | RunResult::Destroyed)
}

/// Gives the lease of a run back that has ended; behind the lock that it may have left on a managed state, which nobody else may
/// take away, and of which nobody can say whose it was once the run is deleted.
fn give_back_ended(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let Some(run) = o.run.whole() else { return Decision::act(Action::Read) };
    let left = o.status().result.is_some_and(|result| may_leave_lock(o.status(), result));
    if left && is_managed(run) && settings.has_datastore() && !o.lock_released {
        return match &o.notes.unlock_failed {
            Some((at, text)) if now < after(*at, LOOK_AGAIN) => {
                let why = format!("kept until the lock that it may have left on its state is released: {text}");
                say_kept(o, why, after(*at, LOOK_AGAIN), now)
            }
            Some(_) | None => Decision::act(Action::ReleaseLock),
        };
    }
    let mut draft = Draft::new(&o.run, now);
    give_back(&mut draft);
    Decision::act(Action::Write(draft.finish(Kind::Lease)))
}

/// Whether the plan is of the state that the datastore keeps.
fn is_managed(run: &TerraformRun) -> bool {
    let namespace = run.namespace().unwrap_or_default();
    let key = run.status.as_ref().and_then(|status| status.plan.as_ref()).and_then(|plan| plan.state_key.as_deref());
    key == Some(state_key::managed(&namespace, &StateId::of(&run.name_any(), &run.spec)).as_str())
}

/// A run that has ended and still has its lease, when the end of its pod is certain, or a person answers for it.
pub(super) fn confirmed(o: &Observed, settings: &Settings, now: Timestamp) -> Option<Decision> {
    let status = o.status();
    status.lease.as_ref()?;
    let known = status.result != Some(RunResult::Indeterminate) || status.settled.is_some();
    let ended = o.own_pod().is_some_and(|pod| pod.ended.is_some());
    if known || ended || matches!(lost_node::fate(o), Fate::Over(_)) {
        return Some(give_back_ended(o, settings, now));
    }
    match lost_node::abandon(o, now) {
        Abandon::Yes(_) => Some(give_back_ended(o, settings, now)),
        Abandon::Waits(decision) => Some(decision),
        Abandon::No => None,
    }
}

/// A run that has ended and still has its lease, since nobody confirmed the end of its pod.
pub(super) fn unconfirmed(o: &Observed, settings: &Settings, now: Timestamp) -> Option<Decision> {
    let status = o.status();
    status.lease.as_ref()?;
    let Some(run) = o.run.whole() else { return Some(Decision::act(Action::Read)) };
    let ended = status.completion_time.as_ref().map_or(now, |at| at.0);
    let due = after(ended, gone_wait(run));
    if now < due {
        return Some(say_may_run(o, "the end of its pod is not confirmed", due, now));
    }
    if o.gone_pod_ended {
        return Some(give_back_ended(o, settings, now));
    }
    Some(match &o.notes.nodes_asked {
        Some((at, text)) if now < after(*at, LOOK_AGAIN * 6) => say_may_run(o, text, after(*at, LOOK_AGAIN * 6), now),
        Some(_) | None => Decision::act(Action::AskNodes),
    })
}

fn say_may_run(o: &Observed, why: &str, until: Timestamp, now: Timestamp) -> Decision {
    say_kept(o, format!("kept, as the apply may still run: {why}"), until, now)
}

fn say_kept(o: &Observed, why: String, until: Timestamp, now: Timestamp) -> Decision {
    let mut text = why + "; other runs of this state wait";
    // Elsewhere it has no effect.
    if matches!(lost_node::fate(o), Fate::Lost(_)) && !o.run.annotations().contains_key(names::ABANDON) {
        let command = names::abandon_command(&o.run.namespace().unwrap_or_default(), &o.run.name_any());
        text = format!("{text}. To give the apply up: {command}");
    }
    let mut draft = Draft::new(&o.run, now);
    let told = o.status().conditions.iter().any(|c| c.type_ == conditions::STATE_LEASED && c.message == clip(&text, 512));
    let mut decision = Decision::until(until, now);
    if !told {
        draft.condition(conditions::STATE_LEASED, Some(true), reason::APPLY_UNCONFIRMED, &text);
        decision.actions.push(Action::Write(draft.finish(Kind::Lease)));
    }
    decision
}

/// The pod of an Automatic run ended, since another run applies to its state: nothing failed, and no try is used up.
pub(super) fn queued(o: &Observed, now: Timestamp) -> Option<Write> {
    let (run, status) = (&o.run, o.status());
    let attempt = status.attempt.as_ref()?;
    let waits = status.condition(conditions::STATE_LEASED, reason::QUEUED);
    let automatic = run.approval_mode() == ApprovalMode::Automatic;
    let made = status.plan.as_ref().is_some_and(|plan| plan.attempt == attempt.number);
    if !automatic || !made || (waits.is_none() && status.lease.is_none()) {
        return None;
    }
    let mut draft = Draft::new(run, now);
    draft.uncount(attempt).set("phase", Phase::Pending).clear("failure").clear("nextStep");
    draft.message(waits.map_or("it is this run's turn on the state", |c| c.message.as_str()));
    draft.condition_if_new(conditions::PLANNED, Some(false), reason::QUEUED, "");
    Some(draft.finish(Kind::Close))
}
