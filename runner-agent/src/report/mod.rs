//! What people read: history, message and next step.

mod history;
mod message;

pub use history::{Clocked, line, span};
pub use message::{Commands, Held, Text, accounted, failed, retried, stopped};
