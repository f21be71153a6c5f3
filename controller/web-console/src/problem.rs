//! Errors as problem documents (RFC 9457), in the words of the API server or of the run.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use serving::call::CallError;

/// A refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub status: StatusCode,
    /// One word, for programs.
    pub reason: String,
    /// The failure, and the next step.
    pub detail: String,
}

impl Problem {
    pub fn new(status: StatusCode, reason: &str, detail: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            detail: detail.into(),
        }
    }

    /// An answer cannot be written.
    pub fn internal(error: &serde_json::Error) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal",
            error.to_string(),
        )
    }

    /// The request cannot be read.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Invalid", detail)
    }

    /// The request has neither a session nor a valid token.
    pub fn unauthenticated() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "Unauthenticated",
            "log in, or send a token that the API server accepts",
        )
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        let Some(refused) = error.status() else {
            return Self::new(
                StatusCode::BAD_GATEWAY,
                "Unavailable",
                format!(
                    "the API server did not respond ({error}); nothing is known to have changed. Lists still show the last known rows; \
                     runs go on, and this works again once the API server responds"
                ),
            );
        };
        let status = StatusCode::from_u16(refused.code).unwrap_or(StatusCode::BAD_GATEWAY);
        if status == StatusCode::UNAUTHORIZED {
            return Self::unauthenticated();
        }
        Self::new(status, &refused.reason, refused.message.clone())
    }
}

/// An answer of JSON.
pub fn json(status: StatusCode, object: &impl Serialize) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    match serde_json::to_string(object) {
        Ok(text) => (status, kind, text).into_response(),
        Err(error) => Problem::internal(&error).into_response(),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = serde_json::json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "reason": self.reason,
            "detail": self.detail,
        });
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (self.status, kind, document.to_string()).into_response()
    }
}
