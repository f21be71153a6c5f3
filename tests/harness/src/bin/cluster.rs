//! Runs real Kubernetes with Pawl on this machine: `cluster up`, `down`, `status`, `env`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use harness::cluster::chart::Values;
use harness::cluster::{Audit, Cluster, gobuild, prepare, report};

#[derive(Parser)]
#[command(about = "Real Kubernetes on this machine, with Pawl in it")]
struct Arguments {
    /// Name of the cluster. Several can be up, each with its own addresses and directory.
    #[arg(long, default_value = "pawl", global = true)]
    name: String,
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Brings the cluster up, imports Pawl's images and installs its chart.
    Up {
        /// Start Kubernetes only, without Pawl.
        #[arg(long)]
        bare: bool,
        /// Values for the chart, as PATH=VALUE.
        #[arg(long = "set", value_name = "PATH=VALUE", value_parser = value)]
        values: Vec<(String, String)>,
    },
    /// Stops the cluster and removes all its files and networks.
    Down,
    /// Installs and builds the programs of a cluster, and starts nothing.
    Tools,
    /// Prints the running processes; exits with 1 if the cluster is not up.
    Status,
    /// Prints shell variables for the cluster: eval "$(… env)".
    Env,
}

fn value(text: &str) -> Result<(String, String), String> {
    let (path, value) = text
        .split_once('=')
        .ok_or("a value is written PATH=VALUE")?;
    Ok((path.to_owned(), value.to_owned()))
}

#[tokio::main]
async fn main() -> ExitCode {
    report::exit("cluster", run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    let name = &arguments.name;
    match arguments.command {
        Action::Up { bare, values } => {
            let cluster = Cluster::up(name, Audit::Objects).await?;
            if !bare {
                cluster
                    .install(&values.into_iter().collect::<Values>())
                    .await?;
            }
            let again = if name == "pawl" {
                String::new()
            } else {
                format!(" --name {name}")
            };
            report::note(
                "cluster",
                &format!("use it: eval \"$(cargo run --release -q --bin cluster -- env{again})\""),
            );
        }
        Action::Down => {
            Cluster::down_by_name(name)?;
            report::note("cluster", &format!("{name} is down"));
        }
        Action::Env => print!("{}", Cluster::attach(name).await?.env()),
        Action::Tools => prepare(&[gobuild::IN_PODS, gobuild::TERRAGRUNT].concat())?,
        Action::Status => return status(name).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(name: &str) -> Result<ExitCode> {
    let status = Cluster::status(name).await?;
    println!(
        "{name}: {}  {}",
        if status.ready { "up" } else { "not up" },
        status.state.display()
    );
    for record in &status.running {
        println!("  {:24} process {}", record.name, record.pid);
    }
    for name in &status.ended {
        println!("  {name:24} has ended");
    }
    if !status.ready {
        return Ok(ExitCode::FAILURE);
    }
    let cluster = Cluster::attach(name).await?;
    print!(
        "{}{}",
        cluster.kubectl(&["get", "nodes"])?,
        cluster.kubectl(&["get", "pods", "-A"])?
    );
    Ok(ExitCode::SUCCESS)
}
