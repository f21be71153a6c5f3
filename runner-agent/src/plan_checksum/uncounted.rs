//! Paths that no digest of a work directory covers.

use std::{ffi::OsStr, path::Path};

use crate::files::{BACKEND_FILE, is_variables_file};

/// Paths of a stack that are never counted. The lock file covers provider binaries. The other files contain values of variables or
/// the backend's credentials, of which not even a hash may be shown.
pub(super) const UNCOUNTED: [&str; 3] = [
    ".terraform/providers",
    ".terraform/terraform.tfstate",
    BACKEND_FILE,
];

/// Whether a path is a variable file that Pawl wrote to the stack's directory.
pub(super) fn is_given(path: &Path, stack: &Path) -> bool {
    path.parent() == Some(stack)
        && path
            .file_name()
            .and_then(OsStr::to_str)
            .is_some_and(is_variables_file)
}

/// Terragrunt's records in its copies: a digest of file times, and that `init` is due. The copied files themselves are counted.
pub(super) const NOTED: [&str; 2] = [".terragrunt-source-version", ".terragrunt-init-required"];

/// Whether a path below a person's stack is excluded.
pub(super) fn is_uncounted(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_state = name.contains(".tfstate") && !name.ends_with(".tf") && !name.ends_with(".tofu");
    UNCOUNTED.iter().any(|skip| path == Path::new(skip))
        || is_given(path, Path::new(""))
        || matches!(&*name, ".git" | ".pawl" | "terraform.tfstate.d")
        || NOTED.contains(&&*name)
        || name == ".terraform" && path != Path::new(".terraform")
        || is_state
}
