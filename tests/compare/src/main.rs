//! Compares the bare tool and Pawl on the same configurations: `cargo compare DIR…`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use compare::Options;
use harness::cluster::{images, report};

const EXPLAINED: &str = "\
Every folder below DIR that has code is a case, Terragrunt's units too where Terragrunt is built. Each is copied and worked on twice,
at the same path: by the tool itself and by `runner-agent local` with that tool. What is compared: how plan, apply, second plan and
destroy end, counts, errors with file and line, state, outputs, and the files that are left.

The code is run, provisioners too, with a home of its own: of this environment nothing is passed on, so no credentials either.
Providers come from the mirror of the tests alone; code that needs others fails the same way twice.

Exit codes: 0 all the same or meant so, 1 something differs.";

#[derive(Parser)]
#[command(name = "compare", about = "Runs the bare tool and Pawl on any configurations, and prints where they differ", after_help = EXPLAINED)]
struct Arguments {
    /// Folders with configurations
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Only with this tool, such as opentofu or terraform@1.5.7; a missing version is built. May be given several times
    #[arg(long = "tool", value_name = "TOOL[@VERSION]")]
    tools: Vec<String>,
    /// Only cases whose path contains this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Number of parallel cases
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Time limit in seconds per side and case
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u64,
    /// Leave both folders of each case, with the output
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    report::exit("compare", run(Arguments::parse()))
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments {
        folders,
        tools,
        only,
        jobs,
        limit,
        keep,
    } = arguments;
    let agent = images::programs(&["runner-agent"], images::Profile::Same)?
        .pop()
        .context("the agent was not built")?;
    let options = Options {
        folders,
        tools,
        only,
        jobs,
        limit: Duration::from_secs(limit),
        keep,
        agent,
    };
    let tally = compare::run(&options, &|line| println!("{line}"))?;
    Ok(if tally.differ == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
