//! When the next drift check is due.

use cronexpr::MakeTimestamp;
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

use crds::DriftDetection;

/// With a cron schedule: the time over which checks missed during downtime are spread.
const CRON_SPREAD: SignedDuration = SignedDuration::from_mins(10);
/// With an interval: that time is a tenth of the interval, at most this.
const MAX_SPREAD: SignedDuration = SignedDuration::from_hours(1);
/// The range in which an interval varies between layers, in thousandths: a tenth to each side.
const JITTER: u64 = 200;

/// The inputs of a layer's next check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check<'a> {
    pub(super) wanted: &'a DriftDetection,
    /// Of the layer; spreads the checks of many layers.
    pub(super) uid: &'a str,
    /// When a run of the layer planned or ended last.
    pub(super) last: Timestamp,
    /// Start of this process.
    pub(super) started: Timestamp,
    /// `status.nextDriftCheck`; a postponed check keeps this time after a restart.
    pub(super) stored: Option<Timestamp>,
}

impl Check<'_> {
    /// When the next check is due, possibly in the past; `None` if drift detection is suspended. One check makes up for all that were
    /// missed during downtime, and the checks of many layers are spread.
    ///
    /// # Errors
    /// If the schedule or its time zone is invalid, with the reason.
    pub(super) fn due(&self, now: Timestamp) -> Result<Option<Timestamp>, String> {
        if self.wanted.suspend {
            return Ok(None);
        }
        let (natural, spread) = match &self.wanted.schedule {
            None => self.interval(),
            Some(line) => (
                slot_after(
                    line,
                    self.wanted.time_zone.as_deref().unwrap_or("UTC"),
                    self.last,
                )?,
                CRON_SPREAD,
            ),
        };
        if natural > now || natural >= self.started {
            return Ok(Some(natural));
        }
        let kept = |stored: &Timestamp| *stored > natural && *stored <= after(now, spread);
        let put_off = self.stored.filter(kept).unwrap_or_else(|| {
            let most = u64::try_from(spread.as_secs()).unwrap_or(0);
            after(
                self.started,
                seconds(chance(self.uid, "spread") % (most + 1)),
            )
        });
        Ok(Some(put_off))
    }

    fn interval(&self) -> (Timestamp, SignedDuration) {
        let whole = self.wanted.interval.0.as_secs();
        let thousandths = 1_000 - JITTER / 2 + chance(self.uid, "interval") % (JITTER + 1);
        let spread = seconds(whole / 10).min(MAX_SPREAD);
        (
            after(
                self.last,
                seconds(whole.saturating_mul(thousandths) / 1_000),
            ),
            spread,
        )
    }
}

/// The first time after `last` that matches the cron line.
fn slot_after(line: &str, zone: &str, last: Timestamp) -> Result<Timestamp, String> {
    let wrong = |error: cronexpr::Error| format!("drift.schedule `{line}` in {zone}: {error}");
    let table = cronexpr::parse_crontab(&format!("{line} {zone}")).map_err(wrong)?;
    Ok(table
        .find_next(MakeTimestamp(last))
        .map_err(wrong)?
        .timestamp())
}

/// A pseudorandom number derived from the UID, the same each time.
fn chance(uid: &str, of: &str) -> u64 {
    let digest = Sha256::digest(format!("{of} of {uid}").as_bytes());
    digest
        .iter()
        .take(8)
        .fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

fn seconds(seconds: u64) -> SignedDuration {
    SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX))
}

fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}
