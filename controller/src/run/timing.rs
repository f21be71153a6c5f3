//! Delays, timeouts and backoffs.

use std::time::Duration;

use crds::{Attempt, PlanStatus, backoff::Backoff};
use jiff::{SignedDuration, Timestamp};

use super::run_view::RunView;

/// The agent's time to carry out a cancel, deny or deletion before its pod is deleted.
pub(super) const ASK_GRACE: SignedDuration = SignedDuration::from_secs(30);
/// Time that a deleted pod has to end before its attempt is closed without its end. Before the claim, closing fences the pod.
pub(super) const END_GRACE: SignedDuration = SignedDuration::from_secs(20);
/// A claimed attempt's pod has to be gone for this long before the run is Indeterminate.
pub(super) const GONE_WAIT: SignedDuration = SignedDuration::from_secs(60);
/// A pod may be missing from the cache for this long after its creation.
pub(super) const CREATION_LAG: SignedDuration = SignedDuration::from_secs(5);
/// The age of a claim at which an Automatic run's conditions report it. Short runs save the write.
pub(super) const LATE_CONDITIONS: SignedDuration = SignedDuration::from_secs(2);

/// Between attempts of a run.
const ATTEMPTS: Backoff = Backoff {
    base: Duration::from_secs(10),
    cap: Duration::from_secs(300),
};
/// Between calls that fail or are refused.
pub(super) const CALLS: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(30),
};
/// Between questions to the datastore.
pub(super) const QUESTIONS: Backoff = Backoff {
    base: Duration::from_secs(10),
    cap: Duration::from_secs(3600),
};

/// `at + wait`, at most [`Timestamp::MAX`].
pub(super) fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

pub(super) fn wait(backoff: Backoff, tries: u32) -> SignedDuration {
    SignedDuration::try_from(backoff.after(tries)).unwrap_or(SignedDuration::MAX)
}

/// The wait until the next attempt after that many tries.
pub(super) fn backoff(tries: u32) -> SignedDuration {
    wait(ATTEMPTS, tries)
}

/// When the attempt after a closed one is due.
pub(super) fn next_due(closed: &Attempt, now: Timestamp) -> Timestamp {
    after(
        closed.closed_at.as_ref().map_or(now, |t| t.0),
        backoff(closed.tries),
    )
}

/// When the plan's time for an approval ends.
pub(super) fn expires(
    run: &RunView,
    plan: &PlanStatus,
    attempt: &Attempt,
    now: Timestamp,
) -> Timestamp {
    let made = plan
        .created_at
        .as_ref()
        .or(attempt.closed_at.as_ref())
        .or(attempt.opened_at.as_ref())
        .map_or(now, |t| t.0);
    after(
        made,
        SignedDuration::try_from(run.spec.approval.expires_after.0).unwrap_or(SignedDuration::MAX),
    )
}
