//! When the world is compared with the state next.

use cronexpr::MakeTimestamp;
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

use crds::DriftDetection;

/// How far checks are spread that were missed while nobody worked, where a cron line says when they are made.
const CRON_SPREAD: SignedDuration = SignedDuration::from_mins(10);
/// How far they are spread at most.
const MAX_SPREAD: SignedDuration = SignedDuration::from_hours(1);
/// Thousandths of an interval by which two layers of one interval lie apart, at most: a tenth to each side.
const JITTER: u64 = 200;

/// What a check of a layer follows from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check<'a> {
    pub(super) wanted: &'a DriftDetection,
    /// UID of the layer, by which checks of many layers lie apart.
    pub(super) uid: &'a str,
    /// When a run of the layer planned, or came to its end, last.
    pub(super) last: Timestamp,
    /// When this process began to work.
    pub(super) started: Timestamp,
    /// `status.nextDriftCheck`, by which a check that was put off stays where it was put.
    pub(super) stored: Option<Timestamp>,
}

impl Check<'_> {
    /// When the next check is due, which may have passed; `None` when nobody looks for drift. One that was missed while nobody worked
    /// is made once, and those of many layers one after the other.
    ///
    /// # Errors
    /// When the schedule or its time zone cannot be read, with what is wrong.
    pub(super) fn due(&self, now: Timestamp) -> Result<Option<Timestamp>, String> {
        if self.wanted.suspend {
            return Ok(None);
        }
        let (natural, spread) = match &self.wanted.schedule {
            None => self.interval(),
            Some(line) => (slot_after(line, self.wanted.time_zone.as_deref().unwrap_or("UTC"), self.last)?, CRON_SPREAD),
        };
        if natural > now || natural >= self.started {
            return Ok(Some(natural));
        }
        let kept = |stored: &Timestamp| *stored > natural && *stored <= after(now, spread);
        let put_off = self.stored.filter(kept).unwrap_or_else(|| {
            let most = u64::try_from(spread.as_secs()).unwrap_or(0);
            after(self.started, seconds(chance(self.uid, "spread") % (most + 1)))
        });
        Ok(Some(put_off))
    }

    fn interval(&self) -> (Timestamp, SignedDuration) {
        let whole = self.wanted.interval.0.as_secs();
        let thousandths = 1_000 - JITTER / 2 + chance(self.uid, "interval") % (JITTER + 1);
        let spread = seconds(whole / 10).min(MAX_SPREAD);
        (after(self.last, seconds(whole.saturating_mul(thousandths) / 1_000)), spread)
    }
}

/// The first time after another that a cron line names.
fn slot_after(line: &str, zone: &str, last: Timestamp) -> Result<Timestamp, String> {
    let wrong = |error: cronexpr::Error| format!("drift.schedule `{line}` in {zone}: {error}");
    let table = cronexpr::parse_crontab(&format!("{line} {zone}")).map_err(wrong)?;
    Ok(table.find_next(MakeTimestamp(last)).map_err(wrong)?.timestamp())
}

/// A number that follows from a UID.
fn chance(uid: &str, of: &str) -> u64 {
    let digest = Sha256::digest(format!("{of} of {uid}").as_bytes());
    digest.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

fn seconds(seconds: u64) -> SignedDuration {
    SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX))
}

fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}
