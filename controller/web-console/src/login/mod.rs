//! Logging in and out. The API server names the person; the console keeps no accounts.

pub mod code;
pub mod oidc;
pub mod token;

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::from_fn_with_state,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Console,
    api_server::Token,
    guard,
    person::{Method, Person},
    problem::{Problem, json},
    session::Session,
};

pub fn router(console: &Arc<Console>) -> Router<Arc<Console>> {
    let confidential = from_fn_with_state(console.clone(), guard::confidential);
    Router::new()
        .route("/api/v1/login/token", post(token::log_in))
        .route("/api/v1/login/code", post(code::log_in))
        .route("/login/oidc", get(oidc::begin))
        .route("/login/oidc/callback", get(oidc::end))
        .route_layer(confidential)
        .route("/api/v1/login", get(ways))
        .route("/api/v1/codes", post(code::make))
        .route("/api/v1/logout", post(log_out))
        .route("/api/v1/me", get(me))
}

/// The person who asks.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    user: String,
    groups: Vec<String>,
    method: Method,
    /// The end of the session if it is not used, or of the bearer token; `null` if that has none.
    #[schemars(with = "Option<String>")]
    expires_at: Option<Timestamp>,
    /// The URL that people use.
    url: String,
    version: &'static str,
}

impl Me {
    fn new(console: &Console, user: &UserInfo, method: Method, until: Option<i64>) -> Self {
        Self {
            user: user.username.clone().unwrap_or_default(),
            groups: user.groups.clone().unwrap_or_default(),
            method,
            expires_at: until.and_then(|until| Timestamp::from_second(until).ok()),
            url: console.address.to_string(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

async fn me(State(console): State<Arc<Console>>, person: Person) -> Response {
    let me = Me::new(&console, &person.user, person.method, person.until);
    json(StatusCode::OK, &me)
}

/// The ways to log in.
#[derive(Serialize, JsonSchema)]
pub struct Ways {
    /// The URL that begins a login by OIDC, to which `?next=PATH` may be added; `null` without a provider.
    oidc: Option<String>,
}

async fn ways(State(console): State<Arc<Console>>) -> Response {
    let oidc = console.provider.is_some();
    let oidc = oidc.then(|| format!("{}/login/oidc", console.address));
    json(StatusCode::OK, &Ways { oidc })
}

/// Bytes of the head of a login's answer without cookies and location.
const HEAD: usize = 800;

/// The browser that logs in.
struct Browser<'a> {
    headers: &'a HeaderMap,
    /// The session that it has.
    earlier: Option<Session>,
    /// Where the answer leads to, if it is a redirect.
    location: &'a str,
}

/// Answers with a new session.
async fn establish(
    console: &Console,
    headers: &HeaderMap,
    earlier: Option<Session>,
    token: Token,
) -> Result<Response, Problem> {
    let browser = Browser {
        headers,
        earlier,
        location: "",
    };
    let (me, cookies) = session_of(console, browser, token, Method::Token).await?;
    Ok(with_cookies(json(StatusCode::OK, &me), cookies))
}

/// A new session with this token, and its cookies. An earlier one of the same browser ends.
async fn session_of(
    console: &Console,
    browser: Browser<'_>,
    token: Token,
    method: Method,
) -> Result<(Me, Vec<HeaderValue>), Problem> {
    let user = console.name(&token).await.map_err(refused)?;
    let session = Session::new(token, method)?;
    let cookies = console.sessions.cookies(&session)?;
    let lines = cookies
        .iter()
        .map(|cookie| "set-cookie: \r\n".len() + cookie.len());
    let head = HEAD + browser.location.len() + lines.sum::<usize>();
    if guard::is_forwarded(browser.headers) && head > console.proxy_buffer_size {
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "TokenTooLarge",
            format!(
                "the token needs an answer whose head has {head} bytes, and the proxy before the console passes {} on; no session was made. \
                 Log in with a token of fewer groups or claims, or let the proxy pass more (nginx: proxy_buffer_size 16k; ingress-nginx: \
                 the annotation nginx.ingress.kubernetes.io/proxy-buffer-size: 16k) and set server.proxyBufferSize: 16384 \
                 (--proxy-buffer-size)",
                console.proxy_buffer_size
            ),
        ));
    }
    if let Some(earlier) = browser.earlier {
        console.sessions.end(earlier.id);
    }
    let me = Me::new(console, &user, method, Some(session.until));
    tracing::info!(user = me.user, ?method, "logged in");
    Ok((me, cookies))
}

/// A refused token leaves the session that the browser has.
fn refused(problem: Problem) -> Problem {
    if problem.status != StatusCode::UNAUTHORIZED {
        return problem;
    }
    Problem::new(
        StatusCode::FORBIDDEN,
        "InvalidToken",
        "the API server does not accept this token: it is expired, or of another cluster or audience. `kubectl create token NAME` makes \
         one; a kubeconfig with certificates has none",
    )
}

/// Ends the session on this replica, with its streams, and removes its cookies.
async fn log_out(
    State(console): State<Arc<Console>>,
    Extension(session): Extension<Option<Session>>,
) -> Response {
    if let Some(session) = session {
        console.sessions.end(session.id);
    }
    with_cookies(
        StatusCode::NO_CONTENT.into_response(),
        console.sessions.no_cookies(),
    )
}

fn with_cookies(mut response: Response, cookies: Vec<HeaderValue>) -> Response {
    for cookie in cookies {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "Invalid",
            format!("the body: {error}"),
        )
    })
}
