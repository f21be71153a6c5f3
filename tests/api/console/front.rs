//! Consoles at loopback addresses, and an API server of theirs behind a front of the test.

use std::sync::Arc;

use anyhow::Result;
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    response::{IntoResponse as _, Response},
};
use harness::cluster::access::ACTOR;
use kube::{Client, Config, client::Body as KubeBody, config::AuthInfo};
use reqwest::{
    StatusCode,
    header::{HeaderValue, USER_AGENT},
};
use tokio::{net::TcpListener, sync::watch};
use web_console::{Console, api_server::ApiServer};

use crate::world::World;

/// A console in this process, with its default settings, that never stops; and its URL.
///
/// # Errors
/// The settings cannot be used.
pub(crate) async fn started(api_server: ApiServer) -> Result<(Arc<Console>, String)> {
    let (sender, stopped) = watch::channel(false);
    // A sender that is dropped ends all streams.
    std::mem::forget(sender);
    let settings = super::settings("http://127.0.0.1:8444")?;
    let console = Console::new(&settings, api_server, &[7; 32], false, stopped).map(Arc::new)?;
    let url = serve(web_console::router(console.clone())).await?;
    Ok((console, url))
}

/// The API server for a console's people, behind a function that may change a request or answer it. The requests count as a test's.
///
/// # Errors
/// The configuration cannot be used.
pub(crate) async fn passing(
    world: &World,
    answer: impl Fn(&mut Request) -> Option<Response> + Clone + Send + Sync + 'static,
) -> Result<ApiServer> {
    let mut config = world.access.config().await?;
    config.auth_info = AuthInfo::default();
    let actor = HeaderValue::from_static(ACTOR);
    config.headers.push((USER_AGENT, actor));
    let client = Client::try_from(config)?;
    let front = async move |mut request: Request| match answer(&mut request) {
        Some(answered) => answered,
        None => pass(&client, request).await,
    };
    let url = serve(Router::new().fallback(front)).await?;
    ApiServer::without_credentials(Config::new(url.parse()?))
}

async fn serve(router: Router) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(url)
}

async fn pass(client: &Client, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap_or_default();
    let request = http::Request::from_parts(parts, KubeBody::from(body.to_vec()));
    match client.send(request).await {
        Ok(response) => response.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
