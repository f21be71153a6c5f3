//! A number of acts a second.

use std::time::Duration;

use tokio::time::Instant;

/// At most `rate` acts in each second.
pub struct Budget {
    rate: usize,
    second: Instant,
    left: usize,
}

impl Budget {
    pub const fn new(rate: usize, now: Instant) -> Self {
        Self {
            rate,
            second: now,
            left: rate,
        }
    }

    /// Takes this many acts, or as many as are left.
    pub fn take(&mut self, wanted: usize, now: Instant) -> usize {
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            (self.second, self.left) = (now, self.rate);
        }
        let taken = wanted.min(self.left);
        self.left -= taken;
        taken
    }

    /// The rest of the second.
    pub fn rest(&self) -> Duration {
        Duration::from_secs(1).saturating_sub(self.second.elapsed())
    }
}
