//! How long everything waits.

use jiff::{SignedDuration, Timestamp};

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

/// `at + wait`, or the end of time.
pub(super) fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Seconds until the next try after so many: 10, 20, 40, … at most 300.
pub(super) fn backoff(tries: u32) -> SignedDuration {
    let seconds = 10_i64.checked_shl(tries.saturating_sub(1)).unwrap_or(300);
    SignedDuration::from_secs(if (10..=300).contains(&seconds) { seconds } else { 300 })
}
