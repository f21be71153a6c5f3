//! `controller datastore`: stores plans, logs, results, claims and managed states beyond the life of pods
//! (`design/0009-datastore.md`).
//!
//! | module | responsibility | accesses store or cluster |
//! |---|---|---|
//! | [`settings`] | command line | no |
//! | [`certificate`] | the certificate, created if the operator provides none | its Secret |
//! | [`http`] | requests: paths, bodies, responses; [`http::read`] serves people through the API server | through the others |
//! | [`service`] | shared state of all requests | through the others |
//! | [`auth`] | authorization of pods ([`auth::caller`]); authentication of people, by [`auth::front_proxy`] | through `cluster` |
//! | [`cluster`] | all calls to the API server | yes |
//! | [`names`] | validated names of objects | no |
//! | [`crypt`] | keys and encrypted streams | no |
//! | [`blob`] | bytes; encrypted records and blobs; the checks that store, cluster and keys belong together | yes |
//! | [`objects`] | data of runs: objects, [logs](objects::log), [claims](objects::claim); [snapshots](objects::sources) of repositories | through `blob` |
//! | [`state`] | managed states: versions, locks | through `blob` |
//! | [`outputs`] | published outputs: their records, ConfigMaps and Secrets | through `blob` and `cluster` |
//! | [`journal`] | journals, compared with states and read by recovery runs | through the others |
//! | [`gc`] | data of deleted runs and repositories | yes |
//! | [`metrics`] | metrics | no |
//!
//! The crate [`serving`] provides connections, TLS, tokens, error responses and health.

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

use crds::{
    clock::ServerClock,
    datastore::{Problem, UNAVAILABLE},
};
use serving::{connections, health, problem::problem, tls};

use blob::{identity, keyring, sealed::Sealed, store::Store};
use cluster::Kube;
use crypt::keys::Keys;
use service::Service;
use settings::Settings;

/// Pods that wait for a transfer keep their connections open.
const LIMITS: connections::Limits = connections::Limits {
    connections: 512,
    head: Duration::from_secs(60),
};

/// Runs until a signal ends it.
///
/// # Errors
/// When store, certificate, cluster or addresses cannot be used.
pub async fn run(
    settings: Settings,
    client: kube::Client,
    clock: ServerClock,
) -> anyhow::Result<()> {
    let store = Store::open(&settings.store, &std::env::vars().collect()).context("no store")?;
    let cluster = Arc::new(Kube::new(client, clock));
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let files = tokio::select! {
        files = certificate::obtain(&settings, &*cluster) => files?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let (stop, stopped) = watch::channel(false);
    let sealed = Sealed::new(store, Arc::new(Keys::waiting(&settings.keys)));
    let service = Service::new(
        sealed,
        cluster,
        settings.controller_account.clone(),
        stopped.clone(),
    );
    let service = Arc::new(
        service
            .publishing(settings.outputs_policy.clone())
            .fed_by(settings.sources_account.clone()),
    );
    service
        .unfit
        .send_replace(Some(problem(UNAVAILABLE, "the keys are being loaded")));
    tokio::spawn(settle(service.clone(), settings.clone()));
    let listener = TcpListener::bind(settings.listen)
        .await
        .with_context(|| format!("cannot listen on {}", settings.listen))?;
    let paths = (settings.tls_cert.clone(), settings.tls_key.clone());
    let proxies = if settings.no_read_api {
        stream::pending().boxed()
    } else {
        service.cluster.front_proxy()
    };
    let reads = service.clone();
    let authorities = proxies.map(move |proxy| {
        let authority = proxy.as_ref().map(|proxy| proxy.authority.clone());
        reads.front_proxy.send_replace(proxy.map(Arc::new));
        authority
    });
    let config = tls::serve(paths, files, authorities)?;
    tokio::spawn(gc::run(
        service.clone(),
        Duration::from_secs(settings.sweep_interval),
    ));
    tokio::spawn(outputs::run(
        service.outputs.clone(),
        Duration::from_secs(settings.outputs_interval),
    ));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), store = settings.store, listen = %settings.listen, "started");

    // The kubelet's probes have this separate listener, so that connections that wait for a transfer cannot block them.
    let counted = service.metrics.clone();
    let routes = health::router(
        move || counted.exposition(),
        http::readiness(service.clone()),
    );
    let admin = health::serve(settings.metrics_listen, routes);
    let (router, opened) = (http::router(service.clone()), move || {
        service.metrics.connection()
    });
    let serving = tokio::spawn(connections::serve(
        router,
        opened,
        LIMITS,
        listener,
        Some(config),
        stopped,
    ));
    tokio::select! {
        served = admin => return served,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    stop.send_replace(true);
    serving.await.context("the service ended")
}

/// Checks store and keys until they are usable. Until then every request is answered with the problem.
async fn settle(service: Arc<Service>, settings: Settings) {
    let mut wait = Duration::from_millis(250);
    while let Err(problem) = usable(&service, &settings).await {
        tracing::error!(reason = problem.reason, "not ready: {}", problem.message);
        service.unfit.send_replace(Some(problem));
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(10));
    }
    service.unfit.send_replace(None);
}

/// The store before the keys: no key is made for a store that is not the cluster's.
async fn usable(service: &Service, settings: &Settings) -> Result<(), Problem> {
    let (store, cluster) = (service.sealed.store(), &*service.cluster);
    if let Some(secret) = &settings.identity_secret {
        identity::settle(store, cluster, secret, &settings.adopt).await?;
    }
    identity::creates_once(store).await?;
    keyring::settle(&service.sealed, cluster, settings.keys_secret.as_ref()).await
}
