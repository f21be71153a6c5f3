//! Reads the session of each request, and renews it.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use crate::{Console, problem::Problem};

/// Adds the session to the request's extensions, as an `Option<Session>`. Use renews it; a token that the API server refused ends it.
pub async fn keep(
    State(console): State<Arc<Console>>,
    mut request: Request,
    next: Next,
) -> Response {
    let sessions = &console.sessions;
    let session = match sessions.of(request.headers()) {
        Ok(Some(_)) if request.headers().contains_key(header::AUTHORIZATION) => {
            return Problem::new(
                StatusCode::BAD_REQUEST,
                "TwoIdentities",
                "the request has a session and a token; send one of them",
            )
            .into_response();
        }
        Ok(session) => session,
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(session.clone());
    let mut response = next.run(request).await;
    let Some(session) = session else {
        return response;
    };
    if response.headers().contains_key(header::SET_COOKIE) {
        return response;
    }
    let cookies = if response.status() == StatusCode::UNAUTHORIZED {
        sessions.no_cookies()
    } else {
        // A renewed session is as large as it was.
        let renewed = session.renewed();
        renewed.map_or_else(Vec::new, |session| {
            sessions.cookies(&session).unwrap_or_default()
        })
    };
    for cookie in cookies {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}
