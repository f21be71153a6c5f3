//! The web console: what people see of Pawl in a browser (`design/0033-web-console.md`). REST API, live updates and the web UI of
//! `controller server`, on a listener of its own.
//!
//! The console decides no rights. It reads and writes objects as the person who asks ([`api_server`]), so RBAC and the admission policies
//! that guard `kubectl` guard the browser.

pub mod access;
pub mod acts;
pub mod address;
pub mod api_server;
pub mod assets;
pub mod away;
pub mod budget;
pub mod guard;
pub mod inbox;
pub mod lists;
pub mod login;
pub mod method;
pub mod openapi;
pub mod pages;
pub mod person;
pub mod problem;
pub mod rows;
pub mod session;
pub mod settings;
pub mod strangers;
pub mod stream;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{
    Router,
    extract::Request,
    middleware::{from_fn_with_state, map_response},
};
use ipnet::IpNet;
use jiff::Timestamp;
use rustls::ServerConfig;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tower::{Layer as _, util::MapRequestLayer};

use serving::{
    auth::Authenticator,
    connections::{self, Limits},
};

use access::Access;
use address::Address;
use api_server::ApiServer;
use login::{code::Codes, oidc::Provider};
use pages::repository::Deliveries;
use rows::Rows;
use session::Sessions;
use settings::Settings;
use strangers::Strangers;
use stream::Streams;

/// Bounds of connections: 1,000 streams, and as many other connections.
pub const LIMITS: Limits = Limits {
    connections: 2048,
    head: Duration::from_secs(10),
};

/// The state of all handlers.
pub struct Console {
    pub api_server: ApiServer,
    pub access: Access,
    pub rows: Arc<Rows>,
    pub streams: Streams,
    /// The deliveries of webhooks; `None` when this process receives none.
    pub deliveries: Option<Deliveries>,
    pub started: Timestamp,
    /// Whether the API server does not respond.
    pub away: watch::Sender<bool>,
    pub address: Address,
    /// Networks of proxies that terminate TLS.
    pub proxies: Vec<IpNet>,
    /// Most bytes of an answer's head that they pass on.
    proxy_buffer_size: usize,
    /// Whether the listener itself serves TLS.
    pub is_tls: bool,
    pub sessions: Sessions,
    pub codes: Codes,
    /// Of logins by OIDC.
    pub provider: Option<Provider>,
    /// Names of people by their tokens.
    names: Authenticator,
    pub strangers: Strangers,
    /// Becomes true when the console stops.
    pub stopped: watch::Receiver<bool>,
}

impl Console {
    /// A console whose sessions are encrypted with `secret`.
    ///
    /// # Errors
    /// The secret is too short, or a setting of OIDC cannot be used.
    pub fn new(
        settings: &Settings,
        api_server: ApiServer,
        secret: &[u8],
        is_tls: bool,
        stopped: watch::Receiver<bool>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            access: Access::default(),
            rows: Arc::default(),
            streams: Streams::default(),
            deliveries: None,
            started: Timestamp::now(),
            away: watch::Sender::default(),
            address: settings.url.clone(),
            proxies: settings.behind_tls_proxy.clone(),
            proxy_buffer_size: settings.proxy_buffer_size,
            is_tls,
            sessions: Sessions::new(secret, &settings.url)?,
            codes: Codes::default(),
            provider: Provider::new(settings)?,
            names: Authenticator::new(Arc::new(api_server.clone())),
            strangers: Strangers::default(),
            api_server,
            stopped,
        })
    }
}

/// Serves people until the console stops, by plain HTTP without TLS configurations.
///
/// # Errors
/// The address cannot be used.
pub async fn start(
    console: Arc<Console>,
    settings: &Settings,
    configs: Option<watch::Receiver<Arc<ServerConfig>>>,
) -> anyhow::Result<JoinHandle<()>> {
    let stopped = console.stopped.clone();
    let listener = TcpListener::bind(settings.web_listen)
        .await
        .with_context(|| format!("cannot listen on {}", settings.web_listen))?;
    tracing::info!(listen = %settings.web_listen, url = %console.address, "serves people");
    tokio::spawn(away::follow(console.clone()));
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
    let routes = Router::new()
        .merge(login::router(&console))
        .merge(pages::router())
        .merge(openapi::router())
        .merge(lists::router())
        .merge(inbox::router())
        .merge(stream::router())
        .merge(assets::router(&base))
        .layer(from_fn_with_state(console.clone(), session::keep))
        .layer(from_fn_with_state(console.clone(), guard::check))
        .layer(map_response(guard::headers))
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
