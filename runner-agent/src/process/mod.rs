//! Child processes: started within bounds, in their own group, read line by line, signalled once, reaped without stealing.

mod confine;
mod output;
mod peer;
mod reap;
mod signal;
mod spawn;

pub use confine::Bounds;
pub use output::{Lines, Log, LogSink, MAX_LINE, cut_marker};
pub use peer::is_of_tool;
pub use reap::{kill_others, reap_strangers};
pub use signal::{descendants, own_pid};
pub use spawn::{Children, Command, Exit, Role, RunError, Sink, Source};
