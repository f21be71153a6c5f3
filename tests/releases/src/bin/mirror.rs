//! A mirror of releases on this machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use harness::cluster::{cache, report};
use releases::versions::{self, Programs};
use releases::{Key, Mirror, Tree, mirror_settings};
use serde_json::json;
use tool_versions::Tool;

const EXPLAINED: &str = "\
Serves OpenTofu 1.9.4, 1.10.6 and 1.12.6, Terraform 1.5.7 and 1.8.5, until it is interrupted.
Without --real and --scripted, OpenTofu 1.10.6 and Terraform 1.5.7 are real programs.";

#[derive(Parser)]
#[command(name = "mirror", about = "A mirror of releases, signed by a key of tests", after_help = EXPLAINED)]
struct Arguments {
    /// Use only real programs: missing ones are built from source, minutes each
    #[arg(long, conflicts_with = "scripted")]
    real: bool,
    /// Use only the scripted tool, under real names
    #[arg(long)]
    scripted: bool,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8700")]
    listen: SocketAddr,
    /// Serve by HTTPS, with an own authority
    #[arg(long)]
    tls: bool,
    /// Directory of the files, which stay there; without it they are removed at the end
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    report::exit("mirror", run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<()> {
    let Arguments { real, scripted, listen, tls, dir } = arguments;
    let temporary = tempfile::tempdir().context("no directory for releases")?;
    let dir = dir.unwrap_or_else(|| temporary.path().to_owned());
    let programs = match (real, scripted) {
        (true, _) => Programs::Real,
        (_, true) => Programs::Scripted,
        _ => Programs::Some,
    };
    let releases = versions::all(programs)?;
    let tree = Tree::create(&dir.join("releases"), Key::test()?)?;
    for release in &releases {
        let step = report::step("mirror", release.archive());
        tree.add(release)?;
        step.done();
    }
    let root = tree.root();
    let mirror = if tls { Mirror::start_tls(listen, root).await } else { Mirror::start(listen, root).await }?;
    let key = dir.join("key.asc");
    cache::write(&key, tree.key().armored())?;

    println!("# signed by {} in {}", tree.key().fingerprint(), key.display());
    if let Some(authority) = mirror.authority() {
        let path = dir.join("ca.crt");
        cache::write(&path, authority)?;
        println!("# its certificate authority is in {}", path.display());
    }
    println!("# the directory {} is a mirror as well", root.display());
    let mirrors: Vec<_> =
        [Tool::OpenTofu, Tool::Terraform].map(|tool| mirror_settings(tool, &mirror, tree.key())).into_iter().collect();
    println!("export PAWL_TOOL_SETTINGS='{}'", json!({"mirrors": mirrors}));
    tokio::signal::ctrl_c().await.context("cannot wait for an interrupt")
}
