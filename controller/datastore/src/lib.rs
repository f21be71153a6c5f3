//! `controller datastore`: where plans, logs, results, claims and managed states outlive pods (`design/0009-datastore.md`).
//!
//! | module | does | touches store or cluster |
//! |---|---|---|
//! | [`settings`] | command line | no |
//! | [`serve`], [`tls`] | connections | no |
//! | [`certificate`] | the certificate, made where nobody brings one | its Secret |
//! | [`http`] | requests: paths, bodies, answers; [`http::read`] is what people see, through the API server | through the others |
//! | [`service`] | everything that a request needs | through the others |
//! | [`auth`] | who asks ([`auth::token`], [`auth::front_proxy`]), and whether they may ([`auth::caller`]) | token reviews |
//! | [`cluster`] | all that is asked of the API server | yes |
//! | [`names`] | names of objects; no trick gets past it | no |
//! | [`crypt`] | keys and sealed streams | no |
//! | [`blob`] | bytes; records and blobs that are sealed; whether the keys are those of the store | yes |
//! | [`objects`] | what is kept of runs: objects, [logs](objects::log), [claims](objects::claim); [bundles](objects::sources) of repositories | through `blob` |
//! | [`state`] | managed states: versions, locks | through `blob` |
//! | [`outputs`] | published outputs: their records, and the ConfigMaps and Secrets that hold them | through `blob` and `cluster` |
//! | [`journal`] | journals, compared and read by the runs that recover | through the others |
//! | [`gc`] | what runs and repositories left that are gone | yes |
//! | [`metrics`], [`problem`] | what is counted; what is no success | no |

pub mod auth;
pub mod blob;
pub mod certificate;
pub mod cluster;
pub mod crypt;
pub mod gc;
pub mod http;
pub mod journal;
pub mod metrics;
pub mod names;
pub mod objects;
pub mod outputs;
pub mod problem;
pub mod serve;
pub mod service;
pub mod settings;
pub mod state;
pub mod tls;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crds::{clock::ServerClock, datastore::UNAVAILABLE};

use blob::{keyring, sealed::Sealed, store::Store};
use cluster::Kube;
use crypt::keys::Keys;
use service::Service;
use settings::{SecretName, Settings};

/// Pods that wait for a transfer keep their connections.
const LIMITS: serve::Limits = serve::Limits { connections: 512, head: Duration::from_secs(60) };

/// Runs until a signal ends it.
///
/// # Errors
/// When store, certificate, cluster or addresses cannot be used.
pub async fn run(settings: Settings, client: kube::Client, clock: ServerClock) -> anyhow::Result<()> {
    let store = Store::open(&settings.store, &std::env::vars().collect()).context("no store")?;
    let cluster = Arc::new(Kube::new(client, clock));
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let files = tokio::select! {
        files = certificate::obtain(&settings, &*cluster) => files?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let config = files.config(None)?;
    let (stop, stopped) = watch::channel(false);
    let sealed = Sealed::new(store, Arc::new(Keys::waiting(&settings.keys)));
    let service = Service::new(sealed, cluster, settings.controller_account.clone(), stopped.clone());
    let service = Arc::new(service.publishing(settings.outputs_policy.clone()).fed_by(settings.sources_account.clone()));
    service.unfit.send_replace(Some(problem::problem(UNAVAILABLE, "the keys are being looked at")));
    tokio::spawn(settle(service.clone(), settings.keys_secret.clone()));
    let listener = TcpListener::bind(settings.listen).await.with_context(|| format!("cannot listen on {}", settings.listen))?;
    let (configs, config) = watch::channel(Arc::new(config));
    let paths = (settings.tls_cert.clone(), settings.tls_key.clone());
    tokio::spawn(tls::refresh(service.clone(), paths, !settings.no_read_api, files, configs));
    tokio::spawn(gc::run(service.clone(), Duration::from_secs(settings.sweep_interval)));
    tokio::spawn(outputs::run(service.outputs.clone(), Duration::from_secs(settings.outputs_interval)));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), store = settings.store, listen = %settings.listen, "started");

    // The kubelet's questions come here as well: connections that wait for a transfer take no place of theirs.
    let metrics = Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready_text))
        .with_state(service.clone());
    let (router, opened) = (http::router(service.clone()), move || service.metrics.connection());
    let serving = tokio::spawn(serve::serve(router, opened, LIMITS, listener, Some(config), stopped));
    let admin = async { axum::serve(TcpListener::bind(settings.metrics_listen).await?, metrics).await };
    tokio::select! {
        served = admin => return served.with_context(|| format!("cannot listen on {}", settings.metrics_listen)),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    stop.send_replace(true);
    serving.await.context("the service ended")
}

/// Makes sure of the keys, for as long as it takes; until then nothing is served but the answer why.
async fn settle(service: Arc<Service>, secret: Option<SecretName>) {
    let mut wait = Duration::from_millis(250);
    while let Err(problem) = keyring::settle(&service.sealed, &*service.cluster, secret.as_ref()).await {
        tracing::error!(reason = problem.reason, "not ready: {}", problem.message);
        service.unfit.send_replace(Some(problem));
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(10));
    }
    service.unfit.send_replace(None);
}

async fn ready_text(State(service): State<Arc<Service>>) -> (StatusCode, String) {
    match service.ready().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

async fn metrics_text(State(service): State<Arc<Service>>) -> metrics::Exposition {
    service.metrics.exposition()
}
