//! Runs Pawl on this machine, from nothing to an applied plan: `cargo demo`.

use std::path::PathBuf;

use clap::Parser;
use demo::{Approval, Options};

#[derive(Parser)]
#[command(
    name = "demo",
    about = "Pawl on this machine: a cluster, a repository, a run, your approval"
)]
struct Arguments {
    /// Approve the plan without asking.
    #[arg(long)]
    yes: bool,
    /// Remove an existing cluster, and begin with a new one.
    #[arg(long)]
    fresh: bool,
    /// Print shell variables for the cluster: eval "$(cargo demo --env)".
    #[arg(long, conflicts_with_all = ["yes", "fresh", "down"])]
    env: bool,
    /// Remove the cluster and its servers with all their files.
    #[arg(long, conflicts_with_all = ["yes", "fresh"])]
    down: bool,
    /// Serve the repositories of the cluster with this state directory; started by the demo itself.
    #[arg(long, hide = true, value_name = "STATE")]
    serve: Option<PathBuf>,
    /// Address to serve on.
    #[arg(long, hide = true, requires = "serve", default_value = "127.0.0.1")]
    address: std::net::Ipv4Addr,
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    let result = match &arguments.serve {
        Some(state) => demo::serve(state, arguments.address).await.map(|()| 0),
        None if arguments.env => demo::env().await.map(|()| 0),
        None if arguments.down => demo::down().await.map(|()| 0),
        None => {
            let approval = if arguments.yes {
                Approval::ByItself
            } else {
                Approval::Ask
            };
            demo::run(&Options {
                approval,
                fresh: arguments.fresh,
            })
            .await
        }
    };
    let code = result.unwrap_or_else(|error| {
        // Print the error and the next step for a user, without a backtrace.
        eprintln!("demo: {error:#}");
        1
    });
    // Not a return: a thread may still wait for a key, and must not block the exit.
    std::process::exit(i32::from(code));
}
