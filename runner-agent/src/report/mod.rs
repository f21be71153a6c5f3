//! What people read: history, message and next step.

mod history;
mod message;

pub use history::{Clocked, line, span};
pub use message::{Text, approve_command, awaiting, failed, rerun_command, retried, stopped};
