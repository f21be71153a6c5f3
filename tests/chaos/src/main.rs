//! The kill loop: `cargo chaos`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use chaos::Options;
use clap::Parser;
use harness::cluster::report;

#[derive(Parser)]
#[command(
    name = "chaos",
    about = "Kills agents, tools, pods, controllers, datastores and API servers, and checks what happened"
)]
struct Arguments {
    /// End after this number of kills.
    #[arg(long, default_value_t = 2000)]
    kills: u64,
    /// End after this number of seconds, whatever was killed. Runs in progress are completed.
    #[arg(long, default_value_t = 7200)]
    seconds: u64,
    /// Seed of the choice of kills and times.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of concurrent runs.
    #[arg(long, default_value_t = 16)]
    workers: u64,
    /// Number of layers of a repository with constant pushes. With layers, the Git server, `sources` and `server` are killed as well.
    #[arg(long, default_value_t = 0)]
    layers: u64,
    /// Also write the report to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Leave the cluster `kills` up.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments {
        kills,
        seconds,
        seed,
        workers,
        layers,
        save,
        keep,
    } = Arguments::parse();
    let options = Options {
        kills,
        limit: Duration::from_secs(seconds),
        seed,
        workers,
        layers,
        save,
        keep,
    };
    report::exit("chaos", chaos::run(&options).await)
}
