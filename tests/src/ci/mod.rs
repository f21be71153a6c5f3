//! `cargo ci`: the stages, in order, each timed, and the count that closes them.

mod count;
mod stage;

pub use count::Count;
pub use stage::{Outcome, Stage, run};
