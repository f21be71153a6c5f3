//! The program `controller`.

use std::{future, pin::Pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use kube::{Client, Config, client::ClientBuilder};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tower::layer::layer_fn;
use tracing_subscriber::EnvFilter;

use controller::{
    cluster::{Cluster, clock::Timed, leader::Candidate, node_watch},
    convert, gc, policies,
    read_api::{self, Registration},
    revoke::Revoke,
    run::{Context, datastore_watch},
    server,
    settings::Settings,
    watches::Watches,
};
use crds::clock::ServerClock;
use serving::health::{self, Readiness};

/// The controller of Pawl.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, once")]
enum Command {
    /// Reconciles TerraformRuns and TerraformLayers.
    Run(Settings),
    /// Converts objects of Burrito, tofu-controller, terraform-operator and Alustan to those of Pawl.
    Convert(convert::Options),
    /// Stores plans, logs, results and managed states, encrypted, beyond the life of pods.
    Datastore(datastore::settings::Settings),
    /// Follows Git repositories, and stores the snapshots that layers plan.
    Sources(sources::settings::Settings),
    /// Connects ssh of `sources` with a server, as a ProxyCommand.
    #[command(hide = true)]
    Connect(sources::proxy::Connect),
    /// Serves the web console to people, and receives webhooks of forges.
    Server(server::settings::Settings),
}

fn main() -> anyhow::Result<()> {
    let command = Cli::parse().command;
    let log = match &command {
        // It logs nothing; warnings go to standard error.
        Command::Convert(_) | Command::Connect(_) => "off",
        Command::Run(Settings { log, .. })
        | Command::Datastore(datastore::settings::Settings { log, .. })
        | Command::Sources(sources::settings::Settings { log, .. })
        | Command::Server(server::settings::Settings { log, .. }) => log.as_str(),
    };
    let filter =
        EnvFilter::try_new(log).with_context(|| format!("`{log}` is no filter for logs"))?;
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    // Fails only when a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut runtime = match &command {
        Command::Convert(options) => return convert::run(options),
        Command::Connect(connect) => return Ok(connect.clone().run()?),
        // One thread: most of the work is waiting for the API server, and each thread would retain its own memory. The server computes
        // signatures in chunks, and other requests run in between.
        Command::Run(_) | Command::Server(_) => tokio::runtime::Builder::new_current_thread(),
        // Two threads: one encrypts, or parses code, while the other serves requests, or waits for servers.
        Command::Datastore(_) | Command::Sources(_) => {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.worker_threads(2).max_blocking_threads(
                if matches!(command, Command::Sources(_)) {
                    16
                } else {
                    32
                },
            );
            runtime
        }
    };
    runtime
        .enable_all()
        .build()
        .context("no runtime")?
        .block_on(async {
            let (client, clock) = client().await?;
            match command {
                Command::Convert(_) | Command::Connect(_) => Ok(()),
                Command::Run(settings) => work(settings, client, clock).await,
                Command::Server(settings) => server::run(settings, client, clock).await,
                Command::Datastore(settings) => datastore::run(settings, client, clock).await,
                Command::Sources(settings) => sources::run(settings, client, clock).await,
            }
        })
}

/// Creates the client, and the clock set by its responses.
async fn client() -> anyhow::Result<(Client, ServerClock)> {
    let mut config = Config::infer()
        .await
        .context("no cluster: neither KUBECONFIG nor a pod's ServiceAccount")?;
    // No retries by the client: after an error the controller reads the objects again, and decides on current ones.
    config.default_retry = false;
    let clock = ServerClock::default();
    let timed = layer_fn(|inner| Timed::new(inner, clock.clone()));
    let client = ClientBuilder::try_from(config)
        .context("no client")?
        .with_layer(&timed)
        .build();
    Ok((client, clock))
}

