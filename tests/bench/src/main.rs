//! Measures Pawl's cost against an alternative: `cargo bench-run`.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::{Figure, Options};
use clap::Parser;
use harness::cluster::report;

#[derive(Parser)]
#[command(
    name = "bench-run",
    about = "What Pawl costs, measured beside bare pods on one cluster in one run"
)]
struct Arguments {
    /// Fewer repetitions.
    #[arg(long)]
    quick: bool,
    /// Only these figures.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Figure>,
    /// Also write the table to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Measure chart, controller and agent of this commit, which must be in the history of this checkout.
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,
    /// Leave the cluster `bench` up.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments {
        quick,
        only,
        save,
        commit,
        keep,
    } = Arguments::parse();
    let options = Options {
        quick,
        only,
        save,
        commit,
        keep,
    };
    report::exit("bench", bench::run(&options).await)
}
