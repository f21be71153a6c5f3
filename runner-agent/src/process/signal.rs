//! Who runs below whom, and signals to them.

use std::collections::HashMap;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Our own process id.
pub fn own_pid() -> i32 {
    Pid::this().as_raw()
}

/// Parent of each process that can be seen.
pub(super) fn parents() -> HashMap<i32, i32> {
    let mut parents = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // `pid (name, which may hold anything) state parent …`
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            parents.insert(pid, parent);
        }
    }
    parents
}

/// All processes below `root`, itself excluded.
pub fn descendants(root: i32) -> Vec<i32> {
    let parents = parents();
    let below = |pid: i32| {
        let mut at = pid;
        // Bounded by the number of processes, so that a table read while it changes cannot lead in circles.
        for _ in 0..parents.len() {
            match parents.get(&at) {
                Some(parent) if *parent == root => return true,
                Some(parent) => at = *parent,
                None => return false,
            }
        }
        false
    };
    parents.keys().copied().filter(|pid| *pid != root && below(*pid)).collect()
}

/// Sends a signal to one process; gone is as good as told.
pub(super) fn send(pid: i32, signal: Signal) {
    if pid > 1 {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Kills the processes below `root`, itself excluded.
pub(super) fn kill_below(root: i32) {
    for pid in descendants(root) {
        send(pid, Signal::SIGKILL);
    }
}
