//! Starts commands with default signal dispositions, whatever this program inherited: `nohup` and shells that start jobs in the background
//! leave signals ignored, an ignored signal stays ignored across `exec`, and the tool would then not see the one SIGINT.
//!
//! A handled signal becomes a default one in a program that is started. So each ignored signal gets a handler, which does nothing here.

use std::sync::Once;

use tokio::signal::unix::{SignalKind, signal};

/// Signals that have no handler: those of faults, and `SIGPIPE`, which the standard library restores.
const WITHOUT: [i32; 5] = [
    nix::libc::SIGILL,
    nix::libc::SIGFPE,
    nix::libc::SIGSEGV,
    nix::libc::SIGPIPE,
    nix::libc::SIGSYS,
];

/// Handles the inherited ignored signals. Only the first call has an effect. Needs a runtime.
pub(super) fn restore() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        for number in ignored(&status) {
            // Another library may have claimed the signal since.
            let _ = signal(SignalKind::from_raw(number));
        }
    });
}

/// The numbers of the ignored signals, from the text of `/proc/PID/status`.
fn ignored(status: &str) -> impl Iterator<Item = i32> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u32::from_str_radix(mask.trim().get(8..)?, 16).ok())
        .unwrap_or_default();
    (1..32).filter(move |number| mask >> (number - 1) & 1 == 1 && !WITHOUT.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Children, Kept, Role, bash};

    /// In the environment of the program that ignores signals.
    const IGNORES: &str = "PAWL_TEST_IGNORES";

    #[tokio::test]
    async fn command_ignores_no_signal_that_the_agent_inherited_ignored() {
        if std::env::var_os(IGNORES).is_none() {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            let again = std::process::Command::new("/bin/sh")
                .args([
                    "-c",
                    "trap '' HUP INT QUIT TERM USR1; exec \"$0\" --exact \"$1\"",
                ])
                .arg(std::env::current_exe().unwrap())
                .arg(name)
                .env(IGNORES, "yes")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&again.stdout).into_owned();
            assert!(
                again.status.success() && text.contains("1 passed"),
                "{text}"
            );
            return;
        }
        let before = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(ignored(&before).collect::<Vec<_>>(), [1, 2, 3, 10, 15]);
        let mut kept = Kept::default();
        let command = bash("grep SigIgn /proc/self/status", Role::Other);
        Children::default().run(&command, &mut kept).await.unwrap();
        let left: Vec<_> = ignored(&kept.0[0].1).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
