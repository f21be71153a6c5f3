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

/// Minimum similarity of two names for a suggestion: Jaro-Winkler, 0 to 1.
const ALIKE: f64 = 0.8;

/// The end of a message on an unknown name: ` (did you mean NAME?)`, or nothing if none is similar. Ignores case.
pub fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let alike = known.into_iter().map(|other| {
        (
            strsim::jaro_winkler(&name.to_lowercase(), &other.to_lowercase()),
            other,
        )
    });
    let best = alike
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, other)| format!(" (did you mean {other}?)"))
        .unwrap_or_default()
}
