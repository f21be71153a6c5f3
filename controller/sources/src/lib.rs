//! `controller sources`: follows Git repositories (`design/0028-repositories.md`). It is the only component that uses
//! Git, and has rights for that only.
//!
//! | module | contents | accesses |
//! |---|---|---|
//! | [`settings`] | command line | nothing |
//! | [`watch`] | the watches, and the workers of repositories | the API server |
//! | [`worker`] | the loop of one repository: wait, check, write | the API server |
//! | [`schedule`] | when a repository is checked | nothing |
//! | [`slots`] | the number of checks at a time | nothing |
//! | [`sync`] | one check: refs, mirrors, snapshots, news for layers | through the others |
//! | [`follow`] | repositories and layers as seen by the watches | nothing |
//! | [`status`] | the status of a repository after a check | nothing |
//! | [`refs`], [`commit`], [`tree`] | parsers of git's output | nothing |
//! | [`relevance`], [`glob`] | the part of a tree that is relevant to a layer, and its digest | nothing |
//! | [`walk`], [`references`], [`place`] | references of the code in a tree | nothing |
//! | [`server`] | access to a repository | through the others |
//! | [`mirror`], [`submodules`] | bare, shallow copies of repositories | git, disk |
//! | [`git`] | running git | processes |
//! | [`api_server`] | the addresses of the API server's processes | the API server |
//! | [`proxy`], [`addresses`] | the way of git to servers, and the addresses that it may reach | the network |
//! | [`credentials`], [`github_app`] | credentials for servers | the forge's API |
//! | [`store`] | storage of snapshots | the datastore |
//! | [`gc`] | deletion of unused snapshots | the API server, the datastore |
//! | [`failure`] | failures: reason, message, next step | nothing |
//! | [`metrics`] | metrics | nothing |

pub mod addresses;
pub mod api_server;
pub mod commit;
pub mod credentials;
pub mod failure;
pub mod follow;
pub mod functions;
pub mod gc;
pub mod git;
pub mod github_app;
pub mod glob;
mod large;
mod mentions;
pub mod metrics;
pub mod mirror;
pub mod place;
pub mod proxy;
pub mod references;
pub mod refs;
pub mod relevance;
pub mod schedule;
pub mod server;
pub mod settings;
pub mod slots;
pub mod status;
pub mod store;
pub mod submodules;
pub mod sync;
pub mod tree;
pub mod walk;
pub mod wanted;
pub mod watch;
pub mod worker;

use std::{
    future::ready, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration,
};

use anyhow::Context as _;
use crds::clock::ServerClock;
use serving::{events::Events, health};
use source::authorities;
use tokio::signal::unix::{SignalKind, signal};

use addresses::Addresses;
use follow::Follow;
use git::Commands;
use github_app::Tokens;
use metrics::Metrics;
use mirror::Mirrors;
use proxy::Outbound;
use server::Servers;
use settings::Settings;
use slots::Slots;
use store::Snapshots;
use sync::Syncer;
use watch::Workers;
use worker::Shared;

/// Runs until a signal ends it. The next process repeats interrupted work.
///
/// # Errors
/// When mirrors or addresses cannot be used.
pub async fn run(
    settings: Settings,
    client: kube::Client,
    clock: ServerClock,
) -> anyhow::Result<()> {
    let snapshots = store::datastore(
        &settings.datastore_url,
        settings.datastore_ca.clone(),
        settings.datastore_token.clone(),
    );
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let scopes = settings.scopes();
    let metrics = Arc::new(Metrics::awaiting(2 * scopes.len()));
    let (private, outbound, syncer) = syncer(&settings, snapshots).await?;
    tokio::spawn(api_server::deny(client.clone(), outbound));
    let shared = Arc::new(Shared {
        events: Events::new(client.clone(), "pawl-sources"),
        client,
        clock,
        follow: std::sync::Mutex::new(Follow::default()),
        wanted: std::sync::Mutex::default(),
        syncer,
        slots: Slots::new(settings.concurrency.into()),
        metrics: metrics.clone(),
        secrets_role: settings.secrets_role.clone(),
    });
    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespaces = ?settings.watch_namespaces, "started");
    let workers = Arc::new(Workers::new(shared.clone()));
    let mut tasks = tokio::task::JoinSet::new();
    for scope in scopes.clone() {
        tasks.spawn(workers.clone().watch(scope));
    }
    tasks.spawn(workers.clone().wanted());
    tasks.spawn(gc::run(
        shared,
        scopes,
        Duration::from_secs(settings.sweep_interval),
    ));
    let asked = metrics.clone();
    let routes = health::router(
        move || metrics.exposition(),
        move || ready(asked.readiness.check()),
    );
    tokio::select! {
        served = health::serve(settings.listen, routes) => return served,
        _ = tasks.join_next() => anyhow::bail!("the watches ended"),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    drop(private);
    Ok(())
}

/// Creates the syncer with its way to servers, and the directory of private keys, which is deleted on drop.
async fn syncer<B: Snapshots>(
    settings: &Settings,
    snapshots: B,
) -> anyhow::Result<(tempfile::TempDir, Outbound, Syncer<B>)> {
    let memory = Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder
        .prefix("pawl-")
        .permissions(std::fs::Permissions::from_mode(0o700));
    // In memory if possible, so that keys are not written to disk.
    let private = builder
        .tempdir_in(memory)
        .or_else(|_| builder.tempdir())
        .context("no directory for private keys")?;
    let mirrors =
        Mirrors::new(&settings.mirrors, settings.mirrors_mib << 20).with_context(|| {
            format!(
                "the directory of mirrors {} cannot be used",
                settings.mirrors.display()
            )
        })?;
    let mut git = Commands::new(private.path(), Duration::from_secs(settings.git_timeout));
    let ca = settings.ca.clone().filter(|pem| !pem.is_empty());
    if let Some(own) = &ca {
        let file = private.path().join("ca.crt");
        authorities::with_own(own)
            .and_then(|all| std::fs::write(&file, all))
            .context("the certificate authorities cannot be written")?;
        git = git.trusting(&file);
    }
    let mut api_server = Vec::new();
    if let Ok(named) = std::env::var("KUBERNETES_SERVICE_HOST") {
        for name in [&*named, "kubernetes.default.svc"] {
            let found = tokio::net::lookup_host((name, 0)).await;
            api_server.extend(found.into_iter().flatten().map(|address| address.ip()));
        }
    }
    let addresses = Addresses::new(
        &settings.denied_cidrs,
        &api_server,
        settings.allow_local_addresses,
    );
    let program = std::env::current_exe().context("this program has no path")?;
    let outbound = Outbound::start(addresses, &program.to_string_lossy())
        .await
        .context("the proxy of git cannot listen")?;
    git.outbound = Some(outbound.clone());
    let servers = Servers {
        git,
        mirrors: Arc::new(mirrors),
        tokens: Tokens::trusting(ca, outbound.clone()),
        private: private.path().to_owned(),
    };
    Ok((
        private,
        outbound,
        Syncer {
            git: Box::new(servers),
            snapshots,
        },
    ))
}
