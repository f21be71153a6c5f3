//! The state machine of an attempt: pure, without clock, I/O or await.
//!
//! [`next`] answers every pair of a state and an event; what has to be done is said in [`Effect`]s, which the driver carries
//! out. Pairs that cannot happen, and events that come too late, leave the state as it is and order nothing.

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
