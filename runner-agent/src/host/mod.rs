//! Where an attempt works: in a pod of its own, which ends with all that is in it, or on a person's machine, with what that person has.
//!
//! [`Host`] has the questions on which the two differ. Phases ask it, and never where they are; `local` has the other answers.

mod pod;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use crds::Failure;

pub use pod::Pod;

/// What keeps commands from asking: nobody sees the question.
pub const UNATTENDED: [(&str, &str); 3] = [("TF_IN_AUTOMATION", "1"), ("TF_INPUT", "0"), ("GIT_TERMINAL_PROMPT", "0")];

/// A person who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Whether the plan is printed in colour.
    pub colour: bool,
}

/// Where an attempt works.
pub trait Host: fmt::Debug + Send + Sync + 'static {
    /// What code of the stack may not read, which has an account of its own or not; none where it is not confined.
    fn hidden(&self, has_account: bool) -> Option<Vec<PathBuf>>;
    /// The environment of the tool; `own` is what the run says of it.
    fn tool_env(&self, own: &[(String, String)]) -> Vec<(OsString, OsString)>;
    /// Where the tool has its CLI configuration from, when that is ours to write.
    fn cli_config(&self) -> Option<PathBuf>;
    /// The directory above which no version file is looked for, for a stack in the source `root`.
    fn version_root<'a>(&'a self, root: &'a Path) -> &'a Path;
    /// Where the run asks for a version of the tool: `spec.tool.version`.
    fn version_option(&self) -> &'static str;
    /// Whether digests of tools are remembered from one run to the next.
    fn remembers_tools(&self) -> bool;
    /// Further arguments of `plan`, and of `apply` where that takes them: variables as the tool's own command line has them.
    fn plan_args(&self) -> &[OsString];
    /// The person who watches, and tries again himself.
    fn terminal(&self) -> Option<Terminal>;
    /// Whether a state is kept, where `in_pod` is what is said of it in a pod.
    ///
    /// # Errors
    /// It would be lost; nothing has been planned or changed.
    fn is_state_kept(&self, in_pod: Result<(), Failure>) -> Result<(), Failure>;
    /// Whether somebody gives leases on states.
    fn has_leases(&self) -> bool;
    /// Whether what lies on the disk is there when the attempt has ended: a plan that waits, a state that could not be saved.
    fn keeps_disk(&self) -> bool;
    /// Directories besides the work directory that are emptied before a plan is applied; none where they are a person's own.
    fn emptied(&self) -> Option<Vec<PathBuf>>;
    /// What goes when the attempt has ended, as far as it is there.
    fn leftovers(&self) -> Vec<PathBuf>;
}
