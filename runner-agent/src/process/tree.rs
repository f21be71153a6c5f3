//! The process tree, and signals to processes.

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

/// The parent of each visible process.
pub(super) fn parents() -> HashMap<i32, i32> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // `pid (name, which may contain anything) state parent …`
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            parents.insert(pid, parent);
        }
    }
    parents
}

/// All descendants of `root`, nearest first.
pub fn descendants(root: i32) -> Vec<i32> {
    let parents = parents();
    let below = parents
        .keys()
        .copied()
        .filter(|pid| *pid != root && above(&parents, *pid).any(|at| at == root));
    let mut below: Vec<_> = below.collect();
    below.sort_by_cached_key(|pid| above(&parents, *pid).count());
    below
}

/// The ancestors of a process, nearest first.
fn above(parents: &HashMap<i32, i32>, pid: i32) -> impl Iterator<Item = i32> {
    let up = |at: &i32| parents.get(at).copied();
    // Bounded by the number of processes: a table read while it changes may contain a cycle.
    iter::successors(up(&pid), up).take(parents.len())
}

/// Identity of an executable: device and inode of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Executable(u64, u64);

impl Executable {
    /// # Errors
    /// The file's metadata cannot be read.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|meta| Self(meta.dev(), meta.ino()))
    }

    pub(super) fn is_run_by(self, pid: i32) -> bool {
        Self::of(Path::new(&format!("/proc/{pid}/exe"))).is_ok_and(|found| found == self)
    }

    /// The descendants of `root` that run this executable, without those below another of them.
    pub(super) fn below(self, root: i32) -> Vec<i32> {
        let parents = parents();
        let is_below = |pid: i32| pid != root && above(&parents, pid).any(|at| at == root);
        let all: HashSet<i32> = parents
            .keys()
            .copied()
            .filter(|pid| is_below(*pid) && self.is_run_by(*pid))
            .collect();
        let first = |pid: &i32| {
            !above(&parents, *pid)
                .take_while(|at| *at != root)
                .any(|at| all.contains(&at))
        };
        all.iter().copied().filter(first).collect()
    }
}

/// Sends a signal to one process. Ignores a process that has ended.
pub(super) fn send(pid: i32, signal: Signal) {
    if pid > 1 {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Kills the descendants of `root`: parents first, so that no parent reacts to the death of its child.
pub(super) fn kill_below(root: i32) {
    for pid in descendants(root) {
        send(pid, Signal::SIGKILL);
    }
}
