//! A source tree on disk.

use std::{fs, path::PathBuf};

use tempfile::TempDir;

/// Files below `src`, the root of the source, and beside it. The stack is `src/STACK`.
pub(crate) struct Tree {
    _dir: TempDir,
    pub root: PathBuf,
    pub stack: PathBuf,
}

impl Tree {
    pub(crate) fn of(stack: &str, files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("src");
        let stack = root.join(stack);
        fs::create_dir_all(&stack).unwrap();
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self {
            _dir: dir,
            root,
            stack,
        }
    }
}
