//! What people read: history, message and next step; and what makes texts fit for them.
//!
//! | module | holds |
//! |---|---|
//! | `history`, `message` | what a status says of an attempt |
//! | [`redact`] | keeps secrets out of texts |
//! | [`sanitize`] | makes the words of strangers harmless to read |

mod history;
mod message;
pub mod redact;
pub mod sanitize;

pub use history::{Clocked, line, span};
pub use message::{Commands, Ends, Held, Text, accounted, failed, quiet, retried, stopped};
