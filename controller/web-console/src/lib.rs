//! The web console: what people see of Pawl in a browser (`design/0033-web-console.md`). REST API, live updates and the web UI of
//! `controller server`, on a listener of its own.
//!
//! The console decides no rights. It reads and writes objects as the person who asks ([`api_server`]), so RBAC and the admission policies
//! that guard `kubectl` guard the browser.

pub mod access;
pub mod acts;
pub mod address;
pub mod api_server;
pub mod pages;
pub mod person;
pub mod problem;
pub mod settings;
#[cfg(test)]
mod testing;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{Router, extract::Request};
use futures::stream;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tower::{Layer as _, util::MapRequestLayer};

use serving::{
    connections::{self, Limits},
    tls,
};

use access::Access;
use address::Address;
use api_server::ApiServer;
use settings::Settings;

/// Bounds of connections: 1,000 streams, and as many other connections.
pub const LIMITS: Limits = Limits {
    connections: 2048,
    head: Duration::from_secs(10),
};

/// The state of all handlers.
pub struct Console {
    pub api_server: ApiServer,
    pub access: Access,
    pub address: Address,
}

impl Console {
    /// # Errors
    /// The settings cannot be used.
    pub fn new(settings: &Settings, api_server: ApiServer) -> anyhow::Result<Self> {
        Ok(Self {
            api_server,
            access: Access::default(),
            address: settings.url.clone(),
        })
    }
}

/// Serves people until `stopped` becomes true.
///
/// # Errors
/// Certificate or address cannot be used.
pub async fn start(
    console: Arc<Console>,
    settings: &Settings,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<JoinHandle<()>> {
    let listener = TcpListener::bind(settings.web_listen)
        .await
        .with_context(|| format!("cannot listen on {}", settings.web_listen))?;
    let paths = settings
        .web_tls_cert
        .clone()
        .zip(settings.web_tls_key.clone());
    let configs = match paths {
        Some(paths) => {
            let files = tls::Files::read(&paths.0, &paths.1)?;
            Some(tls::serve(paths, files, stream::pending())?)
        }
        None => None,
    };
    tracing::info!(listen = %settings.web_listen, url = %console.address, "serves people");
    let router = router(console);
    Ok(tokio::spawn(connections::serve(
        router,
        || (),
        LIMITS,
        listener,
        configs,
        stopped,
    )))
}

/// The router of the listener for people. A proxy may strip the base path or leave it.
pub fn router(console: Arc<Console>) -> Router {
    let base = console.address.base().to_owned();
    let routes: Router = Router::new()
        .nest("/api/v1", pages::router())
        .with_state(console);
    let stripped = MapRequestLayer::new(move |request| without_base(&base, request));
    Router::new().fallback_service(stripped.layer(routes))
}

fn without_base(base: &str, mut request: Request) -> Request {
    let path = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let rest = path.strip_prefix(base).filter(|_| !base.is_empty());
    let stripped = match rest.and_then(|rest| rest.chars().next()) {
        Some('/') => rest.map(str::to_owned),
        Some('?') => rest.map(|rest| format!("/{rest}")),
        None if rest.is_some() => Some("/".to_owned()),
        _ => None,
    };
    if let Some(uri) = stripped.and_then(|uri| uri.parse().ok()) {
        *request.uri_mut() = uri;
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_path_is_stripped_if_it_is_there() {
        for (base, path, rest) in [
            ("", "/runs?a=b", "/runs?a=b"),
            ("/pawl", "/pawl/runs?a=b", "/runs?a=b"),
            ("/pawl", "/runs", "/runs"),
            ("/pawl", "/pawl", "/"),
            ("/pawl", "/pawl/", "/"),
            ("/pawl", "/pawl?a", "/?a"),
            ("/pawl", "/pawls/a", "/pawls/a"),
        ] {
            let request = Request::builder()
                .uri(path)
                .body(axum::body::Body::empty())
                .unwrap();
            assert_eq!(without_base(base, request).uri(), rest, "{base} {path}");
        }
    }
}
