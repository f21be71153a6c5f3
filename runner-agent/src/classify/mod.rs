//! Maps the tool's output to a class of failure.
//!
//! The tool's `-json` diagnostics come first. Texts are matched only within the tool's output.
//!
//! | module | holds |
//! |---|---|
//! | `rows` | class and reason of each known text |
//! | `plain` | diagnostics in output that is no JSON |
//! | `sentence` | several errors in one line |
//! | `terragrunt` | Terragrunt's own messages |
//! | [`already_exists`] | an object to create exists |
//! | `lock` | the holder of a state's lock |

pub mod already_exists;
mod lock;
mod plain;
mod rows;
mod sentence;
mod terragrunt;

use std::{collections::BTreeMap, path::PathBuf};

use crds::{
    Diagnostic, Failure,
    FailureClass::{self, Configuration},
    Reason,
    text::clip,
};

pub use lock::{UNKNOWN, held_by, lock};
use lock::{lock_owner, unwritable};
pub use plain::parse;
use plain::{in_source, last_words};
pub use rows::{is_disk_full, is_of_backend, text};
pub use sentence::shorten;

use crate::{
    files::variables_field,
    process::{Exit, RunError},
};

/// The parts of a command's output that matter after a failure.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Diagnostics, in order of arrival.
    pub diagnostics: Vec<Diagnostic>,
    /// Number of errors besides these.
    pub more: usize,
    /// The last lines that were no JSON events.
    pub tail: Vec<String>,
    /// Terragrunt took mocks in place of outputs.
    pub mocked: bool,
    /// Addresses of actions that an apply invoked, with their ends.
    pub actions: BTreeMap<String, &'static str>,
    /// The working directory relative to the source; empty for the source itself. The tool's file names are relative to it.
    pub below: PathBuf,
}

/// The end of an action that failed.
pub const FAILED_ACTION: &str = "failed";

