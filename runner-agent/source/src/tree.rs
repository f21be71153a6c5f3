//! The source on disk: inline files, and the checks of a fetched tree.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Component, Path, PathBuf},
};

use crds::text::clip;

/// The error of a source on disk.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A file would be outside of the source.
    #[error("{0} is not a path within the source")]
    OutsideFile(String),
    /// A link leads out of the source.
    #[error("the link {0} leads out of the source")]
    OutsideLink(String),
    /// The stack's directory is missing.
    #[error("{} {why} in {at}; at its top it has: {top}", clip(.path, 200))]
    NoStack {
        /// Its path.
        path: String,
        /// The error.
        why: &'static str,
        /// The source, for messages.
        at: String,
        /// The directories at the root of the source, by name.
        top: String,
    },
    /// The disk failed.
    #[error("{what}")]
    Io {
        /// The operation.
        what: String,
        /// The cause.
        #[source]
        error: io::Error,
    },
}

fn fault(what: impl Into<String>) -> impl FnOnce(io::Error) -> TreeError {
    let what = what.into();
    move |error| TreeError::Io { what, error }
}

/// Writes files whose names are paths below `root`.
///
/// # Errors
/// A name escapes, or a file cannot be written.
pub fn write_files(
    files: &BTreeMap<String, impl AsRef<[u8]>>,
    root: &Path,
) -> Result<(), TreeError> {
    for (name, content) in files {
        let relative = relative(name).ok_or_else(|| TreeError::OutsideFile(name.clone()))?;
        let path = root.join(relative);
        let parent = path.parent().unwrap_or(root);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, content))
            .map_err(fault(format!("{name} cannot be written")))?;
    }
    Ok(())
}

/// A path of plain names.
fn relative(path: &str) -> Option<PathBuf> {
    let mut kept = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => kept.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(kept)
}

/// The stack's directory in the source. No part of its path may be a link. `at` names the source for people.
///
/// # Errors
/// It is missing, or outside of the source.
pub fn stack(root: &Path, path: &str, at: &str) -> Result<PathBuf, TreeError> {
    let not_found = |why: &'static str| {
        let mut names: Vec<_> = fs::read_dir(root)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        let top = if names.is_empty() {
            "no directories".to_owned()
        } else {
            clip(&names.join(", "), 200)
        };
        TreeError::NoStack {
            path: path.to_owned(),
            why,
            at: at.to_owned(),
            top,
        }
    };
    let relative = relative(path).ok_or_else(|| not_found("does not stay with"))?;
    let stack = root
        .join(relative)
        .canonicalize()
        .map_err(|_| not_found("is not"))?;
    let root = root
        .canonicalize()
        .map_err(fault("the source cannot be read"))?;
    if !stack.starts_with(&root) {
        return Err(not_found("does not stay with"));
    }
    if !stack.is_dir() {
        return Err(not_found("is not a directory"));
    }
    Ok(stack)
}

/// Refuses links that lead out of the source: a repository could read or replace files of the agent.
///
/// # Errors
/// There is such a link, or a directory cannot be read.
pub fn check_links(root: &Path) -> Result<(), TreeError> {
    let root = root
        .canonicalize()
        .map_err(fault("the source cannot be read"))?;
    let mut dirs = vec![root.clone()];
    while let Some(dir) = dirs.pop() {
        let entries =
            fs::read_dir(&dir).map_err(fault(format!("{} cannot be read", dir.display())))?;
        for entry in entries.flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
                continue;
            };
            if kind.is_dir() && path != root.join(".git") {
                dirs.push(path);
            } else if kind.is_symlink() && !stays(&path, &root) {
                let name = path
                    .strip_prefix(&root)
                    .unwrap_or(&path)
                    .display()
                    .to_string();
                return Err(TreeError::OutsideLink(name));
            }
        }
    }
    Ok(())
}

fn stays(link: &Path, root: &Path) -> bool {
    if let Ok(target) = link.canonicalize() {
        return target.starts_with(root) && !target.starts_with(root.join(".git"));
    }
    // The target does not exist yet, so its text alone must stay inside.
    let Ok(target) = fs::read_link(link) else {
        return false;
    };
    let mut at: Vec<_> = link
        .parent()
        .and_then(|dir| dir.strip_prefix(root).ok())
        .map(|p| p.components().collect())
        .unwrap_or_default();
    let mut descended = false;
    for part in target.components() {
        match part {
            Component::CurDir => {}
            // After a name that may be a link, `..` can lead anywhere.
            Component::ParentDir if !descended && at.pop().is_some() => {}
            Component::Normal(_) => {
                descended = true;
                at.push(part);
            }
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let files = |name: &str| BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        write_files(&files("modules/a/main.tf"), dir.path()).unwrap();
        assert!(dir.path().join("modules/a/main.tf").is_file());
        for name in ["../x", "/etc/x", "a/../../x"] {
            let error = write_files(&files(name), dir.path()).unwrap_err();
            assert!(
                matches!(error, TreeError::OutsideFile(_)),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn escaping_links_are_refused() {
        let make = |target: &str| {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("sub/deep")).unwrap();
            fs::write(dir.path().join("a.tf"), "").unwrap();
            symlink(target, dir.path().join("sub/link")).unwrap();
            check_links(dir.path())
        };
        for target in ["../a.tf", "deep", "not-there-yet", "../sub/new"] {
            assert!(make(target).is_ok(), "{target}");
        }
        for target in [
            "/etc/passwd",
            "../../etc",
            "/not/there",
            "../../not-there",
            "deep/../../../x",
            "deep/../not-there",
        ] {
            assert!(
                matches!(make(target), Err(TreeError::OutsideLink(_))),
                "{target}"
            );
        }
    }

    #[test]
    fn missing_path_lists_directories() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("stacks/vpc")).unwrap();
        fs::create_dir_all(dir.path().join(".git")).unwrap();
        assert!(
            stack(dir.path(), "./stacks/vpc", "main")
                .unwrap()
                .ends_with("stacks/vpc")
        );
        let error = stack(dir.path(), "stack", "main at 4c1d2e3").unwrap_err();
        assert_eq!(
            error.to_string(),
            "stack is not in main at 4c1d2e3; at its top it has: stacks"
        );
        symlink("/", dir.path().join("out")).unwrap();
        for path in ["../x", "/etc", "out", "out/etc"] {
            let error = stack(dir.path(), path, "main").unwrap_err();
            assert!(
                matches!(error, TreeError::NoStack { .. }),
                "{path}: {error}"
            );
        }
    }
}
