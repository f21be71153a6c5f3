//! Exponential backoff.

use std::time::Duration;

/// Doubling waits: `base` after the first try, at most `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub base: Duration,
    /// The longest wait.
    pub cap: Duration,
}

impl Backoff {
    /// The wait after this many tries. 0 tries give the same wait as 1.
    pub fn after(self, tries: u32) -> Duration {
        let factor = 1_u32
            .checked_shl(tries.saturating_sub(1))
            .unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.cap)
    }

    /// [`Self::after`] with jitter: `chance` selects the second half of the wait, in milliseconds, so that callers that
    /// failed together do not retry together.
    pub fn spread(self, tries: u32, chance: u64) -> Duration {
        let most = u64::try_from(self.after(tries).as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(most / 2 + chance % (most / 2 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap() {
        let backoff = Backoff {
            base: Duration::from_secs(10),
            cap: Duration::from_secs(300),
        };
        let waits =
            [0, 1, 2, 3, 4, 5, 6, 32, 33, 64, u32::MAX].map(|tries| backoff.after(tries).as_secs());
        assert_eq!(waits, [10, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300]);
        for chance in [0, 1, 5_000, 5_001, u64::MAX] {
            let wait = backoff.spread(1, chance);
            assert!((5_000..=10_000).contains(&wait.as_millis()), "{wait:?}");
        }
    }
}