impl Said {
    /// The invoked actions and their ends, in words.
    pub fn invoked(&self) -> Option<String> {
        let all = self.actions.iter();
        let all: Vec<_> = all.map(|(action, end)| format!("{action} {end}")).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// Whether an apply failed before it had the state's lock, or found that it is not the plan's state.
pub fn is_before_the_apply(failure: &Failure) -> bool {
    let reasons = [
        Reason::StateLocked,
        Reason::StalePlan,
        Reason::InputsChanged,
    ];
    let is_of_tool = |error: &Diagnostic| {
        error.file.is_none()
            && error.address.is_none()
            && error.summary.starts_with("Error acquiring the state lock")
    };
    reasons.iter().any(|reason| failure.reason == *reason)
        || failure.diagnostics.first().is_some_and(is_of_tool)
}

/// Whether a destroy did all that it could, and left nothing but objects that the code wants kept (OpenTofu 1.12).
pub fn has_forgotten(said: &Said) -> bool {
    let mut errors = said.diagnostics.iter();
    said.more == 0
        && errors.len() > 0
        && errors.all(|error| error.summary.contains("left behind forgotten instances"))
}

/// The failure of a command.
pub fn failure(step: &str, exit: Exit, said: &Said) -> Failure {
    let mut errors: Vec<Diagnostic> = said
        .diagnostics
        .iter()
        .filter(|d| d.severity == "error")
        .cloned()
        .collect();
    if errors.is_empty() {
        errors = parse(&said.tail);
    }
    if errors.is_empty() {
        errors.extend(terragrunt::diagnostic(&said.tail));
    }
    // A summary error above the errors in the code is not counted as a further error.
    let is_head = |error: &Diagnostic| {
        error
            .summary
            .contains("encountered problems during initiali")
    };
    if !errors.iter().all(is_head) {
        errors.retain(|error| !is_head(error));
    }
    for error in &mut errors {
        let Some(file) = &mut error.file else {
            continue;
        };
        *file = in_source(&said.below, file);
        if let Some(field) = variables_field(file) {
            (*file, error.line) = (field, None);
        }
    }
    let (first, class, mut reason) = decisive(step, exit, &errors, &said.tail);
    let action = said.actions.iter().find(|(_, end)| **end == FAILED_ACTION);
    if action.is_some() && reason == Reason::InvalidConfiguration {
        // The tool names the place of the action's block.
        reason = Reason::ApplyFailed;
    }
    if first < errors.len() {
        errors.swap(0, first);
    }
    let mut said_text = sentence::of(&errors, said).unwrap_or_else(|| {
        let words = terragrunt::error(&said.tail).unwrap_or_else(|| last_words(&said.tail));
        shorten(&words, 600)
    });
    // After a signal, the last output describes the end (a shell prints `Killed`); earlier output may explain why the command hung.
    if exit.told {
        let before = terragrunt::without_its_own(&said.tail);
        for line in before
            .iter()
            .rev()
            .map(|line| clip(line, 300))
            .filter(|line| !line.is_empty())
            .take(2)
        {
            if !said_text.contains(&line) {
                said_text = format!("{said_text}; before: {line}");
            }
        }
    }
    let ended = match exit {
        Exit {
            signal: Some(signal),
            told: false,
            ..
        } => format!("was ended by signal {signal}"),
        Exit { code: 11, .. } => "crashed (exit code 11)".to_owned(),
        Exit {
            code, told: true, ..
        } => format!("was asked to stop (exit code {code})"),
        Exit { code, .. } if said_text.is_empty() => format!("failed with exit code {code}"),
        _ => "failed".to_owned(),
    };
    let lock = errors
        .first()
        .and_then(|d| lock_owner(d.detail.as_deref().unwrap_or_default()));
    let mut message = if said_text.is_empty() {
        format!("{step} {ended}")
    } else {
        format!("{step} {ended}: {said_text}")
    };
    if let (true, Some(owner)) = (reason == Reason::StateLocked, lock) {
        message = format!("{step} failed: the state is locked {owner}");
    }
    if let Some((action, _)) = action {
        message = format!(
            "{message}; {action} failed: where it follows the change of an object, no later plan has it; invoke it again by \
             spec.arguments.plan -invoke={action}, or replace the object by spec.replace"
        );
    }
    if errors.first().is_some_and(is_of_migration) {
        message = format!(
            "{step} failed: the backend of the code is not the one that the existing state is in, and a run never moves a state; \
             run `init -migrate-state` of the tool once to move it, or `init -reconfigure` to begin with what the new backend has"
        );
    }
    if let Some(directory) = errors.first().and_then(unwritable) {
        let directory = in_source(&said.below, directory);
        message = format!(
            "{step} failed: the tool cannot write to directory {}, where the state or its lock is: {said_text}",
            if directory.is_empty() {
                "."
            } else {
                &directory
            }
        );
    }
    Failure {
        class,
        diagnostics: errors,
        ..reason.failure(message)
    }
}

/// The index of the decisive error, and the class and reason of the failure.
fn decisive(
    step: &str,
    exit: Exit,
    errors: &[Diagnostic],
    tail: &[String],
) -> (usize, FailureClass, Reason) {
    let judged: Vec<_> = errors.iter().map(|error| judge(step, error)).collect();
    // A value that cannot be read is the cause of a variable without one.
    if let Some(at) = errors.iter().position(is_of_value) {
        return (at, Configuration, Reason::VariableInvalid);
    }
    // A specific reason takes precedence over an error in the code, and this over a summary error.
    let own = judged.iter().enumerate().find_map(|(at, known)| {
        known
            .filter(|(_, reason)| *reason != Reason::InvalidConfiguration)
            .map(|(class, reason)| (at, class, reason))
    });
    if let Some(own) = own {
        return own;
    }
    if let Some((at, error)) = errors
        .iter()
        .enumerate()
        .find(|(_, error)| error.file.is_some())
    {
        // The failure of an object while it is created is no error in the code.
        let of_object = step == "apply" && error.address.is_some();
        return (
            at,
            Configuration,
            if of_object {
                Reason::ApplyFailed
            } else {
                Reason::InvalidConfiguration
            },
        );
    }
    if let Some(at) = judged.iter().position(Option::is_some) {
        return (at, Configuration, Reason::InvalidConfiguration);
    }
    let (class, reason) = match (text(&tail.join("\n")), exit) {
        (Some(known), _) if errors.is_empty() => known,
        (
            _,
            Exit {
                signal: Some(_),
                told: false,
                ..
            },
        ) => (FailureClass::Interrupted, Reason::ToolKilled),
        _ => (Configuration, generic(step)),
    };
    (0, class, reason)
}

/// Whether the text of an error is the value of a variable on the command line or in the environment.
fn is_of_value(error: &Diagnostic) -> bool {
    let file = error.file.as_deref().unwrap_or_default();
    error.severity == "error" && file.starts_with("<value for var.")
}

/// Whether the tool asks where a state is to be after a change of the backend.
fn is_of_migration(error: &Diagnostic) -> bool {
    let asks = [
        "asking for state migration",
        "ask approval for state migration",
        "Backend configuration changed",
    ];
    error.file.is_none() && asks.iter().any(|words| error.summary.contains(words))
}

/// The class and reason of one error, if known.
fn judge(step: &str, error: &Diagnostic) -> Option<(FailureClass, Reason)> {
    if is_of_migration(error) {
        return Some((Configuration, generic(step)));
    }
    let told = error.detail.as_deref().unwrap_or_default();
    let detail = if rows::is_of_code(&error.summary) {
        ""
    } else {
        told
    };
    let (class, reason) = text(&format!("{}\n{detail}", error.summary))?;
    // Among the errors of `init`, only those of backends have a summary and nothing else.
    let bare = matches!(step, "init" | "workspace") && detail.is_empty() && error.file.is_none();
    // A module called with an invalid value is an error in the code.
    let is_given = |file: &String| file.starts_with("spec.variable");
    let in_code = error.file.as_ref().is_some_and(|file| !is_given(file))
        && !error
            .address
            .as_ref()
            .is_some_and(|address| address.starts_with("var."));
    // The tool reports its state without a place; an object, a provider and a check of the code have one.
    let of_tool = error.file.is_none() && error.address.is_none();
    Some(match reason {
        Reason::StateLocked if !of_tool || !rows::is_of_lock(&error.summary) => return None,
        Reason::StateLocked if unwritable(error).is_some() => (Configuration, generic(step)),
        Reason::StalePlan | Reason::StateNotSaved | Reason::LockNotReleased if !of_tool => {
            return None;
        }
        Reason::ProviderUnreachable if bare => (class, Reason::BackendUnreachable),
        Reason::VariableInvalid if in_code => (class, Reason::InvalidConfiguration),
        _ => (class, reason),
    })
}

/// The failure of a command that could not run.
pub fn not_run(step: &str, error: &RunError) -> Failure {
    let text = format!("{step} {error}");
    match error {
        RunError::Stopped => Reason::Terminated.failure(text),
        RunError::Spawn(_) | RunError::Wait(_) => fault(&text),
    }
}

/// Converts errors of the disk or of the agent.
pub trait OrInternal<T> {
    /// Makes the error an [`internal`] one.
    fn or_internal(self, what: &str) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> OrInternal<T> for Result<T, E> {
    fn or_internal(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| internal(what, &error))
    }
}

/// A fault of the disk or of the agent. A full disk has its own reason and may be retried.
pub fn internal(what: &str, error: &dyn std::fmt::Display) -> Failure {
    fault(&format!("{what}: {error}"))
}

fn fault(text: &str) -> Failure {
    if is_disk_full(text) {
        return Reason::DiskFull.failure(text);
    }
    Reason::AgentFault.failure(text)
}

fn generic(step: &str) -> Reason {
    match step {
        "apply" => Reason::ApplyFailed,
        "init" | "workspace" => Reason::InitFailed,
        _ => Reason::PlanFailed,
    }
}

#[cfg(test)]
mod tests;
