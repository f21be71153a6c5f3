//! The kill loop: `cargo chaos`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use chaos::Options;
use clap::Parser;
use harness::cluster::report;

#[derive(Parser)]
#[command(name = "chaos", about = "Kills agents, tools, pods, controllers, datastores and API servers, and checks what happened")]
struct Arguments {
    /// Ends after so many kills.
    #[arg(long, default_value_t = 2000)]
    kills: u64,
    /// Ends after so many seconds, whatever was killed; runs that are under way come to their end.
    #[arg(long, default_value_t = 7200)]
    seconds: u64,
    /// Chooses what is killed and when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs at a time.
    #[arg(long, default_value_t = 16)]
    workers: u64,
    /// Layers of a repository that is pushed to all the time; the Git server, `sources` and `server` are killed as well then.
    #[arg(long, default_value_t = 0)]
    layers: u64,
    /// Also writes the report to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Leaves the cluster `kills` up.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { kills, seconds, seed, workers, layers, save, keep } = Arguments::parse();
    let options = Options { kills, limit: Duration::from_secs(seconds), seed, workers, layers, save, keep };
    report::exit("chaos", chaos::run(&options).await)
}
