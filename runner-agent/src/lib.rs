//! The runner agent: entrypoint of an attempt's pod.
//!
//! | module | holds |
//! |---|---|
//! | [`machine`] | the pure state machine |
//! | [`datastore`] | data that outlives the pod |
//! | [`driver`] | feeds events in and performs effects |
//! | [`host`] | the environment of an attempt: a pod, or a person's machine |
//! | [`local`] | the same state machine with a terminal and a folder |
//! | [`ports`] | interfaces of the driver |
//! | [`api`] | reading, watching and writing the run |
//! | [`files`] | the agent's unnamed files, and files that a tool left |
//! | [`hooks`] | hooks as fixed in Setup |
//! | [`phases`] | setup, init, plan, apply |
//! | [`backend`] | the backend of the state |
//! | [`tool`] | finding the tool |
//! | [`plan_checksum`] | the plan checksum |
//! | [`manual`] | shell completion and `man` pages |
//! | [`own_lines`] | the agent's own log lines |
//! | [`providers`] | the provider cache that runs share |
//! | [`sealed_inputs`] | detects changed inputs from Secrets and ConfigMaps |
//! | [`process`] | child processes, signals, reaping, output |
//! | [`report`] | texts for people, without secrets and safe to display |
//! | [`classify`] | maps the tool's output to a class of failure |
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
pub mod sealed_inputs;
pub mod settings;
pub mod termination;
pub mod tool;
pub mod tool_cli;

/// Locks a mutex. Ignores poisoning: a thread that panics never leaves the value half written.
pub(crate) fn guard<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
