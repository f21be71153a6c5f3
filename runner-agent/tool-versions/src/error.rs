//! Errors and their kinds.

use std::fmt;

/// The cause of an error, which decides whether a retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The code or its owner's settings are invalid, contradictory, or name something that does not exist.
    Configuration,
    /// Two requirements contradict each other, so no version satisfies both.
    Contradiction,
    /// A server did not answer, or not in time. A retry may succeed.
    Unavailable,
    /// The bytes are not the published ones, or cannot be verified.
    Integrity,
    /// The disk failed.
    Storage,
}

/// An error: its object, and the remedy where there is one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    pub kind: Kind,
    /// The message for people.
    pub text: String,
    /// The HTTP status, when a server refused.
    pub status: Option<u16>,
}

impl Error {
    /// Makes a [`Kind::Configuration`] error.
    pub fn configuration(text: impl Into<String>) -> Self {
        Self::of(Kind::Configuration, text.into())
    }

    /// Makes a [`Kind::Contradiction`] error.
    pub fn contradiction(text: impl Into<String>) -> Self {
        Self::of(Kind::Contradiction, text.into())
    }

    /// Makes the error for a missing object. `what` may start with an article.
    pub(crate) fn absent(what: &str, place: impl std::fmt::Display) -> Self {
        Self::configuration(format!(
            "there is no {} at {place}",
            what.strip_prefix("the ").unwrap_or(what)
        ))
    }

    /// Makes a [`Kind::Unavailable`] error.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self::of(Kind::Unavailable, text.into())
    }

    /// Makes a [`Kind::Integrity`] error.
    pub fn integrity(text: impl Into<String>) -> Self {
        Self::of(Kind::Integrity, text.into())
    }

    /// Makes a [`Kind::Storage`] error.
    pub fn storage(what: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::of(Kind::Storage, format!("{what}: {error}"))
    }

    const fn of(kind: Kind, text: String) -> Self {
        Self {
            kind,
            text,
            status: None,
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
