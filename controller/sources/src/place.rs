//! Places that code refers to, and what is expected there.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Relative to the directory of the code.
    Beside(String),
    /// The nearest file of this name in a parent directory, or a path relative to that directory.
    Above(String, Option<String>),
    /// Relative to the root of the repository.
    Top(String),
    /// Relative to the directory where the tool runs.
    Stack(String),
}

/// The kind of a referenced path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory with code.
    Module,
    /// A file that Terragrunt reads; a configuration if it ends in `.hcl`.
    Config,
    /// A file, or a directory, that a function reads.
    Data,
    /// A call whose path is computed: its line and text are in [`Place::Beside`].
    Computed,
}
