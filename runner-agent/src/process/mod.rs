//! Child processes: confined, each in its own process group or session, output read by line, signalled once, reaped without stealing from tokio.
//!
//! | module | holds |
//! |---|---|
//! | `spawn` | starting a command and running it to its end |
//! | `dispositions` | default signal dispositions for each command |
//! | `session` | a session of its own for a command of a person's machine |
//! | `interrupt` | running commands, the tool's one SIGINT, and SIGKILL |
//! | `tree` | parents and descendants of processes |
//! | `reap` | ended processes that tokio does not wait for |
//! | `confine` | files that a command may not open or change |
//! | `filter` | system calls that a command may not make |
//! | `stream` | the stream by which output reaches the agent |
//! | `peer` | the process at the other end of a connection |
//! | `output` | lines, and the log |

mod confine;
mod dispositions;
mod filter;
mod interrupt;
mod output;
mod peer;
mod reap;
mod session;
mod spawn;
mod stream;
mod tree;

pub use confine::Bounds;
pub use interrupt::{Children, Role};
pub use output::{Lines, Log, LogSink, MAX_LINE, cut_marker};
pub use peer::is_of_tool;
pub use reap::{kill_others, reap_strangers};
pub use session::enter as enter_session;
#[cfg(test)]
pub(crate) use spawn::tests::{Kept, bash};
pub use spawn::{Command, Exit, RunError, Sink, Source};
pub use stream::stream;
pub use tree::{descendants, own_pid};
