//! What can go wrong, and whose it is.

use std::fmt;

/// Whose an error is, and so whether it may be another the next time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What the code or its owner wrote makes no sense, contradicts itself, or asks for what does not exist.
    Configuration,
    /// Two of those who ask for a version contradict each other; there is nothing to get that would satisfy both.
    Contradiction,
    /// A server did not answer, or not in time; a later try may go well.
    Unavailable,
    /// What came is not what was published, or cannot be shown to be.
    Integrity,
    /// The disk.
    Storage,
}

/// What went wrong: on what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    /// Whose it is.
    pub kind: Kind,
    /// For people.
    pub text: String,
    /// The status with which a server refused, where that is what went wrong.
    pub status: Option<u16>,
}

impl Error {
    /// An error of what was asked for.
    pub fn configuration(text: impl Into<String>) -> Self {
        Self::of(Kind::Configuration, text.into())
    }

    /// An error of two that cannot both have what they ask for.
    pub fn contradiction(text: impl Into<String>) -> Self {
        Self::of(Kind::Contradiction, text.into())
    }

    /// What was asked for is not at its place. `what` may come with its article, as other sentences have it.
    pub(crate) fn absent(what: &str, place: impl std::fmt::Display) -> Self {
        Self::configuration(format!("there is no {} at {place}", what.strip_prefix("the ").unwrap_or(what)))
    }

    /// An error of a server.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self::of(Kind::Unavailable, text.into())
    }

    /// What came is not what was published.
    pub fn integrity(text: impl Into<String>) -> Self {
        Self::of(Kind::Integrity, text.into())
    }

    /// An error of the disk.
    pub fn storage(what: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::of(Kind::Storage, format!("{what}: {error}"))
    }

    const fn of(kind: Kind, text: String) -> Self {
        Self { kind, text, status: None }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
