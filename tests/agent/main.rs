//! Attempts from adoption to end: the real driver and real processes, a scripted tool, an in-memory run.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::items_after_statements,
    reason = "a test that cannot go on ends here; what only one needs stands in it"
)]

mod api_errors;
mod apply;
mod artifact;
mod attempt;
mod claim;
mod common;
mod credentials;
mod failures;
mod files;
mod given;
mod hooks;
mod memory_api;
mod output;
mod outputs;
mod plan_file;
mod planted;
mod providers;
mod quiet;
mod reach;
mod real;
mod repository;
mod terragrunt;
mod upgrade;
mod variables;
