//! Child processes: started within bounds, in their own group, read line by line, signalled once, reaped without stealing.
//!
//! | module | holds |
//! |---|---|
//! | `spawn` | starting a command, and seeing it to its end |
//! | `interrupt` | what runs, the tool's one SIGINT, and SIGKILL |
//! | `tree` | who runs below whom |
//! | `reap` | ended processes that nobody else waits for |
//! | `confine` | what a command may not open |
//! | `peer` | which process is at the other end of a connection |
//! | `output` | lines, and the log |

mod confine;
mod interrupt;
mod output;
mod peer;
mod reap;
mod spawn;
mod tree;

pub use confine::Bounds;
pub use interrupt::{Children, Role};
pub use output::{Lines, Log, LogSink, MAX_LINE, cut_marker};
pub use peer::is_of_tool;
pub use reap::{kill_others, reap_strangers};
pub use spawn::{Command, Exit, RunError, Sink, Source};
pub use tree::{descendants, own_pid};
