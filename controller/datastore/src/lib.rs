//! `controller datastore`: where plans, logs, results, claims and managed states outlive pods (`design/0009-datastore.md`).
//!
//! | module | does | touches store or cluster |
//! |---|---|---|
//! | [`settings`] | command line | no |
//! | [`certificate`] | the certificate, made where nobody brings one | its Secret |
//! | [`http`] | requests: paths, bodies, answers; [`http::read`] is what people see, through the API server | through the others |
//! | [`service`] | everything that a request needs | through the others |
//! | [`auth`] | whether a pod may do what it asks for ([`auth::caller`]); persons, by [`auth::front_proxy`] | through `cluster` |
//! | [`cluster`] | all that is asked of the API server | yes |
//! | [`names`] | names of objects; no trick gets past it | no |
//! | [`crypt`] | keys and sealed streams | no |
//! | [`blob`] | bytes; records and blobs that are sealed; whether the keys are those of the store | yes |
//! | [`objects`] | what is kept of runs: objects, [logs](objects::log), [claims](objects::claim); [bundles](objects::sources) of repositories | through `blob` |
//! | [`state`] | managed states: versions, locks | through `blob` |
//! | [`outputs`] | published outputs: their records, and the ConfigMaps and Secrets that hold them | through `blob` and `cluster` |
//! | [`journal`] | journals, compared and read by the runs that recover | through the others |
//! | [`gc`] | what runs and repositories left that are gone | yes |
//! | [`metrics`] | what is counted | no |
//!
//! Connections, TLS, tokens, answers and health are the crate [`serving`]'s.

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
pub mod service;
pub mod settings;
pub mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::{StreamExt as _, stream};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crds::{clock::ServerClock, datastore::UNAVAILABLE};
use serving::{connections, health, problem::problem, tls};

use blob::{keyring, sealed::Sealed, store::Store};
use cluster::Kube;
use crypt::keys::Keys;
use service::Service;
use settings::{SecretName, Settings};

/// Pods that wait for a transfer keep their connections.
const LIMITS: connections::Limits = connections::Limits { connections: 512, head: Duration::from_secs(60) };

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
    let (stop, stopped) = watch::channel(false);
    let sealed = Sealed::new(store, Arc::new(Keys::waiting(&settings.keys)));
    let service = Service::new(sealed, cluster, settings.controller_account.clone(), stopped.clone());
    let service = Arc::new(service.publishing(settings.outputs_policy.clone()).fed_by(settings.sources_account.clone()));
    service.unfit.send_replace(Some(problem(UNAVAILABLE, "the keys are being looked at")));
    tokio::spawn(settle(service.clone(), settings.keys_secret.clone()));
    let listener = TcpListener::bind(settings.listen).await.with_context(|| format!("cannot listen on {}", settings.listen))?;
    let paths = (settings.tls_cert.clone(), settings.tls_key.clone());
    let proxies = if settings.no_read_api { stream::pending().boxed() } else { service.cluster.front_proxy() };
    let reads = service.clone();
    let authorities = proxies.map(move |proxy| {
        let authority = proxy.as_ref().map(|proxy| proxy.authority.clone());
        reads.front_proxy.send_replace(proxy.map(Arc::new));
        authority
    });
    let config = tls::serve(paths, files, authorities)?;
    tokio::spawn(gc::run(service.clone(), Duration::from_secs(settings.sweep_interval)));
    tokio::spawn(outputs::run(service.outputs.clone(), Duration::from_secs(settings.outputs_interval)));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), store = settings.store, listen = %settings.listen, "started");

    // The kubelet's questions come here as well: connections that wait for a transfer take no place of theirs.
    let (counted, asked) = (service.metrics.clone(), service.clone());
    let ready = move || {
        let service = asked.clone();
        async move { service.ready().await.map_err(|problem| problem.to_string()) }
    };
    let admin = health::serve(settings.metrics_listen, health::router(move || counted.exposition(), ready));
    let (router, opened) = (http::router(service.clone()), move || service.metrics.connection());
    let serving = tokio::spawn(connections::serve(router, opened, LIMITS, listener, Some(config), stopped));
    tokio::select! {
        served = admin => return served,
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
