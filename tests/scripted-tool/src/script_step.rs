//! The steps of a script.

use serde::{Deserialize, Serialize};

/// One step, for all or some executions of its command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Step {
    /// A step without parameters, as a word.
    Word(Action),
    /// A step with parameters, as an object.
    Full {
        /// Runs only in these executions of the command (counted from 1, across pods, by script name in the ledger).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only: Option<Vec<u64>>,
        #[serde(flatten)]
        action: Action,
    },
}

impl Step {
    /// The action in the `nth` execution of the command, if any.
    pub fn action(&self, nth: u64) -> Option<&Action> {
        match self {
            Self::Word(action) => Some(action),
            Self::Full { only, action } => only
                .as_ref()
                .is_none_or(|only| only.contains(&nth))
                .then_some(action),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Run the command's own behaviour here instead of after the last step.
    Default,
    SleepMs(u64),
    /// Print a line unchanged.
    Print(String),
    /// Print a line unchanged to stderr.
    PrintErr(String),
    /// Emit an error, which ends the command with 1, or fails the resource.
    Diagnostic(Diagnostic),
    /// Leave a process in the background.
    Spawn(Spawn),
    /// Wait for a child like for a provider: if it is killed, the resource fails with `Plugin did not respond`. Meanwhile a resource
    /// reports every `progress_ms` that it is in progress.
    Provider(Spawn),
    /// Ask a question and wait for the answer on stdin; without one, fail.
    Ask(String),
    /// Run a program and wait for it, like plan-time code.
    Exec(Vec<String>),
    /// Allocate memory and touch it.
    AllocateMb(usize),
    /// Print this many MiB in lines.
    FloodMb(u64),
    /// Print this many MiB in one line.
    LineMb(u64),
    /// Take the state's lock, and never end.
    HoldLock(bool),
    /// Never end.
    Hang,
    /// Send itself this signal, for example 9 like the OOM killer.
    KillSelf(i32),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spawn {
    /// Its lifetime.
    pub seconds: u64,
    /// Start it in its own session.
    pub daemon: bool,
    /// Let it hold the tool's stdout and stderr open.
    pub hold_stdout: bool,
    /// Let it ignore SIGINT and SIGTERM; providers ignore SIGINT.
    pub ignore_signals: bool,
    /// Interval of its ledger entries, in milliseconds; 0 writes none.
    pub beat_ms: u64,
}

impl Default for Spawn {
    fn default() -> Self {
        Self {
            seconds: 3600,
            daemon: false,
            hold_stdout: false,
            ignore_signals: false,
            beat_ms: 0,
        }
    }
}

/// A message of the tool to its user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Diagnostic {
    /// One line.
    pub summary: String,
    /// Any number of lines.
    pub detail: String,
    /// Address of the affected resource.
    pub address: Option<String>,
    /// The affected file.
    pub file: Option<String>,
    /// Line in that file.
    pub line: Option<u64>,
}

impl Diagnostic {
    pub fn error(summary: &str, detail: &str) -> Self {
        Self {
            summary: summary.to_owned(),
            detail: detail.to_owned(),
            ..Self::default()
        }
    }
}

impl From<anyhow::Error> for Diagnostic {
    fn from(error: anyhow::Error) -> Self {
        Self::error(&format!("{error:#}"), "")
    }
}
