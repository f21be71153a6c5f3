//! When processes are killed, so that kills meet all of what they do: shared by the tests that do it.

use std::{
    collections::hash_map::RandomState,
    env,
    hash::{BuildHasher as _, Hasher as _},
    time::Duration,
};

/// How many loops go on side by side, each in a place of its own: most of their time they wait for the disk.
pub(crate) const LANES: u32 = 4;

/// How many kills each lane does: `PAWL_KILLS` says how many all do; 1,000 when it is not set.
pub(crate) fn per_lane() -> u32 {
    env::var("PAWL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000_u32).div_ceil(LANES)
}

/// The time within which a process is killed: from before its first write to after its last, however busy the machine gets meanwhile.
#[derive(Debug)]
pub(crate) struct Window {
    micros: u64,
    kills: u32,
    /// How many had done all of it before they were killed.
    pub(crate) whole: u32,
}

impl Window {
    /// Begins with the shortest time that one took which was not killed.
    pub(crate) fn new(shortest: Duration) -> Self {
        Self { micros: u64::try_from((shortest * 6 / 5).as_micros()).unwrap(), kills: 0, whole: 0 }
    }

    /// When the next is killed, after its start. Between a tenth and a fifth of all are to be done before they are killed.
    pub(crate) fn next(&mut self) -> Duration {
        if self.whole * 5 > self.kills {
            self.micros = self.micros * 99 / 100;
        } else if self.whole * 10 < self.kills {
            self.micros = self.micros * 101 / 100;
        }
        self.kills += 1;
        Duration::from_micros(RandomState::new().build_hasher().finish() % self.micros)
    }
}
