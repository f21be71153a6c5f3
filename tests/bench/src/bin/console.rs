//! Measures the web console with many objects: `cargo run --release --bin console`.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::{
    console::{self, Options},
    interruptible,
};
use clap::Parser;
use harness::cluster::report;

#[derive(Parser)]
#[command(
    name = "console",
    about = "Serves many layers and runs to browsers, with a real API server and Chromium, and prints pages, memory and times"
)]
struct Arguments {
    #[arg(long, default_value_t = 10_000)]
    layers: usize,
    #[arg(long, default_value_t = 20_000)]
    runs: usize,
    /// Also write the table to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { layers, runs, save } = Arguments::parse();
    let options = Options { layers, runs, save };
    let run = Box::pin(console::run(&options));
    report::exit("console", interruptible(run).await)
}
