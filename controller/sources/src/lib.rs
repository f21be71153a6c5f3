//! `controller sources`: follows Git repositories (`design/0028-repositories.md`). It alone speaks Git, and has rights for that and no others.
//!
//! | module | holds | touches |
//! |---|---|---|
//! | [`settings`] | command line | nothing |
//! | [`watch`] | the watches, and who looks after which repository | the API server |
//! | [`worker`] | one repository: waits, looks, writes | the API server |
//! | [`schedule`] | when a repository is looked at | nothing |
//! | [`look`] | one look: refs, mirrors, bundles, what is new for layers | through the others |
//! | [`follow`] | repositories and layers, as the watches have shown them | nothing |
//! | [`status`] | the status of a repository after a look | nothing |
//! | [`refs`], [`commit`], [`tree`] | what git prints of refs, commits and trees | nothing |
//! | [`relevance`], [`glob`] | what of a tree is relevant to a layer, and the digest of it | nothing |
//! | [`walk`], [`code`] | what the code of a tree leads to | nothing |
//! | [`server`] | how a repository is reached | through the others |
//! | [`mirror`], [`submodules`] | bare, shallow copies of repositories | git, disk |
//! | [`git`] | how git is run | processes |
//! | [`credentials`], [`github_app`] | what servers are asked with | the forge's API |
//! | [`store`] | bundles and where they are kept | the datastore |
//! | [`gc`] | bundles that nobody needs any more | the API server, the datastore |
//! | [`failure`] | what failed: reason, message, next step | nothing |
//! | [`metrics`] | what is counted | nothing |

pub mod code;
pub mod commit;
pub mod credentials;
pub mod failure;
pub mod follow;
pub mod gc;
pub mod git;
pub mod github_app;
pub mod glob;
pub mod metrics;
pub mod mirror;
pub mod refs;
pub mod relevance;
pub mod schedule;
pub mod server;
pub mod settings;
pub mod status;
pub mod store;
pub mod submodules;
pub mod sync;
pub mod tree;
pub mod walk;
pub mod wanted;
pub mod watch;
pub mod worker;

use std::{future::ready, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use crds::clock::ServerClock;
use serving::health;
use source::authorities;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
};

use follow::Follow;
use git::Commands;
use github_app::Tokens;
use metrics::Metrics;
use mirror::Mirrors;
use server::Servers;
use settings::Settings;
use store::Bundles;
use sync::Syncer;
use watch::Workers;
use worker::Shared;

/// Runs until a signal ends it. What is under way then is begun anew by the next process.
///
/// # Errors
/// When mirrors or addresses cannot be used.
pub async fn run(settings: Settings, client: kube::Client, clock: ServerClock) -> anyhow::Result<()> {
    let bundles = store::datastore(&settings.datastore_url, settings.datastore_ca.clone(), settings.datastore_token.clone());
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let scopes = settings.scopes();
    let metrics = Arc::new(Metrics::awaiting(2 * scopes.len()));
    let (private, syncer) = syncer(&settings, bundles)?;
    let shared = Arc::new(Shared {
        client,
        clock,
        follow: std::sync::Mutex::new(Follow::default()),
        wanted: std::sync::Mutex::default(),
        syncer,
        slots: Semaphore::new(settings.concurrency.into()),
        metrics: metrics.clone(),
        secrets_role: settings.secrets_role.clone(),
    });
    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespaces = ?settings.watch_namespaces, "started");
    let workers = Arc::new(Workers::new(shared.clone()));
    let mut tasks = tokio::task::JoinSet::new();
    for scope in scopes.clone() {
        tasks.spawn(workers.clone().repositories(scope.clone()));
        tasks.spawn(workers.clone().layers(scope));
    }
    tasks.spawn(workers.clone().wanted());
    tasks.spawn(gc::run(shared, scopes, Duration::from_secs(settings.sweep_interval)));
    let asked = metrics.clone();
    let routes = health::router(move || metrics.exposition(), move || ready(asked.readiness.check()));
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

/// What looks are made with, and the directory of private keys, which goes with its value.
fn syncer<B: Bundles>(settings: &Settings, bundles: B) -> anyhow::Result<(tempfile::TempDir, Syncer<B>)> {
    let memory = Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder.prefix("pawl-").permissions(std::fs::Permissions::from_mode(0o700));
    // In memory where there is such a place, so that no disk has keys.
    let private = builder.tempdir_in(memory).or_else(|_| builder.tempdir()).context("no directory for private keys")?;
    let mirrors = Mirrors::new(&settings.mirrors, settings.mirrors_mib << 20)
        .with_context(|| format!("the directory of mirrors {} cannot be used", settings.mirrors.display()))?;
    let mut git = Commands::new(private.path(), Duration::from_secs(settings.git_timeout));
    let ca = settings.ca.clone().filter(|pem| !pem.is_empty());
    if let Some(own) = &ca {
        let file = private.path().join("ca.crt");
        authorities::with_own(own)
            .and_then(|all| std::fs::write(&file, all))
            .context("the certificate authorities cannot be written")?;
        git = git.trusting(&file);
    }
    let servers = Servers { git, mirrors: Arc::new(mirrors), tokens: Tokens::trusting(ca), private: private.path().to_owned() };
    Ok((private, Syncer { git: Box::new(servers), bundles }))
}
