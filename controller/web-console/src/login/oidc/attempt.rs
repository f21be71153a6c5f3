//! The memory of a login while the person is at the provider: an encrypted cookie of 10 minutes.

use axum::http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{problem::Problem, session::Sessions};

/// Lifetime in seconds.
const LIFE: i64 = 600;

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Attempt {
    pub(super) state: String,
    pub(super) nonce: String,
    /// Of PKCE.
    pub(super) verifier: String,
    /// The path of the page that the person wants.
    pub(super) next: String,
    /// Whether an attempt before this one failed.
    pub(super) is_again: bool,
    /// Seconds since 1970.
    pub(super) until: i64,
}

impl Attempt {
    pub(super) fn until() -> i64 {
        Timestamp::now().as_second() + LIFE
    }

    pub(super) fn cookies(&self, sessions: &Sessions) -> Result<Vec<HeaderValue>, Problem> {
        let content = serde_json::to_vec(self).unwrap_or_default();
        sessions.attempt_cookies(&content, LIFE)
    }

    pub(super) fn of(sessions: &Sessions, headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let content = sessions.attempt_of(headers)?;
        let attempt: Option<Self> =
            content.and_then(|content| serde_json::from_slice(&content).ok());
        Ok(attempt.filter(|attempt| Timestamp::now().as_second() < attempt.until))
    }

    pub(super) fn no_cookies(sessions: &Sessions) -> Vec<HeaderValue> {
        sessions.no_attempt_cookies()
    }
}
