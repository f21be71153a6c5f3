//! Files that the tool left in a person's folder when the person used it there.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use serde_json::Value;

/// The state that an apply could not save, in the directory where the tool ran.
const UNSAVED: &str = "errored.tfstate";

/// The tool's own data directory, as the person's environment names it.
fn directory(stack: &Path, named: Option<&OsStr>) -> PathBuf {
    stack.join(
        named
            .filter(|name| !name.is_empty())
            .unwrap_or(OsStr::new(".terraform")),
    )
}

/// The workspace that the person selected with the tool, if any. `named` is the value of `TF_DATA_DIR`.
pub(super) fn selected_workspace(stack: &Path, named: Option<&OsStr>) -> Option<String> {
    fs::read_to_string(directory(stack, named).join("environment")).ok()
}

/// Refuses a backend that was configured in another data directory, since a run reads its arguments in `.terraform` alone.
pub(super) fn refuse_other_backend(stack: &Path, named: Option<&OsStr>) -> Result<()> {
    let backend = |data: &Path| -> Option<Value> {
        let text = fs::read(data.join("terraform.tfstate")).ok()?;
        let value: Value = serde_json::from_slice(&text).ok()?;
        value.get("backend").cloned()
    };
    let data = directory(stack, named);
    let Some(there) = backend(&data) else {
        return Ok(());
    };
    if backend(&directory(stack, None)).as_ref() == Some(&there) {
        return Ok(());
    }
    bail!(
        "TF_DATA_DIR names {}, where `init` of the tool configured the backend, and a run uses {} instead, so that its state may be \
         another one; unset TF_DATA_DIR and run `init` of the tool in {} once; nothing was changed",
        data.display(),
        directory(stack, None).display(),
        stack.display()
    )
}

/// Refuses an operation in the tool's own variables for arguments: a plan of another operation would look like a forged one.
pub(super) fn refuse_operation(variable: impl Fn(&str) -> Option<String>) -> Result<()> {
    const OPERATIONS: [(&str, &str); 2] = [
        ("-destroy", "runner-agent local destroy"),
        ("-refresh-only", "runner-agent local plan -refresh-only"),
    ];
    for name in ["TF_CLI_ARGS", "TF_CLI_ARGS_plan"] {
        let words = variable(name).unwrap_or_default();
        for (option, command) in OPERATIONS {
            let is_it =
                |word: &str| word.trim_start_matches('-').split('=').next() == Some(&option[1..]);
            if words
                .split_whitespace()
                .any(|word| word.starts_with('-') && is_it(word))
            {
                bail!(
                    "{name} has {option}, which is another operation: `{command}`; nothing was changed"
                );
            }
        }
    }
    Ok(())
}

/// Refuses a folder with a state that an earlier apply could not save, since the next such apply would overwrite it.
pub(super) fn refuse_unsaved_state(stack: &Path) -> Result<()> {
    let mut dirs = vec![stack.join(".terragrunt-cache")];
    let mut found = vec![stack.join(UNSAVED)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if entry.file_name() == UNSAVED {
                found.push(entry.path());
            } else if is_dir && entry.file_name() != ".terraform" {
                dirs.push(entry.path());
            }
        }
    }
    if let Some(state) = found.into_iter().find(|path| path.is_file()) {
        bail!(
            "{} is a state that an apply could not save, perhaps its only copy; push it with `state push {UNSAVED}` of the tool, in {} \
             and in the workspace of that apply, then remove it, or move it away if it is not needed; nothing was changed",
            state.display(),
            state.parent().unwrap_or(stack).display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_directory_is_the_one_that_the_tool_used() {
        let dir = tempfile::tempdir().unwrap();
        let (stack, other) = (dir.path(), Some(OsStr::new("data")));
        fs::create_dir_all(stack.join("data")).unwrap();
        fs::create_dir_all(stack.join(".terraform")).unwrap();
        fs::write(stack.join("data/environment"), "staging").unwrap();
        assert_eq!(selected_workspace(stack, other).as_deref(), Some("staging"));
        assert_eq!(selected_workspace(stack, None), None);
        assert_eq!(selected_workspace(stack, Some(OsStr::new(""))), None);
        assert!(refuse_other_backend(stack, other).is_ok());
        let backend = |path: &str| format!(r#"{{"backend": {{"config": {{"path": "{path}"}}}}}}"#);
        fs::write(stack.join("data/terraform.tfstate"), backend("a")).unwrap();
        let refused = refuse_other_backend(stack, other).unwrap_err().to_string();
        assert!(refused.starts_with("TF_DATA_DIR names "), "{refused}");
        let own = stack.join(".terraform/terraform.tfstate");
        fs::write(&own, backend("b")).unwrap();
        assert!(refuse_other_backend(stack, other).is_err());
        fs::write(&own, backend("a")).unwrap();
        assert!(refuse_other_backend(stack, other).is_ok());
    }

    #[test]
    fn operation_in_arguments_of_the_environment_is_refused() {
        let with = |words: &str| {
            refuse_operation(|name| (name == "TF_CLI_ARGS_plan").then(|| words.to_owned()))
        };
        for words in [
            "-destroy",
            "-compact-warnings --destroy=true",
            "-refresh-only",
        ] {
            assert!(with(words).is_err(), "{words}");
        }
        assert!(with("-compact-warnings -target=a.destroy").is_ok());
        assert!(refuse_operation(|_| None).is_ok());
    }

    #[test]
    fn unsaved_state_is_found_in_folder_and_copies() {
        for below in [".", ".terragrunt-cache/a/b/app"] {
            let dir = tempfile::tempdir().unwrap();
            let place = dir.path().join(below);
            fs::create_dir_all(&place).unwrap();
            assert!(refuse_unsaved_state(dir.path()).is_ok());
            fs::write(place.join(UNSAVED), "{}").unwrap();
            assert!(refuse_unsaved_state(dir.path()).is_err(), "{below}");
        }
    }
}
