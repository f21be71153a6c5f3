//! What Pawl costs, measured beside the alternative: `cargo bench-run`.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::{Figure, Options};
use clap::Parser;
use harness::cluster::report;

#[derive(Parser)]
#[command(name = "bench-run", about = "What Pawl costs, measured beside bare pods on one cluster in one run")]
struct Arguments {
    /// Few repetitions.
    #[arg(long)]
    quick: bool,
    /// Only these figures.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Figure>,
    /// Also writes the table to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Measures chart, controller and agent of this commit, which the history of this checkout has to have.
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,
    /// Leaves the cluster `bench` up.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { quick, only, save, commit, keep } = Arguments::parse();
    let options = Options { quick, only, save, commit, keep };
    report::exit("bench", bench::run(&options).await)
}
