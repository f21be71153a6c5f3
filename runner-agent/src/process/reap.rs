//! Duties of PID 1: reaps orphans, and leaves the children that tokio waits for.

use std::time::{Duration, Instant};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::Pid,
};

use super::{
    interrupt::Children,
    tree::{kill_below, own_pid, parents},
};

/// State of our ended children.
enum Peek {
    Nothing,
    Ours,
    Stranger(Pid),
}

fn peek(children: &Children) -> Peek {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::All, flags) {
        Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) => {
            if children.is_tracked(pid.as_raw()) {
                Peek::Ours
            } else {
                Peek::Stranger(pid)
            }
        }
        Ok(_) | Err(_) => Peek::Nothing,
    }
}

/// Reaps each ended child that tokio does not wait for. Returns `false` if the kernel offers one of tokio's children first; then call it
/// again soon.
fn reap_once(children: &Children) -> bool {
    loop {
        match peek(children) {
            Peek::Nothing => return true,
            Peek::Ours => return false,
            Peek::Stranger(pid) => {
                let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
            }
        }
    }
}

/// Reaps orphans for the process's lifetime. Otherwise daemonised grandchildren of the tool remain as zombies.
pub async fn reap_strangers(children: Children) {
    let Ok(mut ended) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child())
    else {
        return;
    };
    loop {
        if !reap_once(&children) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        if ended.recv().await.is_none() {
            return;
        }
    }
}

/// Whether a process belongs to the agent's user. Reads the status: the owner of `/proc/PID` is root for a process that is not
/// dumpable.
fn is_own(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let user = status.lines().find_map(|line| {
        line.strip_prefix("Uid:")?
            .split_ascii_whitespace()
            .next()?
            .parse()
            .ok()
    });
    user == Some(nix::unistd::getuid().as_raw())
}

/// Kills all other processes and reaps them, for at most `limit`. As PID 1 that is the whole PID namespace, except for processes of
/// other users, such as a person's shell by `kubectl debug`: the stack's code cannot change its user. Otherwise it is every
/// descendant of this process. Returns whether none is left.
pub async fn kill_others(children: &Children, limit: Duration) -> bool {
    let start = Instant::now();
    let me = own_pid();
    loop {
        reap_once(children);
        let left = if me == 1 {
            parents().into_keys().any(|pid| pid != 1 && is_own(pid))
        } else {
            !super::descendants(me).is_empty()
        };
        if !left {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        if me == 1 {
            // PID -1 signals every process but ourselves; ESRCH means that there is no other.
            if kill(Pid::from_raw(-1), Signal::SIGKILL) == Err(Errno::ESRCH) {
                reap_once(children);
            }
        } else {
            kill_below(me);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
