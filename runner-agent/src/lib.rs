//! The runner agent: entrypoint of an attempt's pod.
//!
//! | module | holds |
//! |---|---|
//! | [`machine`] | the pure state machine |
//! | [`datastore`] | what outlives the pod |
//! | [`driver`] | events in, effects out |
//! | [`host`] | where an attempt works: a pod, or a person's machine |
//! | [`local`] | the same machine with a terminal and a folder |
//! | [`ports`] | what the driver needs from the world |
//! | [`api`] | reading, watching and writing the run |
//! | [`files`] | files of the agent's own, and what a tool left |
//! | [`hooks`] | scripts around the phases, as they were fixed at Setup |
//! | [`phases`] | setup, init, plan, apply |
//! | [`backend`] | where the state is kept |
//! | [`tool`] | finding the tool |
//! | [`plan_checksum`] | the plan checksum |
//! | [`manual`] | completion for shells, and pages for `man` |
//! | [`own_lines`] | what the agent itself writes into the log |
//! | [`providers`] | a cache of providers that runs share |
//! | [`process`] | child processes, signals, reaping, output |
//! | [`report`] | what people read, without secrets and harmless to read |
//! | [`classify`] | from the tool's words to a class of failure |
//! | [`tool_cli`] | `runner-agent tool` |
//! | [`termination`] | the termination message |

pub mod api;
pub mod backend;
pub mod classify;
pub mod datastore;
pub mod driver;
pub mod files;
pub mod hooks;
pub mod host;
pub mod local;
pub mod machine;
pub mod manual;
pub mod own_lines;
pub mod phases;
pub mod plan_checksum;
pub mod ports;
pub mod process;
pub mod providers;
pub mod report;
pub mod settings;
pub mod termination;
pub mod tool;
pub mod tool_cli;
