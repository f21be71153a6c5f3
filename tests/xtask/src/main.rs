//! `cargo ci` and `cargo demo`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{budgets, ci, commits, demo, gobuild, packages, prepare, ui};

#[derive(Parser)]
#[command(name = "cargo")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs all checks of a change; ends with `N passed, N failed`.
    Ci(ci::Options),
    /// Runs Pawl on this machine, from nothing to an applied plan.
    #[command(disable_help_flag = true)]
    Demo {
        /// Arguments of the demo.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Installs and builds the programs of a cluster, and starts nothing.
    Tools,
    /// Installs and builds what the last suites need: a browser, the forge that sends webhooks, and other tools.
    Forge,
    /// Checks the licences and sources of all dependencies.
    Dependencies,
    /// Compares lines, fields, bytes and processor time with `design/budgets.toml`.
    Budgets(budgets::Options),
    /// Checks the subjects of commits.
    Commits,
    /// Builds the web UI.
    Ui,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Ci(options) => ci::run(&options),
        Task::Demo { arguments } => demo::run(&arguments),
        Task::Tools => prepare(
            &[
                gobuild::IN_PODS,
                gobuild::BUCKETS,
                gobuild::TERRAGRUNT,
                gobuild::IMAGES,
            ]
            .concat(),
        )
        .map(|()| ExitCode::SUCCESS),
        Task::Forge => packages::ensure_browser()
            .and_then(|()| gobuild::Toolset::ensure(&[gobuild::FORGE, gobuild::HEALTH].concat()))
            .map(|_| ExitCode::SUCCESS),
        Task::Dependencies => xtask::check_dependencies().map(|()| ExitCode::SUCCESS),
        Task::Budgets(options) => budgets::check(&options).map(|()| ExitCode::SUCCESS),
        Task::Commits => commits::check().map(|()| ExitCode::SUCCESS),
        Task::Ui => ui::build().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        // Print the error and the next step for a user, without a backtrace.
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}
