//! The state machine of an attempt: pure, without clock, I/O or await.
//!
//! [`next`] handles every pair of state and event. It orders [`Effect`]s, which the driver performs. Impossible pairs and late
//! events leave the state unchanged and order nothing.

mod effect;
mod event;
mod next;
mod state;
#[cfg(test)]
mod tests;

pub use effect::{Cause, Effect, Ending};
pub use event::{Event, Permission, Task, Timer, Write};
pub use next::{begin, next};
pub use state::{Mode, Stage, State, Stop, Terms};
