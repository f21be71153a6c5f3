//! A fake API server for unit tests.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{HeaderValue, Method, Request, Response, header},
};
use kube::Client;
use serde_json::{Value, json};

use tokio::sync::watch;

use crate::{
    Console,
    api_server::{ApiServer, Token},
    settings::Settings,
};

/// Time that an answer takes to a token with `slow`.
pub(crate) const SLOW: Duration = Duration::from_secs(5);

/// An API server that answers method, path, bearer token and body with a status and an object.
pub(crate) fn api_server(
    answer: impl Fn(&Method, &str, &str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> ApiServer {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let token = parts.headers[header::AUTHORIZATION].to_str().unwrap();
            let token = token.trim_start_matches("Bearer ").to_owned();
            if token.contains("slow") {
                tokio::time::sleep(SLOW).await;
            }
            let body = to_bytes(Body::new(body), 1 << 20).await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            let (status, object) = answer(&parts.method, path, &token, &body);
            let response = Response::builder()
                .status(status)
                .body(Body::from(object.to_string()))
                .unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    ApiServer::of(Client::new(service, "default"))
}

/// Names the user of a token: `ada`, or `ada.1` for another token of hers. Tokens with `bad` are refused.
pub(crate) fn name(token: &str) -> (u16, Value) {
    if token.contains("bad") {
        return refused();
    }
    let user = token.split('.').next();
    (
        201,
        json!({"status": {"userInfo": {"username": user, "groups": ["system:authenticated"],
            "extra": {"authentication.kubernetes.io/credential-id": [token]}}}}),
    )
}

pub(crate) fn refused() -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Unauthorized",
        "reason": "Unauthorized", "code": 401});
    (401, status)
}

/// Cookies of an answer, as a browser sends them back.
pub(crate) fn sent_back<'a>(cookies: impl IntoIterator<Item = &'a HeaderValue>) -> String {
    let cookies = cookies.into_iter().map(|it| it.to_str().unwrap());
    let pairs = cookies.map(|cookie| cookie.split(';').next().unwrap());
    pairs.collect::<Vec<_>>().join("; ")
}

pub(crate) fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

/// A console with this URL and the API server above, behind a proxy in 10.0.0.0/8.
pub(crate) fn console(url: &str) -> Arc<Console> {
    Arc::new(console_of(url, api_server(|_, _, token, _| name(token))))
}

/// The same with another API server.
pub(crate) fn console_of(url: &str, api_server: ApiServer) -> Console {
    let stopped = watch::channel(false).1;
    Console::new(&settings(url), api_server, &[7; 32], false, stopped).unwrap()
}

/// Settings without a provider.
pub(crate) fn settings(url: &str) -> Settings {
    Settings {
        web_listen: "127.0.0.1:0".parse().unwrap(),
        url: url.parse().unwrap(),
        session_secret: None,
        behind_tls_proxy: vec!["10.0.0.0/8".parse().unwrap()],
        proxy_buffer_size: 4096,
        oidc_issuer: None,
        oidc_client_id: None,
        oidc_client_secret_file: None,
        oidc_ca: None,
        oidc_scopes: Vec::new(),
    }
}
