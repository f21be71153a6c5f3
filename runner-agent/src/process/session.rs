//! Starts a command in a session of its own, so that it has no controlling terminal: with the person's one it could type into it
//! (`TIOCSTI`), and so answer the question for an approval.
//!
//! A program calls `setsid` for itself, so the agent starts this program, which does that and replaces itself by the command.

use std::{env, io::Write as _, os::unix::process::CommandExt as _, process::Command};

use nix::unistd::setsid;

/// The name by which this program is called to become a command.
const NAME: &str = "pawl-session";

/// A command that becomes another program, with the arguments that follow.
pub(super) fn command() -> tokio::process::Command {
    let mut command = tokio::process::Command::new("/proc/self/exe");
    command.arg0(NAME);
    command
}

/// Becomes the command, if this program was called for that. Returns an exit code if it cannot.
pub fn enter() -> Option<u8> {
    let mut words = env::args_os();
    if words.next()? != NAME {
        return None;
    }
    let program = words.next()?;
    let error = match setsid() {
        Ok(_) => Command::new(&program).args(words).exec(),
        Err(error) => error.into(),
    };
    let _ = writeln!(
        std::io::stderr(),
        "error: {} could not be started: {error}",
        program.display()
    );
    Some(126)
}
