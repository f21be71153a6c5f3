//! The environment of an attempt: its own pod, which is removed with everything in it, or a person's machine.
//!
//! [`Host`] has all differences between the two. The phases ask it and never test which one they are in. `local` implements it for
//! a person's machine.

mod pod;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use crds::Failure;

pub use pod::Pod;

/// Disables interactive prompts, since no one can answer.
pub const UNATTENDED: [(&str, &str); 3] = [
    ("TF_IN_AUTOMATION", "1"),
    ("TF_INPUT", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
];

/// A terminal with a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Whether the plan is printed in colour.
    pub colour: bool,
}

/// The environment of an attempt.
pub trait Host: fmt::Debug + Send + Sync + 'static {
    /// Paths that the stack's code may not read; `None` if the code is not confined. `has_account`: the run names a ServiceAccount, whose
    /// token the code may read.
    fn hidden(&self, has_account: bool) -> Option<Vec<PathBuf>>;
    /// The tool's environment. `own` is the run's part.
    fn tool_env(&self, own: &[(String, String)]) -> Vec<(OsString, OsString)>;
    /// Path of the tool's CLI configuration, if Pawl writes it.
    fn cli_config(&self) -> Option<PathBuf>;
    /// The topmost directory to search for version files, for a stack in the source `root`.
    fn version_root<'a>(&'a self, root: &'a Path) -> &'a Path;
    /// The name of the setting for the tool's version, e.g. `spec.tool.version`.
    fn version_option(&self) -> &'static str;
    /// Whether digests of tools are cached across runs.
    fn remembers_tools(&self) -> bool;
    /// Additional arguments of `plan`, and of `apply` if it takes variables, in the syntax of the tool's command line.
    fn plan_args(&self) -> &[OsString];
    /// The terminal with a person, who can retry.
    fn terminal(&self) -> Option<Terminal>;
    /// Whether the state outlives the attempt. `in_pod` is the answer for a pod.
    ///
    /// # Errors
    /// It would be lost. Nothing has been planned or changed.
    fn is_state_kept(&self, in_pod: Result<(), Failure>) -> Result<(), Failure>;
    /// Whether there are leases on states.
    fn has_leases(&self) -> bool;
    /// Whether files on disk outlive the attempt, e.g. a waiting plan, or a state that could not be saved.
    fn keeps_disk(&self) -> bool;
    /// Directories besides the work directory that are emptied before an apply; `None` on a person's machine.
    fn emptied(&self) -> Option<Vec<PathBuf>>;
    /// Paths to remove after the attempt, if they exist.
    fn leftovers(&self) -> Vec<PathBuf>;
}
