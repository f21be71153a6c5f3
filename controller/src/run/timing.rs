//! How long everything waits.

use std::time::Duration;

use crds::{Attempt, PlanStatus, backoff::Backoff};
use jiff::{SignedDuration, Timestamp};

use super::run_view::RunView;

/// How long the agent has to carry out a cancel, deny or deletion before its pod is deleted.
pub(super) const ASK_GRACE: SignedDuration = SignedDuration::from_secs(30);
/// How long that pod then has to end before its attempt is closed without it: before the claim the closing is the fence.
pub(super) const END_GRACE: SignedDuration = SignedDuration::from_secs(20);
/// How long a claimed attempt's pod has to be gone before the run is Indeterminate.
pub(super) const GONE_WAIT: SignedDuration = SignedDuration::from_secs(60);
/// How long after its creation a pod may be missing from the cache before somebody looks for it.
pub(super) const CREATION_LAG: SignedDuration = SignedDuration::from_secs(5);
/// How long a claim has to be there before an Automatic run's conditions say so: short runs save the write.
pub(super) const LATE_CONDITIONS: SignedDuration = SignedDuration::from_secs(2);

/// Between attempts of a run.
const ATTEMPTS: Backoff = Backoff { base: Duration::from_secs(10), cap: Duration::from_secs(300) };
/// Between calls that fail, or are refused.
pub(super) const CALLS: Backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(30) };
/// Between questions to the datastore.
pub(super) const QUESTIONS: Backoff = Backoff { base: Duration::from_secs(10), cap: Duration::from_secs(3600) };

/// `at + wait`, or the end of time.
pub(super) fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

pub(super) fn wait(backoff: Backoff, tries: u32) -> SignedDuration {
    SignedDuration::try_from(backoff.after(tries)).unwrap_or(SignedDuration::MAX)
}

/// The wait until the next attempt after so many.
pub(super) fn backoff(tries: u32) -> SignedDuration {
    wait(ATTEMPTS, tries)
}

/// When the attempt that follows a closed one is due.
pub(super) fn next_due(closed: &Attempt, now: Timestamp) -> Timestamp {
    after(closed.closed_at.as_ref().map_or(now, |t| t.0), backoff(closed.tries))
}

/// Until when the plan waits for an approval.
pub(super) fn expires(run: &RunView, plan: &PlanStatus, attempt: &Attempt, now: Timestamp) -> Timestamp {
    let made = plan.created_at.as_ref().or(attempt.closed_at.as_ref()).or(attempt.opened_at.as_ref()).map_or(now, |t| t.0);
    after(made, SignedDuration::try_from(run.spec.approval.expires_after.0).unwrap_or(SignedDuration::MAX))
}
