//! `cargo ci` and `cargo demo`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{budgets, ci, commits, demo, gobuild, prepare};

#[derive(Parser)]
#[command(name = "cargo")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that has to hold before a change lands; ends with `N passed, N failed`.
    Ci(ci::Options),
    /// Pawl on this machine, from nothing to an applied plan.
    #[command(disable_help_flag = true)]
    Demo {
        /// What the demo itself understands.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Installs and builds what a cluster is made of, and starts nothing.
    Tools,
    /// Builds the forge whose hooks are received in a test, and what the last suites need besides.
    Forge,
    /// Looks at licences and sources of all that is depended on.
    Dependencies,
    /// Compares lines, fields, bytes and processor time with `design/budgets.toml`.
    Budgets(budgets::Options),
    /// Checks the subjects of commits.
    Commits,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Ci(options) => ci::run(&options),
        Task::Demo { arguments } => demo::run(&arguments),
        Task::Tools => prepare(&[gobuild::IN_PODS, gobuild::BUCKETS, gobuild::TERRAGRUNT, gobuild::IMAGES].concat())
            .map(|()| ExitCode::SUCCESS),
        Task::Forge => gobuild::Toolset::ensure(&[gobuild::FORGE, gobuild::HEALTH].concat()).map(|_| ExitCode::SUCCESS),
        Task::Dependencies => xtask::check_dependencies().map(|()| ExitCode::SUCCESS),
        Task::Budgets(options) => budgets::check(&options).map(|()| ExitCode::SUCCESS),
        Task::Commits => commits::check().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        // A person reads this: what failed and what to do, without a trace of our own code.
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}
