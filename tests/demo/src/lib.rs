//! The demo: a cluster, a repository, a run, a person's approval, and its result; then a layer, a commit, and drift.
//!
//! The cluster, and a process that serves repositories (`servers`), stay up afterwards. Every demo makes a new commit and a new run, so it
//! can be repeated on the same cluster.

mod act;
mod approve;
mod follow;
mod layer;
mod log;
mod screen;
mod servers;
mod stack;
mod story;
mod web;

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use anyhow::{Context, Result};

use ::servers::{git::GitServer, objects::ObjectServer};
use harness::cluster::chart::{PawlImages, Values};
use harness::cluster::gobuild::DEMO_IN_PODS;
use harness::cluster::{Audit, Cluster, cache, prepare};

use self::screen::Step;
use self::servers::Servers;
pub use self::servers::serve;

const CLUSTER: &str = "demo";
/// The command that configures a shell for the cluster.
const ENV: &str = "eval \"$(cargo demo --env)\"";
/// Exit code if there is no person to approve.
pub const NOT_APPROVED: u8 = 2;

/// Who approves the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// The person at the terminal, or someone in another one.
    Ask,
    /// The demo, as administrator.
    ByItself,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub approval: Approval,
    /// Begin with a new cluster.
    pub fresh: bool,
}

/// Runs the whole demo; returns the exit code.
pub async fn run(options: &Options) -> Result<u8> {
    let begun = Instant::now();
    if options.fresh {
        down().await?;
    }
    let cache = cache::Cache::open()?;
    let mark = cache.path("demo-was-up");
    let step = Step::begin(1, "tools");
    prepare(DEMO_IN_PODS).context("the tools are not ready; run `cargo demo` again")?;
    step.done("Kubernetes, Helm, OpenTofu ready");

    let step = Step::begin(2, "cluster");
    // Not shared: it stays up for the user of the demo.
    let cluster = Cluster::up(CLUSTER, Audit::Requests)
        .await
        .context("the cluster is not up; `cargo demo --fresh` begins anew, and its logs are in the directory named here")?;
    let servers = Servers::ensure(&cluster).await?;
    step.done("node ready, git server up");

    let step = Step::begin(3, "pawl");
    let images = PawlImages::with_real_tools(DEMO_IN_PODS)?;
    let url = servers
        .web
        .map(|web| ("server.url".to_owned(), format!("http://{web}")));
    cluster
        .install_images(&images, &Values::from_iter(url))
        .await
        .context("Pawl is not installed; `cargo demo --fresh` begins anew")?;
    web::connect(
        &cluster.client().await?,
        &servers::web_target(cluster.state()),
    )
    .await?;
    step.done("images imported, chart installed, controller ready");
    cache::write(&mark, "")?;

    Box::pin(story::tell(&cluster, &servers, options.approval, begun)).await
}

/// Plays the demo on a running cluster, with servers that end with it. [`Approval::Ask`] requires a terminal.
///
/// # Errors
/// As [`run`].
pub async fn rehearse(cluster: &Cluster, approval: Approval) -> Result<u8> {
    let (host, files) = (
        SocketAddr::new(IpAddr::V4(cluster.host()), 0),
        tempfile::tempdir()?,
    );
    let (git, objects) = (
        GitServer::start(host, files.path()).await?,
        ObjectServer::start(host).await?,
    );
    let servers = Servers::of(git.addr(), objects.addr(), files.path());
    Box::pin(story::tell(cluster, &servers, approval, Instant::now())).await
}

/// Prints shell variables for the cluster.
pub async fn env() -> Result<()> {
    let cluster = Cluster::attach(CLUSTER)
        .await
        .context("there is no cluster to use; run `cargo demo` first")?;
    print!("{}", cluster.env());
    Ok(())
}

/// Ends the servers and the cluster.
pub async fn down() -> Result<()> {
    let state = Cluster::status(CLUSTER).await?.state;
    Servers::end(&state);
    Cluster::down_by_name(CLUSTER).context("run `cargo demo --down` again")?;
    harness::cluster::report::note("demo", "the cluster and its servers are down");
    Ok(())
}
