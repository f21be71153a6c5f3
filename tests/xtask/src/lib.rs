//! Tasks around Cargo, in a program that builds in seconds and builds everything else in parallel: `cargo ci` ([`ci`]) and the first part
//! of `cargo demo` ([`demo`]).

pub mod budgets;
pub mod cache;
pub mod ci;
pub mod command;
pub mod commits;
mod count;
mod crates;
pub mod demo;
mod dependencies;
pub mod gobuild;
mod lines;
pub mod packages;
pub mod processor;
pub mod report;
mod rights;
mod stage;
pub mod ui;

use std::path::Path;

use anyhow::Result;

pub use dependencies::check as check_dependencies;

/// The root of the workspace.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// Prepares everything for a cluster and its images, with these programs in pods. Starts nothing. Safe to kill and to call again.
pub fn prepare(in_pods: &[&str]) -> Result<()> {
    packages::ensure()?;
    packages::base_archive(&cache::Cache::open()?)?;
    gobuild::Toolset::ensure(&[gobuild::NODE, in_pods].concat()).map(drop)
}
