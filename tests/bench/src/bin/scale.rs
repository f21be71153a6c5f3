//! Measures Pawl's cost by the number of layers: `cargo run --release --bin scale`.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::{
    interruptible,
    scale::{self, Options},
};
use clap::Parser;
use harness::cluster::report;

#[derive(Parser)]
#[command(
    name = "scale",
    about = "Holds many layers with a real API server and played agents, and prints what grows with them"
)]
struct Arguments {
    /// Numbers of layers, measured one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 10_000])]
    layers: Vec<usize>,
    /// Repositories at the last step; proportional at the others.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        help = "Repositories at the last step [default: one of 20 layers]"
    )]
    repositories: usize,
    /// Also write the table to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments {
        layers,
        repositories,
        save,
    } = Arguments::parse();
    let options = Options {
        layers,
        repositories,
        save,
    };
    report::exit("scale", interruptible(Box::pin(scale::run(&options))).await)
}
