//! Kills child processes at random times while they install a version.

use std::{
    collections::hash_map::RandomState,
    env, fs,
    hash::{BuildHasher as _, Hasher as _},
    path::Path,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use tool_versions::{Store, cache::store::verify::digest};

/// Concurrent loops, each with its own directory: they mostly wait for the disk.
pub(crate) const LANES: u32 = 4;

/// Kills of each lane. `PAWL_KILLS` is the sum over all lanes; the default is 1,000.
pub(crate) fn per_lane() -> u32 {
    env::var("PAWL_KILLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1000_u32)
        .div_ceil(LANES)
}

/// The time within which a process is killed: from before its first write to after its last, at any load of the machine.
#[derive(Debug)]
struct Window {
    micros: u64,
    kills: u32,
    /// Processes that had finished before their kill.
    whole: u32,
}

impl Window {
    /// Starts with the shortest time of a process that was not killed.
    fn new(shortest: Duration) -> Self {
        Self {
            micros: u64::try_from((shortest * 6 / 5).as_micros()).unwrap(),
            kills: 0,
            whole: 0,
        }
    }

    /// The delay before the next kill. Adapts so that a tenth to a fifth of the processes finish.
    fn next(&mut self) -> Duration {
        if self.whole * 5 > self.kills {
            self.micros = self.micros * 99 / 100;
        } else if self.whole * 10 < self.kills {
            self.micros = self.micros * 101 / 100;
        }
        self.kills += 1;
        Duration::from_micros(RandomState::new().build_hasher().finish() % self.micros)
    }
}

/// Kills one process after another. Asserts that each installed version is complete, and that a process after them succeeds. `begun` tells
/// whether the last process had begun to install. Returns the processes that had begun and those that had finished.
pub(crate) fn lane(
    root: &Path,
    store: &Store,
    size: u64,
    start: impl Fn() -> Child,
    mut begun: impl FnMut() -> bool,
) -> (u32, u32) {
    let remove_all = || fs::remove_dir_all(root.join("opentofu")).unwrap();
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        assert!(start().wait().unwrap().success());
        shortest = shortest.min(started.elapsed());
        remove_all();
    }
    begun();
    let (mut window, mut count) = (Window::new(shortest), 0);
    for _ in 0..per_lane() {
        let mut child = start();
        thread::sleep(window.next());
        child.kill().unwrap();
        child.wait().unwrap();
        count += u32::from(begun());
        for installed in store.list().unwrap() {
            window.whole += 1;
            assert_eq!(fs::metadata(&installed.binary).unwrap().len(), size);
            assert_eq!(digest(&installed.binary).unwrap(), installed.digest);
            store.take(installed).unwrap();
            remove_all();
        }
    }
    assert!(start().wait().unwrap().success());
    assert_eq!(store.list().unwrap().len(), 1);
    (count, window.whole)
}
