//! The stream by which a command's output reaches the agent.

use std::{
    fs::File,
    io::{self, Read as _},
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
};

use super::{interrupt::Role, spawn::Command};

/// Makes a stream: the agent's end, and the command's.
///
/// The tool gets a socket. Its children may open its pipes again, by `/proc/PID/fd`, and so print in its name or take its output. A
/// socket cannot be opened. Scripts and other commands get a pipe, since they open `/dev/stdout`.
///
/// # Errors
/// There are too many open files.
pub fn stream(command: &Command) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(match command.role {
        Role::Tool if !is_script(&command.program) => {
            let (ours, theirs) = UnixStream::pair()?;
            // A command that reads its own output would wait for the agent.
            ours.shutdown(Shutdown::Write)?;
            (ours.into(), theirs.into())
        }
        Role::Tool | Role::Above(_) | Role::Other => {
            let (ours, theirs) = io::pipe()?;
            (ours.into(), theirs.into())
        }
    })
}

/// Whether the kernel starts an interpreter for this program.
fn is_script(program: &Path) -> bool {
    let mut head = [0; 2];
    File::open(program)
        .and_then(|mut file| file.read_exact(&mut head))
        .is_ok_and(|()| head == *b"#!")
}
