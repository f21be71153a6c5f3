//! The runner agent: entrypoint of an attempt's pod.
//!
//! | module | holds |
//! |---|---|
//! | [`machine`] | the pure state machine |
//! | [`datastore`] | what outlives the pod |
//! | [`driver`] | events in, effects out |
//! | [`local`] | the same machine with a terminal and a folder |
//! | [`ports`] | what the driver needs from the world |
//! | [`api`] | reading, watching and writing the run |
//! | [`files`] | files of the agent's own, and what a tool left |
//! | [`phases`] | setup, init, plan, apply |
//! | [`backend`] | where the state is kept |
//! | [`tool`] | finding the tool |
//! | [`beneath`] | what Terragrunt calls in the tool's place |
//! | [`manifest`] | the plan checksum |
//! | [`manual`] | completion for shells, and pages for `man` |
//! | [`own_lines`] | what the agent itself writes into the log |
//! | [`providers`] | a cache of providers that runs share |
//! | [`process`] | child processes, signals, reaping, output |
//! | [`report`] | what people read |
//! | [`classify`], [`exists`] | from the tool's words to a class of failure |
//! | [`neutral`] | makes the words of strangers harmless to read |
//! | [`redact`] | keeps secrets out of texts |
//! | [`termination`] | the termination message |

pub mod api;
pub mod backend;
pub mod beneath;
pub mod classify;
pub mod datastore;
pub mod driver;
pub mod exists;
pub mod files;
pub mod local;
pub mod machine;
pub mod manifest;
pub mod manual;
pub mod neutral;
pub mod own_lines;
pub mod phases;
pub mod ports;
pub mod process;
pub mod providers;
pub mod redact;
pub mod report;
pub mod settings;
pub mod termination;
pub mod tool;

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
