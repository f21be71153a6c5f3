//! The stream by which a command's output reaches the agent.

use std::{
    io,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use super::interrupt::Role;

/// Makes a stream: the agent's end, and the command's.
///
/// The tool gets a socket. Its children may open its pipes again, by `/proc/PID/fd`, and so print in its name or take its output. A
/// socket cannot be opened. Other commands get a pipe, since scripts open `/dev/stdout`.
///
/// # Errors
/// There are too many open files.
pub fn stream(role: &Role) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(match role {
        Role::Tool => {
            let (ours, theirs) = UnixStream::pair()?;
            // A command that reads its own output would wait for the agent.
            ours.shutdown(Shutdown::Write)?;
            (ours.into(), theirs.into())
        }
        Role::Above(_) | Role::Other => {
            let (ours, theirs) = io::pipe()?;
            (ours.into(), theirs.into())
        }
    })
}
