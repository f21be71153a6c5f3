//! Puts each fault of `tests/mutants/faults.yaml` into a copy of the tree and runs the test that has to fail then.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Puts faults into a copy of the tree, and says whether the tests see them.
#[derive(Parser)]
struct Arguments {
    /// Only faults with this in their name.
    #[arg(long, default_value = "")]
    only: String,
    /// Writes what was found into design/mutants.md.
    #[arg(long)]
    write: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let missed = tests::mutants::run(&arguments.only, arguments.write)?;
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
