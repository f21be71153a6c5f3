//! The digest of a directory: sorted paths with kind, executable bit and content.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use crds::text::clip;
use sha2::{Digest, Sha256};

use crate::files;

/// Maximum size of all files in a digest, in bytes: four times that of a source. Code may leave a sparse file of any size.
const MAX_SIZE: u64 = 16 << 30;

/// A file or directory cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}: {error}", path = clip(&path.to_string_lossy(), 300))]
pub struct TreeError {
    path: PathBuf,
    error: io::Error,
}

impl TreeError {
    pub fn error(&self) -> &io::Error {
        &self.error
    }
}

/// The digest of everything below `root`, except paths (relative to `root`) for which `skip` returns true.
pub(super) fn digest(root: &Path, skip: &dyn Fn(&Path) -> bool) -> Result<String, TreeError> {
    let (mut hasher, mut left) = (Sha256::new(), MAX_SIZE);
    walk(root, Path::new(""), skip, &mut hasher, &mut left)?;
    Ok(hex::encode(hasher.finalize()))
}

/// The digest of one file.
pub(super) fn file_digest(path: &Path) -> Result<String, TreeError> {
    let mut left = MAX_SIZE;
    content(path, &mut left).map_err(|error| TreeError {
        path: path.to_owned(),
        error,
    })
}

fn walk(
    root: &Path,
    below: &Path,
    skip: &dyn Fn(&Path) -> bool,
    hasher: &mut Sha256,
    left: &mut u64,
) -> Result<(), TreeError> {
    let dir = root.join(below);
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| TreeError { path, error }
    };
    let mut names = fs::read_dir(&dir)
        .map_err(at(&dir))?
        .map(|entry| entry.map(|e| e.file_name()).map_err(at(&dir)))
        .collect::<Result<Vec<_>, _>>()?;
    // By bytes, independent of locale and file system.
    names.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    for name in names {
        let relative = below.join(&name);
        if skip(&relative) {
            continue;
        }
        let path = root.join(&relative);
        let meta = fs::symlink_metadata(&path).map_err(at(&path))?;
        let kind = meta.file_type();
        if kind.is_dir() {
            entry(hasher, b"dir", relative.as_os_str(), b"");
            walk(root, &relative, skip, hasher, left)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(at(&path))?;
            entry(
                hasher,
                b"link",
                relative.as_os_str(),
                target.as_os_str().as_bytes(),
            );
        } else if kind.is_file() {
            let content = content(&path, left).map_err(at(&path))?;
            let word: &[u8] = if meta.mode() & 0o111 == 0 {
                b"file"
            } else {
                b"exec"
            };
            entry(hasher, word, relative.as_os_str(), content.as_bytes());
        }
        // Pipes, sockets and devices are skipped: reading one might block forever, and a bundle contains none.
    }
    Ok(())
}

/// The digest of a file's content, whose size it takes from `left`.
fn content(path: &Path, left: &mut u64) -> io::Result<String> {
    let file = files::regular(path)?;
    let size = file.metadata()?.len();
    *left = left.checked_sub(size).ok_or_else(|| {
        let text = format!(
            "with its {size} bytes the files have more than {} GiB",
            MAX_SIZE >> 30
        );
        io::Error::new(io::ErrorKind::FileTooLarge, text)
    })?;
    files::digest(file.take(size))
}

/// Length prefixes make the encoding of entries unambiguous.
fn entry(hasher: &mut Sha256, kind: &[u8], path: &OsStr, content: &[u8]) {
    for part in [kind, path.as_bytes(), content] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("m/.terraform/providers/x")).unwrap();
        fs::write(dir.path().join("a.tf"), "a").unwrap();
        fs::write(dir.path().join("m/b.tf"), "b").unwrap();
        fs::write(dir.path().join("m/.terraform/providers/x/p"), "binary").unwrap();
        symlink("a.tf", dir.path().join("link")).unwrap();
        dir
    }

    #[test]
    fn digest_changes_with_every_counted_property() {
        type Change = fn(&Path);
        let of =
            |dir: &Path| digest(dir, &|path| path == Path::new("m/.terraform/providers")).unwrap();
        assert_eq!(
            of(tree().path()),
            of(tree().path()),
            "times and places do not count"
        );
        let changes: [(&str, Change); 7] = [
            ("content", |d| fs::write(d.join("m/b.tf"), "c").unwrap()),
            ("new file", |d| fs::write(d.join("new"), "").unwrap()),
            ("empty directory", |d| {
                fs::create_dir(d.join("empty")).unwrap();
            }),
            ("removed", |d| fs::remove_file(d.join("a.tf")).unwrap()),
            ("renamed", |d| {
                fs::rename(d.join("a.tf"), d.join("aa.tf")).unwrap();
            }),
            ("executable", |d| {
                fs::set_permissions(d.join("a.tf"), PermissionsExt::from_mode(0o755)).unwrap();
            }),
            ("link", |d| {
                fs::remove_file(d.join("link")).unwrap();
                symlink("m", d.join("link")).unwrap();
            }),
        ];
        for (name, change) in changes {
            let dir = tree();
            let before = of(dir.path());
            change(dir.path());
            assert_ne!(of(dir.path()), before, "{name}");
        }
        let dir = tree();
        let before = of(dir.path());
        fs::write(dir.path().join("m/.terraform/providers/x/p"), "other").unwrap();
        assert_eq!(
            of(dir.path()),
            before,
            "the lock file covers provider binaries"
        );
    }
}
