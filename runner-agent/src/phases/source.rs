//! The source on disk: inline files, and what a fetched tree may and may not hold.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use crds::{Failure, InlineSource, Reason, text::clip};

use crate::classify::internal;

/// Writes inline files.
pub(super) fn write_inline(source: &InlineSource, root: &Path) -> Result<(), Failure> {
    for (name, content) in &source.files {
        let relative = relative(name).ok_or_else(|| invalid(format!("{name} is not a path within the source")))?;
        let path = root.join(relative);
        let parent = path.parent().unwrap_or(root);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, content))
            .map_err(|error| internal(&format!("{name} cannot be written"), &error))?;
    }
    Ok(())
}

/// A path made of names only.
pub(super) fn relative(path: &str) -> Option<PathBuf> {
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

fn invalid(message: String) -> Failure {
    Reason::SourceInvalid.failure(message)
}

/// The stack's directory within the source.
pub(super) fn stack(root: &Path, path: &str, at: &str) -> Result<PathBuf, Failure> {
    let not_found = |why: &str| {
        let mut names: Vec<_> = fs::read_dir(root)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        let names = if names.is_empty() { "no directories".to_owned() } else { clip(&names.join(", "), 200) };
        Reason::PathNotFound.failure(format!("{} {why} in {at}; at its top it has: {names}", clip(path, 200)))
    };
    let relative = relative(path).ok_or_else(|| not_found("does not stay with"))?;
    let stack = root.join(relative).canonicalize().map_err(|_| not_found("is not"))?;
    let root = root.canonicalize().map_err(|error| internal("the source cannot be read", &error))?;
    if !stack.starts_with(&root) {
        return Err(not_found("does not stay with"));
    }
    if !stack.is_dir() {
        return Err(not_found("is not a directory"));
    }
    Ok(stack)
}

/// Refuses links that lead out of the source, which would let a repository read or replace files of the pod.
pub(super) fn check_links(root: &Path) -> Result<(), Failure> {
    let root = root.canonicalize().map_err(|error| internal("the source cannot be read", &error))?;
    let mut dirs = vec![root.clone()];
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).map_err(|error| internal(&format!("{} cannot be read", dir.display()), &error))?;
        for entry in entries.flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() && path != root.join(".git") {
                dirs.push(path);
            } else if kind.is_symlink() && !stays(&path, &root) {
                let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
                return Err(invalid(format!("the link {name} leads out of the source")));
            }
        }
    }
    Ok(())
}

fn stays(link: &Path, root: &Path) -> bool {
    if let Ok(target) = link.canonicalize() {
        return target.starts_with(root) && !target.starts_with(root.join(".git"));
    }
    // It leads nowhere yet; something may be put there later, so its text alone must stay inside.
    let Ok(target) = fs::read_link(link) else { return false };
    let mut at: Vec<_> =
        link.parent().and_then(|dir| dir.strip_prefix(root).ok()).map(|p| p.components().collect()).unwrap_or_default();
    let mut descended = false;
    for part in target.components() {
        match part {
            Component::CurDir => {}
            // Behind a name that may itself be a link, `..` leads anywhere.
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
    use crds::reason;
    use std::{collections::BTreeMap, os::unix::fs::symlink};

    #[test]
    fn inline_files_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let files = |name: &str| InlineSource { files: BTreeMap::from([(name.to_owned(), "x".to_owned())]) };
        write_inline(&files("modules/a/main.tf"), dir.path()).unwrap();
        assert!(dir.path().join("modules/a/main.tf").is_file());
        for name in ["../x", "/etc/x", "a/../../x"] {
            assert_eq!(write_inline(&files(name), dir.path()).unwrap_err().reason, reason::SOURCE_INVALID, "{name}");
        }
    }

    #[test]
    fn links_may_not_lead_out() {
        let make = |target: &str| {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("sub/deep")).unwrap();
            fs::write(dir.path().join("a.tf"), "").unwrap();
            symlink(target, dir.path().join("sub/link")).unwrap();
            check_links(dir.path()).map_err(|f| f.reason)
        };
        for target in ["../a.tf", "deep", "not-there-yet", "../sub/new"] {
            assert_eq!(make(target), Ok(()), "{target}");
        }
        for target in ["/etc/passwd", "../../etc", "/not/there", "../../not-there", "deep/../../../x", "deep/../not-there"] {
            assert_eq!(make(target), Err(reason::SOURCE_INVALID.to_owned()), "{target}");
        }
    }

    #[test]
    fn a_missing_path_says_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("stacks/vpc")).unwrap();
        fs::create_dir_all(dir.path().join(".git")).unwrap();
        assert!(stack(dir.path(), "./stacks/vpc", "main").unwrap().ends_with("stacks/vpc"));
        let failure = stack(dir.path(), "stack", "main at 4c1d2e3").unwrap_err();
        assert_eq!(failure.reason, reason::PATH_NOT_FOUND);
        assert_eq!(failure.message, "stack is not in main at 4c1d2e3; at its top it has: stacks");
        symlink("/", dir.path().join("out")).unwrap();
        for path in ["../x", "/etc", "out", "out/etc"] {
            assert_eq!(stack(dir.path(), path, "main").unwrap_err().reason, reason::PATH_NOT_FOUND, "{path}");
        }
    }
}
