//! Logging in with a token of one's own: `kubectl create token NAME`.

use std::sync::Arc;

use axum::{Extension, body::Bytes, extract::State, http::HeaderMap, response::Response};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{Console, api_server::Token, problem::Problem, session::Session, strangers::Sender};

use super::{establish, parsed, refused};

/// The body of this login.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "GivenToken")]
pub struct Given {
    token: String,
}

pub(super) async fn log_in(
    State(console): State<Arc<Console>>,
    Extension(earlier): Extension<Option<Session>>,
    from: Sender,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let given: Given = parsed(&body)?;
    // A token is often pasted with its line break.
    let token = Token::new(given.token.trim()).ok_or_else(Problem::unauthenticated);
    let token = token.map_err(refused)?;
    console.meet(&token, &from).await.map_err(refused)?;
    establish(&console, &headers, earlier, token).await
}
