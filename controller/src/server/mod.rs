//! `controller server`: receives webhooks of forges (`design/0029-webhooks.md`), and serves the web console to people on a listener of its
//! own (`design/0033-web-console.md`).
//!
//! A delivery is a hint: once its sender has proven that it knows the secret, a reconcile of the repository is requested, and `controller
//! sources` contacts the forge itself. Nothing in a payload is trusted, applied or fetched. A redelivery is one more
//! hint: pending requests coalesce, so it costs at most one `ls-remote`.
//!
//! | module | contents | accesses the cluster |
//! |---|---|---|
//! | [`forges`] | the properties of each forge, one row each | no |
//! | [`keys`] | secrets, compared in constant time | no |
//! | [`verify`] | authentication of deliveries | no |
//! | [`refusal`] | reasons for rejections | no |
//! | [`delivery_log`] | the last deliveries, for people | no |
//! | [`pending`] | pending requests, one per repository at a time | no |
//! | [`body`] | bodies, bounded in size and time | no |
//! | [`mod@repositories`] | the known repositories | by a watch |
//! | [`secrets`] | Secrets by name | reads |
//! | [`receiver`] | the handling of a delivery, from its first byte to the response | through the others |
//! | [`notifier`] | sends requests | writes one annotation |
//! | [`metrics`], [`settings`] | metrics; command line | no |

pub mod body;
pub mod delivery_log;
pub mod forges;
pub mod keys;
pub mod metrics;
pub mod notifier;
pub mod pending;
pub mod receiver;
pub mod refusal;
pub mod repositories;
pub mod secrets;
pub mod settings;
pub mod verify;

use std::{future::ready, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{Router, extract::State, http::StatusCode, response::Response, routing::get};
use futures::stream;
use kube::Client;
use serde_json::json;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use watching::Indexes;

use crds::{TerraformRepository, clock::ServerClock};
use serving::{
    auth::{Readable, hidden},
    connections::{self, Limits},
    health, problem, tls,
};

use web_console::{Console, api_server::ApiServer, session};

use crate::settings::scopes;

use receiver::Receiver;
use settings::Settings;

/// Bounds of connections, because anyone can open one.
pub const LIMITS: Limits = Limits {
    connections: 512,
    head: Duration::from_secs(10),
};
/// Timeout for pending requests at shutdown.
const LAST: Duration = Duration::from_secs(3);

/// Runs until a signal ends it.
///
/// # Errors
/// When certificate or addresses cannot be used.
pub async fn run(settings: Settings, client: Client, clock: ServerClock) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let receiver = Arc::new(Receiver::new(client.clone(), clock.clone()));
    let configs = match settings.tls_cert.clone().zip(settings.tls_key.clone()) {
        Some(paths) => {
            let files = tls::Files::read(&paths.0, &paths.1)?;
            Some(tls::serve(paths, files, stream::pending())?)
        }
        None => None,
    };
    let ((stop, stopped), (end, ended)) = (watch::channel(false), watch::channel(false));
    let api_server = ApiServer::without_credentials(kube::Config::infer().await?)?;
    let secret = session::secret::read(&client, settings.web.session_secret.as_deref());
    let secret = secret.await.context("--session-secret")?;
    let is_tls = configs.is_some();
    let mut console = Console::new(&settings.web, api_server, &secret, is_tls, stopped.clone())?;
    if settings.listen.is_some() {
        let receiver = receiver.clone();
        let deliveries = move |namespace: &str, name: &str| receiver.deliveries.of(namespace, name);
        console.deliveries = Some(Box::new(deliveries));
    }
    for scope in scopes(&settings.watch_namespaces) {
        let repositories = repositories(&receiver);
        console.rows.watch(&client, scope.as_deref(), repositories);
    }
    let people = web_console::start(Arc::new(console), &settings.web, configs.clone()).await?;
    let notifier = tokio::spawn(notifier::run(receiver.clone(), client, clock, ended));
    let (counted, admin) = (
        receiver.clone(),
        health::serve(settings.metrics_listen, admin(receiver.clone())),
    );
    let opened = move || counted.metrics.connection();
    let serving = match settings.listen {
        Some(address) => {
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot listen on {address}"))?;
            let routes = receiver::router(receiver);
            tokio::spawn(connections::serve(
                routes, opened, LIMITS, listener, configs, stopped,
            ))
        }
        None => tokio::spawn(ready(())),
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), hooks = ?settings.listen, "started");
    tokio::select! {
        served = admin => return served,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    stop.send_replace(true);
    let (forges, people) = tokio::join!(serving, people);
    forges.and(people).context("the service ended")?;
    // Send requests of deliveries that were answered with 202 before the process ends.
    end.send_replace(true);
    if tokio::time::timeout(LAST, notifier).await.is_err() {
        tracing::warn!(
            "some repositories were not notified; their refs are checked at the next interval"
        );
    }
    Ok(())
}

/// The indexes that a watch of repositories feeds for webhooks.
pub fn repositories(receiver: &Receiver) -> Indexes<TerraformRepository> {
    let repositories = &receiver.repositories;
    vec![repositories.clone(), repositories.listings.add()]
}

/// The router for clients within the cluster.
pub fn admin(receiver: Arc<Receiver>) -> Router {
    let (counted, listed) = (receiver.clone(), receiver.clone());
    let is_listed = move || {
        ready(
            listed
                .repositories
                .listings
                .is_ready()
                .then_some(())
                .ok_or("the repositories are being listed".to_owned()),
        )
    };
    health::router(move || counted.metrics.exposition(), is_listed).merge(
        Router::new()
            .route(
                "/api/v1/namespaces/{namespace}/repositories/{name}/deliveries",
                get(deliveries_json),
            )
            .with_state(receiver),
    )
}

async fn deliveries_json(
    State(receiver): State<Arc<Receiver>>,
    of: Readable<TerraformRepository>,
) -> Response {
    if !receiver.repositories.has(&of.namespace, &of.name) {
        return problem::response(&hidden());
    }
    problem::json(
        StatusCode::OK,
        &json!({"items": receiver.deliveries.of(&of.namespace, &of.name)}),
    )
}
