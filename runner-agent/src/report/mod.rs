//! Texts for people: history, message and next step; and the redaction and sanitising of texts.
//!
//! | module | holds |
//! |---|---|
//! | `history`, `message` | the texts of an attempt in a status |
//! | [`redact`] | masks secrets in texts |
//! | [`sanitize`] | makes foreign text harmless to display |

mod history;
mod message;
pub mod redact;
pub mod sanitize;

pub use history::{Clocked, line, span};
pub use message::{Commands, Ends, Held, Text, accounted, failed, quiet, retried, stopped};
