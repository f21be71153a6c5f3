//! The lease on a state: who requests it, who holds it, and when it is returned (`design/0010-leases-and-locks.md`).
//!
//! A Lease object, one for each state and each group of namespaces that share it, names the run that took it last. The run itself tells
//! whether it still holds the lease: `status.lease` is set from the write that records it to the write that returns it.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::{
    lost_node::{self, Abandon},
    slots::{self, Gate},
};
use crate::{
    run::{
        expectations::{LeaseWait, WaitReason},
        outcome::{Action, Decision, Lease, Outcome, Retained},
        run_view::Status,
        say,
        situation::{Fate, Situation},
        timing::after,
    },
    runner_pod::gone_wait,
    slots::Class,
    state_queue::lease::Taken,
};
use crds::{
    ApprovalMode, RunResult, TerraformRun, conditions, datastore::StateId, names, reason, state_key,
};

/// Interval at which the first run in the queue checks whether the lease is free: the holder may be outside of every watch.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// The fallback for a run that the end of its wait wakes.
const SECOND_LOOK: SignedDuration = SignedDuration::from_hours(1);

/// A run's position towards the lease that it requests.
pub(super) enum Turn {
    /// The status records the lease.
    Has,
    /// Taken, and not yet recorded in the status.
    Taken(Lease),
    /// The run may try to take it.
    Take,
    /// The run has to ask for a slot first, as its pod starts the apply at once.
    Slot,
    Waits(LeaseWait),
}

pub(super) fn turn(s: &Situation<'_>, key: &str) -> Turn {
    if s.status()
        .lease
        .as_ref()
        .is_some_and(|lease| lease.state_key == key)
    {
        return Turn::Has;
    }
    if let Some(lease) = taken(s).filter(|lease| lease.key == key) {
        return Turn::Taken(lease);
    }
    let waits = |why, wait| {
        Turn::Waits(LeaseWait {
            key: key.to_owned(),
            why,
            retry_at: after(s.now, wait),
        })
    };
    // A freeze stops an approved plan. An Automatic run is in progress already.
    let manual = s.run.approval_mode() == ApprovalMode::Manual;
    if let (true, Some(frozen)) = (manual, s.frozen) {
        return waits(WaitReason::Frozen(frozen.clone()), SECOND_LOOK);
    }
    if let Some(waits) = s
        .notes
        .waits
        .as_ref()
        .filter(|waits| waits.key == key && s.now < waits.retry_at)
    {
        return Turn::Waits(waits.clone());
    }
    if let Some(ahead) = s.ahead {
        // A move of the queue wakes the run. The time is for holders outside of every watch.
        return waits(
            WaitReason::Turn {
                first: ahead.first.clone(),
                place: ahead.place,
            },
            LOOK_AGAIN * 6,
        );
    }
    match slots::gate(s) {
        _ if !manual => Turn::Take,
        Gate::Open => Turn::Take,
        Gate::Ask => Turn::Slot,
        Gate::Shut(why) => waits(why, SECOND_LOOK),
    }
}

/// The lease that was taken for the run and that its status does not record yet.
pub(super) fn taken(s: &Situation<'_>) -> Option<Lease> {
    s.taken.map(|(key, name)| Lease {
        key: key.clone(),
        name: name.clone(),
    })
}

/// Why a run that tried to take the lease has to wait; `None` if it has the lease.
pub(in crate::run) fn refused(taken: &Taken, key: String, now: Timestamp) -> Option<LeaseWait> {
    let why = match taken {
        Taken::Yes => return None,
        Taken::Behind(first) => WaitReason::Turn {
            first: first.clone(),
            place: 1,
        },
        Taken::Refused(text) => WaitReason::Refused(text.clone()),
    };
    Some(LeaseWait {
        key,
        why,
        retry_at: after(now, LOOK_AGAIN),
    })
}

/// The decision about the lease before the claim of a run that may apply; `None`: it has the lease.
pub(super) fn before_claim(s: &Situation<'_>, key: &str) -> Option<Decision> {
    match turn(s, key) {
        Turn::Has => None,
        Turn::Taken(lease) => Some(Decision::write(Outcome::LeaseTaken(lease))),
        Turn::Take => Some(Decision::act(Action::TakeLease {
            key: key.to_owned(),
        })),
        Turn::Slot => Some(Decision::act(Action::TakeSlot {
            class: Class::Apply,
        })),
        Turn::Waits(waits) => Some(queued(s, Outcome::QueuedToClaim(waits.why), waits.retry_at)),
    }
}

/// The same before an attempt is opened: the run waits without a pod and reports it in its message. The write that opens the attempt
/// records a taken lease.
pub(super) fn before_opening(s: &Situation<'_>, key: &str) -> Option<Decision> {
    match turn(s, key) {
        Turn::Has | Turn::Taken(_) => None,
        Turn::Take => Some(Decision::act(Action::TakeLease {
            key: key.to_owned(),
        })),
        Turn::Slot => Some(Decision::act(Action::TakeSlot {
            class: Class::Apply,
        })),
        Turn::Waits(waits) => Some(queued(s, Outcome::QueuedToOpen(waits.why), waits.retry_at)),
    }
}

