//! Duties of PID 1: strangers are reaped, children that tokio waits for are left to it.

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

/// What a look at our ended children found.
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

/// Reaps every ended child that nobody waits for. `false` when one of ours stands before others and has to be taken by tokio
/// first: look again soon.
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

/// Reaps strangers for as long as the process lives. Without this, daemonised grandchildren of the tool stay as zombies.
pub async fn reap_strangers(children: Children) {
    let Ok(mut ended) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()) else { return };
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

/// Whether a process is of the agent's user. By its status: the directory belongs to root where a process may not be looked into.
fn is_own(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().next()?.parse().ok());
    user == Some(nix::unistd::getuid().as_raw())
}

/// Kills every other process and reaps until none is left, for at most `limit`. As PID 1 that is the whole namespace, but for processes
/// of other users, such as a person's who looks at the pod by `kubectl debug`: code of the stack cannot become another user. Otherwise
/// it is everything below this process. Returns whether none is left.
pub async fn kill_others(children: &Children, limit: Duration) -> bool {
    let start = Instant::now();
    let me = own_pid();
    loop {
        reap_once(children);
        let left =
            if me == 1 { parents().into_keys().any(|pid| pid != 1 && is_own(pid)) } else { !super::descendants(me).is_empty() };
        if !left {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        if me == 1 {
            // Everything but ourselves; ESRCH means that nobody else is there.
            if kill(Pid::from_raw(-1), Signal::SIGKILL) == Err(Errno::ESRCH) {
                reap_once(children);
            }
        } else {
            kill_below(me);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
