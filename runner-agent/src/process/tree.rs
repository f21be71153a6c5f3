//! Who runs below whom, and signals to them.

use std::{
    collections::{HashMap, HashSet},
    fs, io, iter,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

pub fn own_pid() -> i32 {
    Pid::this().as_raw()
}

/// Parent of each process that can be seen.
pub(super) fn parents() -> HashMap<i32, i32> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // `pid (name, which may hold anything) state parent …`
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            parents.insert(pid, parent);
        }
    }
    parents
}

/// All processes below `root`, itself excluded, the nearest first.
pub fn descendants(root: i32) -> Vec<i32> {
    let parents = parents();
    let below = parents.keys().copied().filter(|pid| *pid != root && above(&parents, *pid).any(|at| at == root));
    let mut below: Vec<_> = below.collect();
    below.sort_by_cached_key(|pid| above(&parents, *pid).count());
    below
}

/// The processes above one, the nearest first.
fn above(parents: &HashMap<i32, i32>, pid: i32) -> impl Iterator<Item = i32> {
    let up = |at: &i32| parents.get(at).copied();
    // Bounded by the number of processes, so that a table read while it changes cannot lead in circles.
    iter::successors(up(&pid), up).take(parents.len())
}

/// What tells an executable from all others: device and inode of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Executable(u64, u64);

impl Executable {
    /// That of a file.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|meta| Self(meta.dev(), meta.ino()))
    }

    pub(super) fn is_run_by(self, pid: i32) -> bool {
        Self::of(Path::new(&format!("/proc/{pid}/exe"))).is_ok_and(|found| found == self)
    }

    /// The processes below `root` that are this one, without those that another of them started.
    pub(super) fn below(self, root: i32) -> Vec<i32> {
        let parents = parents();
        let is_below = |pid: i32| pid != root && above(&parents, pid).any(|at| at == root);
        let all: HashSet<i32> = parents.keys().copied().filter(|pid| is_below(*pid) && self.is_run_by(*pid)).collect();
        let first = |pid: &i32| !above(&parents, *pid).take_while(|at| *at != root).any(|at| all.contains(&at));
        all.iter().copied().filter(first).collect()
    }
}

/// Sends a signal to one process; gone is as good as told.
pub(super) fn send(pid: i32, signal: Signal) {
    if pid > 1 {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Kills the processes below `root`, itself excluded: parents first, so that none of them sees its child die and goes on.
pub(super) fn kill_below(root: i32) {
    for pid in descendants(root) {
        send(pid, Signal::SIGKILL);
    }
}
