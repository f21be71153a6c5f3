//! Logging in by an OIDC provider: authorization code with PKCE. The ID token becomes the session's token if the API server accepts it.

mod attempt;
mod provider;

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use openidconnect::url::form_urlencoded;
use sha2::{Digest as _, Sha256};

use crate::{
    Console, address::Address, api_server::Token, person::Method, problem::Problem,
    session::Session, strangers::Sender,
};

use super::{Browser, session_of, with_cookies};

use attempt::Attempt;
pub use provider::Provider;

/// Begins a login: sends the browser to the provider.
pub(super) async fn begin(State(console): State<Arc<Console>>, uri: Uri) -> Response {
    let next = parameter(&uri, "next").filter(|next| is_path(next));
    let begun = go(&console, next.unwrap_or_else(|| "/".into()), false);
    begun.await.unwrap_or_else(|problem| page(&problem))
}

async fn go(console: &Console, next: String, is_again: bool) -> Result<Response, Problem> {
    let provider = console.provider()?;
    let (location, attempt) = provider.authorize(next, is_again).await?;
    let cookies = attempt.cookies(&console.sessions)?;
    Ok(with_cookies(see_other(&location), cookies))
}

/// Ends a login: the provider sent the browser back.
pub(super) async fn end(
    State(console): State<Arc<Console>>,
    Extension(earlier): Extension<Option<Session>>,
    from: Sender,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let ended = ended(&console, earlier, &from, &headers, &uri).await;
    let response = ended.unwrap_or_else(|problem| page(&problem));
    // A new attempt has set its own.
    if response.status() == StatusCode::SEE_OTHER {
        return response;
    }
    with_cookies(response, Attempt::no_cookies(&console.sessions))
}

async fn ended(
    console: &Console,
    earlier: Option<Session>,
    from: &Sender,
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<Response, Problem> {
    let provider = console.provider()?;
    let attempt = Attempt::of(&console.sessions, headers)?;
    let state = parameter(uri, "state").unwrap_or_default();
    let Some(attempt) = attempt else {
        if earlier.is_some() {
            // Another tab has logged in meanwhile.
            return Ok(see_other(&console.address.to_string()));
        }
        return Err(problem(
            "the login took more than 10 min, or began in another browser",
        ));
    };
    if Sha256::digest(&attempt.state) != Sha256::digest(&state) {
        return again(console, attempt, "it began in another tab").await;
    }
    let Some(code) = parameter(uri, "code") else {
        let error = parameter(uri, "error").unwrap_or_default();
        let error: String = error
            .chars()
            .filter(char::is_ascii_graphic)
            .take(100)
            .collect();
        return Err(problem(&format!("the provider refused it ({error})")));
    };
    // Anyone can send a forged code, so the exchange counts against the bounds on strangers.
    let turn = provider.strangers.turn(from.0).await?;
    let token = provider.exchange(code, &attempt).await?;
    drop(turn);
    let Some(token) = token else {
        // Gitea answers two logins at a time with the nonce of the second.
        return again(console, attempt, "the ID token is not of this login").await;
    };
    let token = Token::new(&token).ok_or_else(|| problem("the ID token is larger than 16 KiB"))?;
    let location = format!("{}{}", console.address, attempt.next);
    let browser = Browser {
        headers,
        earlier,
        location: &location,
    };
    let session = session_of(console, browser, token, Method::Oidc).await;
    let (_, mut cookies) = session.map_err(|problem| {
        if problem.reason == "InvalidToken" {
            Problem::new(StatusCode::FORBIDDEN, "IssuerNotTrusted", provider.trust())
        } else {
            problem
        }
    })?;
    cookies.extend(Attempt::no_cookies(&console.sessions));
    Ok(with_cookies(see_other(&location), cookies))
}

/// Begins once more, but only once.
async fn again(console: &Console, attempt: Attempt, why: &str) -> Result<Response, Problem> {
    if attempt.is_again {
        return Err(problem(why));
    }
    go(console, attempt.next, true).await
}

fn problem(why: &str) -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "LoginFailed",
        format!(
            "the login by OIDC failed: {why}; no session was made. Log in again, or with a token"
        ),
    )
}

/// Plain text: the browser navigated here, and no script reads the answer.
fn page(problem: &Problem) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    let text = format!("{}: {}\n", problem.reason, problem.detail);
    (problem.status, kind, text).into_response()
}

fn see_other(location: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
}

fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let mut all = form_urlencoded::parse(uri.query()?.as_bytes());
    all.find(|(found, _)| found == name)
        .map(|(_, value)| value.into_owned())
}

/// Whether this is the path of a page, with its query. The URL that people use is put before it.
fn is_path(next: &str) -> bool {
    let is_plain = next
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    next.starts_with('/') && !next.starts_with("//") && is_plain && next.len() <= 1000
}

/// Where the provider sends the browser back to.
pub(crate) fn callback(address: &Address) -> String {
    format!("{address}/login/oidc/callback")
}

impl Console {
    fn provider(&self) -> Result<&Provider, Problem> {
        self.provider.as_ref().ok_or_else(|| {
            Problem::new(
                StatusCode::NOT_FOUND,
                "NoProvider",
                "this installation names no OIDC provider (--oidc-issuer); log in with a token",
            )
        })
    }
}

#[cfg(test)]
mod tests;
