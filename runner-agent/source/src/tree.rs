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
    let relative = relative(path).ok_or_else(|| not_found("does not stay"))?;
    let stack = root
        .join(relative)
        .canonicalize()
        .map_err(|_| not_found("is not"))?;
    let root = root
        .canonicalize()
        .map_err(fault("the source cannot be read"))?;
    if !stack.starts_with(&root) {
        return Err(not_found("does not stay"));
    }
    if !stack.is_dir() {
        return Err(not_found("is not a directory"));
    }
    Ok(stack)
}

/// The part of a source that a stack uses: its directory, and what its code names by a literal path, and so on.
#[derive(Clone, Debug)]
pub struct Used {
    root: PathBuf,
    /// Files, directories with all below, and directories above the stack, of which the own files count.
    paths: Vec<(PathBuf, bool)>,
}

impl Used {
    /// Reads the code of a stack. Both paths are canonical.
    pub fn by(root: &Path, stack: &Path) -> Self {
        let mut used = Self {
            root: root.to_owned(),
            paths: Vec::new(),
        };
        let mut left = vec![stack.to_owned()];
        while let Some(path) = left.pop() {
            if used.paths.len() >= MAX_USED || used.has(&path) {
                continue;
            }
            let whole = path == stack || !stack.starts_with(&path);
            for (dir, text) in code(&path, whole) {
                for named in text.split('"').filter_map(below) {
                    let named = named.trim_start_matches('/');
                    for place in [dir.join(named), root.join(named)] {
                        // A link is used too, wherever it leads.
                        let found = [place.canonicalize().ok(), lexical(&place)];
                        let found = found.into_iter().flatten();
                        left.extend(found.filter(|place| place.starts_with(root)));
                    }
                }
            }
            used.paths.push((path, whole));
        }
        used
    }

    /// Whether a path is in this part.
    pub fn has(&self, path: &Path) -> bool {
        let is_in = |(own, whole): &(PathBuf, bool)| {
            path.starts_with(own) && (*whole || path == own || path.parent() == Some(own))
        };
        self.paths.iter().any(is_in)
    }

    /// Removes links that lead out of the source, which could make the agent read or replace its own files, and returns their names.
    ///
    /// # Errors
    /// The stack uses such a link, or a directory cannot be read. Nothing was removed.
    pub fn leave_out_links(&self) -> Result<Vec<String>, TreeError> {
        let outward = outward(&self.root)?;
        let name = |path: &Path| {
            let below = path.strip_prefix(&self.root).unwrap_or(path);
            below.display().to_string()
        };
        if let Some(path) = outward.iter().find(|path| self.has(path)) {
            return Err(TreeError::OutsideLink(name(path)));
        }
        let removed = |path: &PathBuf| {
            let name = name(path);
            fs::remove_file(path).map_err(fault(format!("{name} cannot be left out")))?;
            Ok(name)
        };
        outward.iter().map(removed).collect()
    }
}

/// The most paths that are followed for a stack.
const MAX_USED: usize = 4096;
/// The largest file of code that is read, in bytes.
const MAX_CODE: u64 = 1 << 20;

/// The part of a literal that may name a path of the source: with the interpolations before it left out.
fn below(literal: &str) -> Option<&str> {
    let named = literal.rsplit('}').next()?;
    let named = named.split("//").next()?;
    let is_path = named.starts_with("./")
        || named.starts_with("..")
        || named.len() < literal.len() && named.starts_with('/') && named.len() > 1;
    (is_path && named.len() < 1024 && !named.contains(char::is_control)).then_some(named)
}

/// A path without `.` and `..`, by its text; `None` where nothing is.
fn lexical(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    fs::symlink_metadata(&plain).ok().map(|_| plain)
}

/// The code in a directory, or below it: the directory of each file, and its text.
fn code(path: &Path, whole: bool) -> Vec<(PathBuf, String)> {
    let (mut found, mut dirs) = (Vec::new(), vec![path.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
                continue;
            };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_code = [".tf", ".tofu", ".hcl", ".tf.json", ".tofu.json"]
                .iter()
                .any(|end| name.ends_with(end));
            if kind.is_dir() && whole && name != ".git" {
                dirs.push(path);
            } else if kind.is_file()
                && is_code
                && entry.metadata().is_ok_and(|meta| meta.len() <= MAX_CODE)
            {
                let text = fs::read(&path).unwrap_or_default();
                found.push((dir.clone(), String::from_utf8_lossy(&text).into_owned()));
            }
        }
    }
    found
}

/// The links that lead out of the source, sorted.
fn outward(root: &Path) -> Result<Vec<PathBuf>, TreeError> {
    let (mut found, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        let entries =
            fs::read_dir(&dir).map_err(fault(format!("{} cannot be read", dir.display())))?;
        for entry in entries.flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
                continue;
            };
            if kind.is_dir() && path != root.join(".git") {
                dirs.push(path);
            } else if kind.is_symlink() && !stays(&path, root) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
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

    /// A source with a link, and a stack that uses two modules.
    fn linked(at: &str, target: &str) -> (tempfile::TempDir, Result<Vec<String>, TreeError>) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for (name, text) in [
            ("a.tf", ""),
            ("live/app/main.tf", "source = \"../../modules/m//sub\""),
            (
                "modules/m/sub/main.tf",
                "x = file(\"${path.module}/../../shared/t.json\")\nsource = \"../../..\"",
            ),
            ("modules/shared/t.json", ""),
            ("live/other/deep/main.tf", ""),
            (".git/config", ""),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let link = root.join(at);
        let _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
        let found = Used::by(&root, &root.join("live/app")).leave_out_links();
        (dir, found)
    }

    #[test]
    fn link_out_of_the_source_is_left_out_and_named() {
        for target in ["../../a.tf", "deep", "not-there-yet", "../../live/new"] {
            let (_dir, found) = linked("live/other/link", target);
            assert_eq!(found.unwrap(), [""; 0], "{target}");
        }
        for target in [
            "/etc/passwd",
            "../../../etc",
            "/not/there",
            "../../../not-there",
            "deep/../../../../x",
            "deep/../not-there",
            "../../.git/config",
        ] {
            let (dir, found) = linked("live/other/link", target);
            assert_eq!(found.unwrap(), ["live/other/link"], "{target}");
            assert!(
                dir.path()
                    .join("live/other/link")
                    .symlink_metadata()
                    .is_err()
            );
            assert!(dir.path().join("live/other/deep/main.tf").exists());
        }
    }

    #[test]
    fn link_out_of_the_used_part_is_refused() {
        for at in [
            "live/app/link",
            "modules/m/link",
            "modules/m/sub/link",
            "modules/shared/t.json",
            "link",
        ] {
            let (dir, found) = linked(at, "/etc/passwd");
            assert!(
                matches!(&found, Err(TreeError::OutsideLink(name)) if name == at),
                "{at}: {found:?}"
            );
            assert!(dir.path().join(at).symlink_metadata().is_ok());
        }
        let (_dir, found) = linked("modules/link", "/etc/passwd");
        assert_eq!(found.unwrap(), ["modules/link"], "beside the used ones");
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
