//! Words the outcomes of decisions. Conditions, messages, next steps, lines of the history and Events of a run are written here and nowhere
//! else.
//!
//! | module | words |
//! |---|---|
//! | [`patch`] | nothing: it builds the status write |
//! | [`attempt`] | attempts that begin, and what keeps one from beginning |
//! | [`node`] | pods at work, and their nodes |
//! | [`approval`] | plans that wait, and their approvals |
//! | [`lease`] | the lease on the state, from the queue to its return |
//! | [`close`] | attempts that end while their run goes on |
//! | [`end`] | ends of runs, and what is learned after them |

pub(super) mod approval;
mod attempt;
mod close;
mod end;
pub(super) mod lease;
mod node;
pub(super) mod patch;

use jiff::Timestamp;

use super::{
    decision::{Kind, Write},
    outcome::{Action, Outcome},
    run_view::RunView,
};
use crds::Phase;
use patch::StatusPatch;

/// The status write that tells an outcome; `None` when the run tells it already.
pub(super) fn write(run: &RunView, now: Timestamp, outcome: &Outcome) -> Option<Write> {
    let mut patch = StatusPatch::new(run, now);
    let kind = kind(&mut patch, outcome)?;
    Some(patch.finish(kind))
}

/// The order to write an outcome; `None` when the run tells it already.
pub(super) fn news(run: &RunView, now: Timestamp, outcome: Outcome) -> Option<Action> {
    write(run, now, &outcome).is_some().then_some(Action::Write(outcome))
}

/// Puts an outcome into words, and tells what kind of write it is.
fn kind(patch: &mut StatusPatch<'_>, outcome: &Outcome) -> Option<Kind> {
    // A write that may tell nothing new.
    let news = |is_new: bool, kind| is_new.then_some(kind);
    // Any other write.
    let of = |kind, (): ()| Some(kind);
    match outcome {
        Outcome::Noticed => {
            patch.set("phase", Phase::Pending);
            Some(Kind::Begin)
        }
        Outcome::PolicyMissing(missing) => news(attempt::policy_missing(patch, missing), Kind::Begin),
        Outcome::Blocked(why) => of(Kind::Begin, attempt::blocked(patch, why)),
        Outcome::QueuedToOpen(why) => news(lease::queued_to_open(patch, why), Kind::Begin),
        Outcome::Opened { opening, lease } => of(Kind::Open, attempt::opened(patch, opening, lease.as_ref())),
        Outcome::RestoreOpened { opening, by } => of(Kind::Open, attempt::restore_opened(patch, opening, by)),
        Outcome::NotStarting { trouble, until } => news(attempt::not_starting(patch, trouble, *until), Kind::Start),
        Outcome::Starting => news(attempt::starting(patch), Kind::Start),
        Outcome::Working(working) => news(node::working(patch, working), Kind::Conditions),
        Outcome::HoldEnds => of(Kind::Conditions, node::hold_ends(patch)),
        Outcome::NodeNotReady { node, pod, retry_at, record } => {
            news(node::not_ready(patch, node, pod, *retry_at, record.as_ref()), Kind::Gone)
        }
        Outcome::PodGone { node, record } => of(Kind::Gone, node::pod_gone(patch, node.as_deref(), record.as_ref())),
        Outcome::LockLeft { by } => of(Kind::Lock, lease::lock_left(patch, by)),
        Outcome::Approval(told) => approval::approval(patch, told),
        Outcome::ApprovalRemoved(why) => of(Kind::Approval, approval::removed(patch, why)),
        Outcome::LeaseTaken(taken) => of(Kind::Lease, lease::taken(patch, taken)),
        Outcome::QueuedToClaim(why) => news(lease::queued_to_claim(patch, why), Kind::Lease),
        Outcome::Requeued => of(Kind::Close, lease::requeued(patch)),
        Outcome::Retried { cause, unkept, next } => of(Kind::Close, close::retried(patch, cause, unkept.as_deref(), *next)),
        Outcome::PlanKept { lost } => of(Kind::Close, close::plan_kept(patch, lost.as_ref())),
        Outcome::RestoreRetried { cause, next } => of(Kind::Close, close::restore_retried(patch, cause, *next)),
        Outcome::NodeLost { loss, plan_waits } => of(Kind::Close, close::node_lost(patch, loss, *plan_waits)),
        Outcome::Ended(end) => of(Kind::End, end::ended(patch, end)),
        Outcome::Finished => of(Kind::Conditions, end::finished(patch)),
        Outcome::FinishedAndClosed { unkept, returns_lease } => {
            of(Kind::Close, end::finished_and_closed(patch, unkept.as_deref(), *returns_lease))
        }
        Outcome::LeaseRetained { why, abandonable } => news(lease::retained(patch, why, *abandonable), Kind::Lease),
        Outcome::LeaseReturned => of(Kind::Lease, lease::give_back(patch)),
        Outcome::Settled { result, message } => of(Kind::Settled, end::settled(patch, *result, message)),
        Outcome::Accounted(journal) => of(Kind::Journal, end::accounted(patch, journal)),
        Outcome::RerunCreated(name) => of(Kind::Rerun, end::rerun_created(patch, name)),
        Outcome::RecoveryCreated(name) => of(Kind::Rerun, end::recovery_created(patch, name)),
    }
}
