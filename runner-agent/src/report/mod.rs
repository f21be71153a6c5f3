//! What people read: history, message and next step.

mod history;
mod message;

pub use history::{Clocked, line, span};
pub use message::{Commands, Ends, Held, Text, accounted, failed, quiet, retried, stopped};
