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

impl Place {
    /// The place with another path in place of its own.
    #[must_use]
    pub fn map_path(self, to: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Beside(path) => Self::Beside(to(&path)),
            Self::Top(path) => Self::Top(to(&path)),
            Self::Stack(path) => Self::Stack(to(&path)),
            Self::Above(name, path) => Self::Above(name, path.as_deref().map(to)),
        }
    }

    /// The path, as it is written.
    pub fn path(&self) -> &str {
        match self {
            Self::Beside(path) | Self::Top(path) | Self::Stack(path) => path,
            Self::Above(name, path) => path.as_deref().unwrap_or(name),
        }
    }
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
    /// A path in code: a file or a directory that does not contain the code.
    Mentioned,
    /// The same, of files only.
    MentionedFile,
    /// A call whose path is computed: its line and text are in [`Place::Beside`].
    Computed,
}
