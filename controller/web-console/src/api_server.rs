//! Requests to the API server with the token of a person. The client has no credentials of its own.

use anyhow::Context as _;
use axum::http::{HeaderValue, Request, Response, header};
use kube::{Client, Config, client::Body};
use serde::de::DeserializeOwned;

use serving::call::{CallError, call};

/// The `User-Agent` of requests for people.
const AGENT: &str = "pawl-web-console";
/// Maximum length of a token, in bytes.
const LONGEST: usize = 16 << 10;

/// The API server, reached without credentials.
#[derive(Clone)]
pub struct ApiServer(Client);

/// A person's bearer token. It is never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(HeaderValue);

impl Token {
    /// `None` if it is no bearer token, or longer than 16 KiB.
    pub fn new(token: &str) -> Option<Self> {
        let is_token = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.is_empty() || token.len() > LONGEST || !is_token {
            return None;
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }

    /// The token itself.
    pub fn secret(&self) -> &str {
        self.0
            .to_str()
            .unwrap_or_default()
            .trim_start_matches("Bearer ")
    }
}

impl ApiServer {
    /// The API server of this configuration; drops its credentials.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn without_credentials(mut config: Config) -> anyhow::Result<Self> {
        config.auth_info = kube::config::AuthInfo::default();
        config.default_retry = false;
        Ok(Self(Client::try_from(config).context("no client")?))
    }

    /// The API server behind a client without credentials.
    pub fn of(client: Client) -> Self {
        Self(client)
    }

    /// Whether the API server responds and is ready, asked without a token. A refusal of strangers is a response too.
    pub async fn is_ready(&self) -> bool {
        let request = Request::get("/readyz").body(Vec::new());
        let request = request.unwrap_or_default().map(Body::from);
        let answer = call("look", self.0.send(request)).await;
        answer.is_ok_and(|answer| !answer.status().is_server_error())
    }

    /// Sends a request as the person and parses the response.
    ///
    /// # Errors
    /// The API server refused it or did not respond.
    pub async fn call<T: DeserializeOwned>(
        &self,
        what: &'static str,
        token: &Token,
        mut request: Request<Vec<u8>>,
    ) -> Result<T, CallError> {
        sign(&mut request, token);
        call(what, self.0.request(request)).await
    }

    /// Sends a request as the person; the response streams. A response with an error code is returned as it is.
    ///
    /// # Errors
    /// The API server did not respond.
    pub async fn send(
        &self,
        what: &'static str,
        token: &Token,
        mut request: Request<Vec<u8>>,
    ) -> Result<Response<Body>, CallError> {
        sign(&mut request, token);
        call(what, self.0.send(request.map(Body::from))).await
    }
}

fn sign(request: &mut Request<Vec<u8>>, token: &Token) {
    let headers = request.headers_mut();
    headers.insert(header::AUTHORIZATION, token.0.clone());
    // The audit log tells by it that a person acted in the console.
    headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
}
