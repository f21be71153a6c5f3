//! Error responses: each [`Problem`] has its HTTP code and is sent as JSON or as a `Status` of the API server.

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::Response,
};
use serde_json::json;

use crds::datastore::{
    ALREADY_CLAIMED, ALREADY_EXISTS, CORRUPT, FORBIDDEN, FORMER_NAMESPACE, INVALID, KEY_MISSING,
    LOCKED, NOT_ENDED, NOT_FOUND, Problem, REPLACED, REPOSITORY_NOT_ALLOWED, SOURCE_NOT_READY,
    TOO_LARGE, UNAUTHENTICATED, UNAVAILABLE, WRONG_DIGEST, WRONG_OFFSET,
};

/// A problem with one of the reasons of [`crds::datastore`].
pub fn problem(reason: &str, message: impl Into<String>) -> Problem {
    Problem {
        reason: reason.to_owned(),
        message: message.into(),
        ..Problem::default()
    }
}

pub fn invalid(message: impl Into<String>) -> Problem {
    problem(INVALID, message)
}

pub fn not_found(message: impl Into<String>) -> Problem {
    problem(NOT_FOUND, message)
}

/// A stored object does not decrypt or parse.
pub fn corrupt(message: impl Into<String>) -> Problem {
    problem(CORRUPT, message)
}

/// The store or the API server does not respond. Logs the error; the client is only told to retry.
pub fn unavailable(what: &'static str, error: &dyn std::fmt::Display) -> Problem {
    tracing::warn!(what, error = %error, "no answer");
    problem(UNAVAILABLE, format!("{what} does not answer; try again"))
}

/// The HTTP code of a reason; 500 for an unknown one.
pub fn status(reason: &str) -> StatusCode {
    match reason {
        UNAUTHENTICATED => StatusCode::UNAUTHORIZED,
        FORBIDDEN | REPLACED | FORMER_NAMESPACE | REPOSITORY_NOT_ALLOWED => StatusCode::FORBIDDEN,
        NOT_FOUND | SOURCE_NOT_READY => StatusCode::NOT_FOUND,
        ALREADY_EXISTS | ALREADY_CLAIMED | NOT_ENDED | WRONG_OFFSET => StatusCode::CONFLICT,
        TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
        WRONG_DIGEST => StatusCode::UNPROCESSABLE_ENTITY,
        INVALID => StatusCode::BAD_REQUEST,
        LOCKED => StatusCode::LOCKED,
        UNAVAILABLE => StatusCode::SERVICE_UNAVAILABLE,
        // Includes CORRUPT and KEY_MISSING.
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The response as JSON `Problem`.
pub fn response(problem: &Problem) -> Response {
    if matches!(problem.reason.as_str(), CORRUPT | KEY_MISSING) {
        tracing::error!(reason = problem.reason, "{}", problem.message);
    }
    let mut response = json(status(&problem.reason), problem);
    let also = match problem.reason.as_str() {
        UNAVAILABLE => Some((header::RETRY_AFTER, "1")),
        UNAUTHENTICATED => Some((header::WWW_AUTHENTICATE, "Bearer")),
        _ => None,
    };
    response
        .headers_mut()
        .extend(also.map(|(name, value)| (name, header::HeaderValue::from_static(value))));
    response
}

/// The response as a `Status`, for the API server and `kubectl`.
pub fn failure(problem: &Problem) -> Response {
    let reason = match problem.reason.as_str() {
        UNAUTHENTICATED => "Unauthorized",
        FORBIDDEN | REPLACED => "Forbidden",
        NOT_FOUND => "NotFound",
        ALREADY_EXISTS | ALREADY_CLAIMED => "AlreadyExists",
        LOCKED | WRONG_OFFSET => "Conflict",
        INVALID => "BadRequest",
        TOO_LARGE => "RequestEntityTooLarge",
        UNAVAILABLE => "ServiceUnavailable",
        _ => "InternalError",
    };
    // The API server does not use 423.
    let code = if problem.reason == LOCKED {
        StatusCode::CONFLICT
    } else {
        status(&problem.reason)
    };
    if code == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::error!(reason = problem.reason, "{}", problem.message);
    }
    json(
        code,
        &json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": problem.message, "reason": reason, "code": code.as_u16(),
        }),
    )
}

pub fn json(status: StatusCode, value: &impl serde::Serialize) -> Response {
    let mut response = Response::new(match serde_json::to_vec(value) {
        Ok(body) => Body::from(body),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written as JSON");
            Body::empty()
        }
    });
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_code_of_its_own_class() {
        for (reason, code) in [
            (UNAUTHENTICATED, 401),
            (FORBIDDEN, 403),
            (REPLACED, 403),
            (FORMER_NAMESPACE, 403),
            (REPOSITORY_NOT_ALLOWED, 403),
            (NOT_FOUND, 404),
            (SOURCE_NOT_READY, 404),
            (ALREADY_EXISTS, 409),
            (ALREADY_CLAIMED, 409),
            (WRONG_OFFSET, 409),
            (NOT_ENDED, 409),
            (TOO_LARGE, 413),
            (WRONG_DIGEST, 422),
            (INVALID, 400),
            (LOCKED, 423),
            (CORRUPT, 500),
            (KEY_MISSING, 500),
            (UNAVAILABLE, 503),
        ] {
            assert_eq!(status(reason).as_u16(), code, "{reason}");
        }
    }
}