async fn work(settings: Settings, client: Client, clock: ServerClock) -> anyhow::Result<()> {
    let scopes = settings.scopes();
    let registration = Registration::of(&settings).context("--read-api-service")?;
    let datastore = settings.datastore();
    let ctx = Arc::new(Context::new(
        Cluster::new(client.clone(), settings, clock),
        datastore,
    ));
    let (settings, metrics) = (&ctx.cluster.settings, ctx.cluster.metrics.clone());
    let readiness = Arc::new(Readiness::awaiting(3 * scopes.len() + 2));
    let (shown, asked) = (ctx.clone(), readiness.clone());
    let routes = health::router(
        move || {
            let metrics = &shown.cluster.metrics;
            metrics.show(shown.slots.load(), shown.cluster.freezes.count());
            metrics.exposition()
        },
        move || future::ready(asked.check()),
    );
    let pod = std::env::var("HOSTNAME").unwrap_or_else(|_| "controller".into());
    let candidate = settings
        .leader_lease
        .as_ref()
        .filter(|name| !name.is_empty())
        .map(|name| Candidate::new(client.clone(), name, &pod));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespaces = ?settings.watch_namespaces, "started");

    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let mut admin = std::pin::pin!(health::serve(settings.listen, routes));
    let mut lost: Pin<Box<dyn Future<Output = String>>> = Box::pin(future::pending());
    if let Some(candidate) = &candidate {
        readiness.stands_by(true);
        tracing::info!(identity = candidate.identity(), "standby");
        let (lease, since) = tokio::select! {
            won = candidate.wins() => won,
            served = &mut admin => return served,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        };
        tracing::info!(identity = candidate.identity(), "leads");
        readiness.stands_by(false);
        lost = Box::pin(candidate.loses(lease, since));
    }
    metrics.leads();

    let (stop, stopped) = watch::channel(false);
    let mut sweeps: Vec<_> = scopes
        .iter()
        .map(|scope| {
            tokio::spawn(gc::leftover_accounts::run(
                scope.clone(),
                ctx.cluster.clone(),
                stopped.clone(),
            ))
        })
        .collect();
    // Delete only pods whose logs people can read elsewhere.
    if let Some(datastore) = ctx.datastore.as_ref().filter(|_| registration.is_wanted()) {
        sweeps.extend(scopes.iter().map(|scope| {
            tokio::spawn(gc::ended_pods::run(
                scope.clone(),
                ctx.cluster.clone(),
                datastore.clone(),
                stopped.clone(),
            ))
        }));
    }
    let watches = Watches::new(ctx.clone());
    let namespaces = watches.namespaces(&readiness, stopped.clone());
    let mut reconcilers = vec![tokio::spawn(namespaces)];
    for scope in scopes {
        reconcilers.push(tokio::spawn(watches.repositories(
            scope.as_deref(),
            &readiness,
            stopped.clone(),
        )));
        reconcilers.push(tokio::spawn(watches.layer(scope.clone(), stopped.clone())));
        reconcilers.push(tokio::spawn(watches.run(
            scope,
            &readiness,
            stopped.clone(),
        )));
    }
    let revoke = Revoke {
        runs: ctx.clone(),
        layers: watches.layers.clone(),
    };
    let reading = read_api::run(registration, ctx.datastore.clone(), client, stopped.clone());
    let policies = policies::watch::run(ctx.cluster.clone(), ctx.policies.clone(), stopped.clone());
    let revoking = revoke.run(readiness.clone(), stopped.clone());
    let nodes = node_watch::run(ctx.cluster.clone(), stopped.clone());
    let outage = datastore_watch::run(ctx.clone(), stopped.clone());
    let others = [
        tokio::spawn(outage),
        tokio::spawn(reading),
        tokio::spawn(policies),
        tokio::spawn(revoking),
        tokio::spawn(nodes),
    ];
    let watches = futures::future::join_all(reconcilers.into_iter().chain(others).chain(sweeps));
    let mut watches = std::pin::pin!(watches);
    tokio::select! {
        served = &mut admin => return served,
        _ = &mut watches => anyhow::bail!("the watches ended"),
        // Exit immediately without completing work: another controller may start any moment.
        why = &mut lost => anyhow::bail!("leads no more: {why}"),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    stop.send_replace(true);
    tokio::select! {
        ended = tokio::time::timeout(Duration::from_secs(20), watches) => {
            if ended.is_err() {
                tracing::warn!("reconciles were still running");
            }
        }
        // The lease is renewed until running reconciles are complete.
        why = &mut lost => anyhow::bail!("leads no more: {why}"),
    }
    drop(lost);
    if let Some(candidate) = &candidate {
        candidate.releases().await;
    }
    Ok(())
}
