//! An upgrade from an earlier commit in the middle of work: `cargo run --release --bin upgrade`.

use std::process::ExitCode;

use clap::Parser;
use harness::cluster::report;
use tests::upgrade::{self, Options};

#[derive(Parser)]
#[command(
    name = "upgrade",
    about = "Upgrades an earlier commit's Pawl to this checkout's while runs wait and apply, and looks whether all go on"
)]
struct Arguments {
    /// The commit that is upgraded from; the history of this checkout has to have it.
    #[arg(long, value_name = "COMMIT", default_value = "f19e30a")]
    from: String,
    /// Leaves the cluster `upgrade` up.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { from, keep } = Arguments::parse();
    report::exit("upgrade", Box::pin(upgrade::run(&Options { from, keep })).await)
}
