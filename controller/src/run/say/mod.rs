//! Words the outcomes of decisions. No other module writes conditions, messages, next steps, history lines and Events of a run.
//!
//! | module | words |
//! |---|---|
//! | [`patch`] | none: it builds the status write |
//! | [`attempt`] | attempts that begin, or cannot begin |
//! | [`node`] | pods at work, and their nodes |
//! | [`approval`] | waiting plans, and their approvals |
//! | [`revoke`] | revoked annotations of unverified authors |
//! | [`lease`] | the lease on the state, from the queue to its return |
//! | [`close`] | attempts that end while their run continues |
//! | [`end`] | ends of runs, and facts that arrive after them |

mod approval;
mod attempt;
mod close;
mod end;
mod lease;
mod node;
mod patch;
pub(super) mod revoke;

use jiff::Timestamp;

use super::{
    decision::{Kind, Write},
    outcome::{Action, Approval, Consent, Outcome},
    run_view::RunView,
};
use crds::Phase;
pub(super) use lease::words;
use patch::StatusPatch;

/// The status write that reports an outcome; `None` if the status reports it already.
pub(super) fn write(run: &RunView, now: Timestamp, outcome: &Outcome) -> Option<Write> {
    let mut patch = StatusPatch::new(run, now);
    tell(&mut patch, outcome);
    (!patch.is_empty()).then(|| patch.finish(kind(outcome)))
}

/// The action that writes an outcome; `None` if the status reports it already, for decisions that then have another action.
pub(super) fn news(run: &RunView, now: Timestamp, outcome: Outcome) -> Option<Action> {
    write(run, now, &outcome)
        .is_some()
        .then_some(Action::Write(outcome))
}

const fn kind(outcome: &Outcome) -> Kind {
    match outcome {
        Outcome::Noticed
        | Outcome::PolicyMissing(_)
        | Outcome::Blocked(_)
        | Outcome::QueuedToOpen(_) => Kind::Begin,
        Outcome::Opened { .. } | Outcome::RestoreOpened { .. } => Kind::Open,
        Outcome::NotStarting { .. } | Outcome::Starting { .. } => Kind::Start,
        Outcome::Approval(Approval {
            consent: Consent::Unproven(_),
            ..
        })
        | Outcome::Working(_)
        | Outcome::Datastore(_)
        | Outcome::HoldEnds
        | Outcome::Finished => Kind::Conditions,
        Outcome::Approval(_) | Outcome::ApprovalRemoved(_) | Outcome::ApprovalRevoked { .. } => {
            Kind::Approval
        }
        Outcome::NodeNotReady { .. } | Outcome::PodGone { .. } => Kind::Gone,
        Outcome::LockLeft { .. } => Kind::Lock,
        Outcome::LeaseTaken(_)
        | Outcome::QueuedToClaim(_)
        | Outcome::LeaseRetained { .. }
        | Outcome::LeaseReturned => Kind::Lease,
        Outcome::Requeued
        | Outcome::Retried { .. }
        | Outcome::PlanKept { .. }
        | Outcome::RestoreRetried { .. }
        | Outcome::NodeLost { .. }
        | Outcome::FinishedAndClosed { .. } => Kind::Close,
        Outcome::Ended(_) => Kind::End,
        Outcome::Settled { .. } => Kind::Settled,
        Outcome::Accounted(_) => Kind::Journal,
        Outcome::RerunCreated(_) | Outcome::RecoveryCreated(_) => Kind::Rerun,
    }
}

/// Words an outcome. The patch stays empty if the status reports it already.
fn tell(patch: &mut StatusPatch<'_>, outcome: &Outcome) {
    match outcome {
        Outcome::PolicyMissing(missing) => attempt::policy_missing(patch, missing),
        Outcome::QueuedToOpen(why) => lease::queued_to_open(patch, why),
        Outcome::NotStarting { trouble, until } => attempt::not_starting(patch, trouble, *until),
        Outcome::Starting { pod } => attempt::starting(patch, pod.as_deref()),
        Outcome::Working(working) => node::working(patch, working),
        Outcome::Datastore(away) => node::datastore(patch, away.as_deref()),
        Outcome::NodeNotReady {
            node,
            pod,
            retry_at,
            record,
        } => {
            node::not_ready(patch, node, pod, *retry_at, record.as_ref());
        }
        Outcome::Approval(told) => approval::approval(patch, told),
        Outcome::QueuedToClaim(why) => lease::queued(patch, why),
        Outcome::LeaseRetained { why, abandonable } => lease::retained(patch, why, *abandonable),
        Outcome::Noticed => {
            patch.set("phase", Phase::Pending);
        }
        Outcome::Blocked(why) => attempt::blocked(patch, why),
        Outcome::Opened { opening, lease } => attempt::opened(patch, opening, lease.as_ref()),
        Outcome::RestoreOpened { opening, by } => attempt::restore_opened(patch, opening, by),
        Outcome::HoldEnds => node::hold_ends(patch),
        Outcome::PodGone { node, record } => {
            node::pod_gone(patch, node.as_deref(), record.as_ref());
        }
        Outcome::LockLeft { by } => lease::lock_left(patch, by),
        Outcome::ApprovalRemoved(why) => approval::removed(patch, why),
        Outcome::ApprovalRevoked { by } => revoke::unverified(patch, by.as_deref()),
        Outcome::LeaseTaken(taken) => lease::taken(patch, taken),
        Outcome::LeaseReturned => lease::give_back(patch),
        Outcome::Requeued => lease::requeued(patch),
        Outcome::Retried {
            cause,
            unkept,
            next,
        } => close::retried(patch, cause, unkept.as_deref(), *next),
        Outcome::PlanKept { lost } => close::plan_kept(patch, lost.as_ref()),
        Outcome::RestoreRetried { cause, next } => close::restore_retried(patch, cause, *next),
        Outcome::NodeLost { loss, plan_waits } => close::node_lost(patch, loss, *plan_waits),
        Outcome::Ended(end) => end::ended(patch, end),
        Outcome::Finished => end::finished(patch),
        Outcome::FinishedAndClosed {
            unkept,
            returns_lease,
        } => {
            end::finished_and_closed(patch, unkept.as_deref(), *returns_lease);
        }
        Outcome::Settled { result, message } => end::settled(patch, *result, message),
        Outcome::Accounted(journal) => end::accounted(patch, journal),
        Outcome::RerunCreated(name) => end::rerun_created(patch, name),
        Outcome::RecoveryCreated(name) => end::recovery_created(patch, name),
    }
}