/// Waits until `until` at the latest. Writes the outcome unless the status reports it already.
pub(super) fn queued(s: &Situation<'_>, outcome: Outcome, until: Timestamp) -> Decision {
    let mut decision = Decision::until(until, s.now);
    decision.actions.extend(say::news(s.run, s.now, outcome));
    decision
}

/// Whether the write that ends the run returns the lease. An apply whose end is unknown may continue until its pod has ended, and a failed
/// one may have left the lock of its state: [`confirmed`] returns their leases.
pub(super) fn returns_at_end(s: &Situation<'_>, result: RunResult) -> bool {
    let locks =
        may_leave_lock(s.status(), result) && s.run.whole().is_some_and(|run| is_managed(run));
    result != RunResult::Indeterminate && !locks
}

/// Whether an apply with that result may have left the lock of its state. A tool that ran to its end has released it.
fn may_leave_lock(status: &Status, result: RunResult) -> bool {
    status.claim.is_some() && !matches!(result, RunResult::Applied | RunResult::Destroyed)
}

/// Releases the lock that an ended run may have left on a managed state, then returns the run's lease. No other run may remove that lock,
/// and its owner is unknown once the run is deleted.
fn give_back_ended(s: &Situation<'_>) -> Decision {
    let Some(run) = s.run.whole() else {
        return Decision::act(Action::Read);
    };
    let left = s
        .status()
        .result
        .is_some_and(|result| may_leave_lock(s.status(), result));
    if left && is_managed(run) && s.settings.has_datastore() && !s.lock_released {
        return match &s.notes.unlock_failed {
            Some((at, text)) if s.now < after(*at, LOOK_AGAIN) => {
                retained(s, Retained::Lock(text.clone()), after(*at, LOOK_AGAIN))
            }
            Some(_) | None => Decision::act(Action::ReleaseLock),
        };
    }
    Decision::write(Outcome::LeaseReturned)
}

/// Whether the plan is for the state that the datastore manages.
fn is_managed(run: &TerraformRun) -> bool {
    let namespace = run.namespace().unwrap_or_default();
    let key = run
        .status
        .as_ref()
        .and_then(|status| status.plan.as_ref())
        .and_then(|plan| plan.state_key.as_deref());
    key == Some(state_key::managed(&namespace, &StateId::of(&run.name_any(), &run.spec)).as_str())
}

/// For an ended run that still has its lease: returns it when the end of the pod is certain, or when a person abandons the apply.
pub(super) fn confirmed(s: &Situation<'_>) -> Option<Decision> {
    let status = s.status();
    status.lease.as_ref()?;
    let known = status.result != Some(RunResult::Indeterminate) || status.settled.is_some();
    let ended = s.own_pod.is_some_and(|pod| pod.ended.is_some());
    if known || ended || matches!(s.fate, Fate::Over(_)) {
        return Some(give_back_ended(s));
    }
    match lost_node::abandon(s) {
        Abandon::Yes(_) => Some(give_back_ended(s)),
        Abandon::Waits(decision) => Some(decision),
        Abandon::No => None,
    }
}

/// An ended run that still has its lease, while the end of its pod is not confirmed.
pub(super) fn unconfirmed(s: &Situation<'_>) -> Option<Decision> {
    let status = s.status();
    status.lease.as_ref()?;
    let Some(run) = s.run.whole() else {
        return Some(Decision::act(Action::Read));
    };
    let ended = status.completion_time.as_ref().map_or(s.now, |at| at.0);
    let due = after(ended, gone_wait(run));
    if s.now < due {
        return Some(retained(s, Retained::EndUnconfirmed, due));
    }
    if s.gone_pod_ended {
        return Some(give_back_ended(s));
    }
    Some(match &s.notes.nodes_asked {
        Some((at, text)) if s.now < after(*at, LOOK_AGAIN * 6) => retained(
            s,
            Retained::MayRun(text.clone()),
            after(*at, LOOK_AGAIN * 6),
        ),
        Some(_) | None => Decision::act(Action::AskNodes),
    })
}

fn retained(s: &Situation<'_>, why: Retained, until: Timestamp) -> Decision {
    // The annotation has no effect unless the node is lost.
    let abandonable =
        matches!(s.fate, Fate::Lost(_)) && !s.run.annotations().contains_key(names::ABANDON);
    queued(s, Outcome::LeaseRetained { why, abandonable }, until)
}

/// Whether the pod of an Automatic run ended because another run applies to its state. It did not fail, so it uses up no try.
pub(super) fn is_queued(s: &Situation<'_>) -> bool {
    let status = s.status();
    let automatic = s.run.approval_mode() == ApprovalMode::Automatic;
    let made = status
        .attempt
        .as_ref()
        .zip(status.plan.as_ref())
        .is_some_and(|(attempt, plan)| plan.attempt == attempt.number);
    let waits = status
        .condition(conditions::STATE_LEASED, reason::QUEUED)
        .is_some();
    automatic && made && (waits || status.lease.is_some())
}
