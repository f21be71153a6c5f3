//! `controller datastore`: where plans, logs, results, claims and managed states outlive pods (`design/0009-datastore.md`).
//!
//! | module | does | touches store or cluster |
//! |---|---|---|
//! | [`settings`] | command line | no |
//! | [`serve`], [`tls`] | connections | no |
//! | [`service`], [`http`] | requests: paths, bodies, answers | through the others |
//! | [`auth`] | who asks ([`auth::token`], [`auth::front_proxy`]), and whether they may ([`auth::caller`]) | token reviews |
//! | [`cluster`] | all that is asked of the API server | yes |
//! | [`names`] | names of objects; no trick gets past it | no |
//! | [`crypt`] | keys and sealed streams | no |
//! | [`store`], [`sealed`] | bytes; records and blobs that are sealed | yes |
//! | [`objects`], [`log`], [`claim`], [`state`] | what is kept | through `sealed` |
//! | [`journal`] | journals, compared and read by the runs that recover | through the others |
//! | [`sweep`] | what runs left that are gone | yes |
//! | [`read`] | what people see, through the API server | through the others |
//! | [`metrics`], [`problem`] | what is counted; what is no success | no |

pub mod auth;
pub mod claim;
pub mod cluster;
pub mod crypt;
pub mod http;
pub mod journal;
pub mod log;
pub mod metrics;
pub mod names;
pub mod objects;
pub mod problem;
pub mod read;
pub mod sealed;
pub mod serve;
pub mod service;
pub mod settings;
pub mod state;
pub mod store;
pub mod sweep;
pub mod tls;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{Router, extract::State, http::header::CONTENT_TYPE, response::IntoResponse, routing::get};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use cluster::Kube;
use crypt::keys::Keys;
use sealed::Sealed;
use service::Service;
use settings::Settings;
use store::Store;

/// Runs until a signal ends it.
///
/// # Errors
/// When keys, store, certificate, cluster or addresses cannot be used.
pub async fn run(settings: Settings, client: kube::Client) -> anyhow::Result<()> {
    let keys = Keys::open(&settings.keys).context("no keys")?;
    let store = Store::open(&settings.store, &std::env::vars().collect()).context("no store")?;
    let files = tls::Files::read(&settings.tls_cert, &settings.tls_key)?;
    let config = files.config(None)?;
    let (stop, stopped) = watch::channel(false);
    let sealed = Sealed::new(store, Arc::new(keys));
    let cluster = Arc::new(Kube::new(client));
    let service = Arc::new(Service::new(sealed, cluster, settings.controller_account.clone(), stopped.clone()));
    let listener = TcpListener::bind(settings.listen).await.with_context(|| format!("cannot listen on {}", settings.listen))?;
    let (configs, config) = watch::channel(Arc::new(config));
    let paths = (settings.tls_cert.clone(), settings.tls_key.clone());
    tokio::spawn(tls::refresh(service.clone(), paths, !settings.no_read_api, files, configs));
    tokio::spawn(sweep::run(service.clone(), Duration::from_secs(settings.sweep_interval)));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), store = settings.store, listen = %settings.listen, "started");

    let metrics = Router::new().route("/metrics", get(metrics_text)).with_state(service.clone());
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let serving = tokio::spawn(serve::serve(service, listener, config, stopped));
    tokio::select! {
        served = crate::admin::serve(settings.metrics_listen, metrics) => {
            return served.with_context(|| format!("cannot listen on {}", settings.metrics_listen));
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    stop.send_replace(true);
    serving.await.context("the service ended")
}

async fn metrics_text(State(service): State<Arc<Service>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], service.metrics.encode())
}
