//! Unpacks a snapshot and verifies it against the commit id.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Seek},
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::Path,
    time::Instant,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use crds::text::clip;
use sha2::{Digest as _, Sha256};
use tool_versions::{Kind, Limits, archive};

use super::{
    HEADER, Header, LIMITS, MAX_HEADER, VERSION,
    object::{self, Entry, Hashing, Id, Mode},
};
use crate::lfs::Pointer;

/// The content of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Files and links.
    pub files: usize,
    /// Paths of submodules that are empty directories, since the writer lacked their commits.
    pub without: Vec<String>,
}

/// The reason why there is no tree.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It is not the tree of that commit, or no snapshot.
    #[error("{0}")]
    Integrity(String),
    /// The disk failed.
    #[error("{0}")]
    Storage(String),
}

/// Unpacks the snapshot of a commit, by its full id, into an empty directory without other writers, before a deadline. The result
/// is exactly the tree of that commit, with the trees of its submodules and the contents of its LFS pointers. Link targets stay
/// within it by their text.
///
/// # Errors
/// Anything else. The content of the directory is then undefined.
pub fn unpack(
    archive: impl io::Read + Seek,
    root: &Path,
    revision: &str,
    until: Instant,
) -> Result<Unpacked, UnpackError> {
    unpack_within(archive, root, revision, until, &LIMITS)
}

pub(super) fn unpack_within(
    archive: impl io::Read + Seek,
    root: &Path,
    revision: &str,
    until: Instant,
    limits: &Limits,
) -> Result<Unpacked, UnpackError> {
    let name = format!("snapshot of {}", clip(revision, 64));
    let unpacked =
        archive::unpack(&name, archive, limits, until, root).map_err(|error| match error.kind {
            Kind::Storage => UnpackError::Storage(error.text),
            Kind::Configuration | Kind::Contradiction | Kind::Unavailable | Kind::Integrity => {
                UnpackError::Integrity(error.text)
            }
        })?;
    let Header {
        version,
        revision: named,
        commits,
        gitlinks,
        lfs,
    } = header(root)?;
    if version != VERSION {
        return Err(integrity(format!(
            "the snapshot has format version {version}; this release reads {VERSION}"
        )));
    }
    if named != revision {
        return Err(integrity(format!(
            "the snapshot is of commit {}, not of {revision}",
            clip(&named, 64)
        )));
    }
    let mut tree = Tree {
        root,
        until,
        commits,
        gitlinks,
        lfs,
        without: Vec::new(),
    };
    tree.commit("", revision)?;
    let left = [&tree.commits, &tree.gitlinks, &tree.lfs]
        .into_iter()
        .flat_map(BTreeMap::keys)
        .next();
    if let Some(left) = left {
        return Err(integrity(format!(
            "the snapshot describes `{}`, which is not in it",
            clip(left, 200)
        )));
    }
    tree.without.sort();
    Ok(Unpacked {
        files: unpacked.files - 1,
        without: tree.without,
    })
}

/// Takes the header from the unpacked entries.
fn header(root: &Path) -> Result<Header, UnpackError> {
    let path = root.join(HEADER);
    let is_file =
        fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_HEADER);
    if !is_file {
        return Err(integrity("not a snapshot: its description is missing"));
    }
    let text = fs::read(&path)
        .and_then(|text| fs::remove_file(&path).map(|()| text))
        .map_err(|error| storage(HEADER, &error))?;
    serde_json::from_slice(&text).map_err(|error| {
        integrity(format!(
            "not a snapshot: its description is malformed: {error}"
        ))
    })
}

fn integrity(what: impl Into<String>) -> UnpackError {
    UnpackError::Integrity(what.into())
}

fn storage(what: &str, error: &io::Error) -> UnpackError {
    UnpackError::Storage(format!("{what} of the snapshot: {error}"))
}

/// The unpacked entries, and the unverified rest of the header.
struct Tree<'a> {
    root: &'a Path,
    until: Instant,
    commits: BTreeMap<String, String>,
    gitlinks: BTreeMap<String, String>,
    lfs: BTreeMap<String, String>,
    without: Vec<String>,
}

impl Tree<'_> {
    /// Verifies that a path has the tree of a commit.
    fn commit(&mut self, at: &str, id: &str) -> Result<(), UnpackError> {
        let shown = if at.is_empty() {
            "the snapshot".to_owned()
        } else {
            format!("the submodule `{}`", clip(at, 200))
        };
        let commit = self
            .commits
            .remove(at)
            .and_then(|text| STANDARD.decode(text).ok())
            .unwrap_or_default();
        if Id::parse(id) != Some(Id::of("commit", &commit)) {
            return Err(integrity(format!(
                "{shown} is not commit {}: that has another id",
                clip(id, 64)
            )));
        }
        let found = object::tree_id(self.entries(at)?);
        if object::tree_of(&commit) != Some(found) {
            return Err(integrity(format!(
                "{shown} has other files than commit {id}"
            )));
        }
        Ok(())
    }

    /// The entries of a directory in git's form.
    fn entries(&mut self, at: &str) -> Result<Vec<Entry>, UnpackError> {
        let unread = |error: io::Error| storage(at, &error);
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.root.join(at)).map_err(unread)? {
            if Instant::now() > self.until {
                return Err(integrity(
                    "the snapshot takes too long to be compared with its commit",
                ));
            }
            let entry = entry.map_err(unread)?;
            let name = entry.file_name();
            let path = if at.is_empty() {
                name.to_string_lossy().into_owned()
            } else {
                format!("{at}/{}", name.to_string_lossy())
            };
            // Of the link itself, not of its target.
            let meta = entry.metadata().map_err(unread)?;
            let (mode, id) = if meta.is_dir() {
                self.directory(&path)?
            } else if meta.is_symlink() {
                let target = fs::read_link(entry.path()).map_err(unread)?;
                (Mode::Link, Id::of("blob", target.as_os_str().as_bytes()))
            } else {
                let mode = if meta.permissions().mode() & 0o100 == 0 {
                    Mode::File
                } else {
                    Mode::Executable
                };
                (mode, self.file(&path, meta.len())?)
            };
            entries.push(Entry {
                mode,
                name: name.as_bytes().to_vec(),
                id,
            });
        }
        Ok(entries)
    }

    fn directory(&mut self, path: &str) -> Result<(Mode, Id), UnpackError> {
        let Some(gitlink) = self.gitlinks.remove(path) else {
            let entries = self.entries(path)?;
            if entries.is_empty() {
                return Err(integrity(format!(
                    "the snapshot has an empty directory `{}`, which no commit has",
                    clip(path, 200)
                )));
            }
            return Ok((Mode::Directory, object::tree_id(entries)));
        };
        if self.commits.contains_key(path) {
            self.commit(path, &gitlink)?;
        } else if self.entries(path)?.is_empty() {
            self.without.push(path.to_owned());
        } else {
            return Err(integrity(format!(
                "the snapshot has files in `{}`, and no commit that they are of",
                clip(path, 200)
            )));
        }
        let id = Id::parse(&gitlink)
            .ok_or_else(|| integrity(format!("`{}` is no commit", clip(&gitlink, 64))))?;
        Ok((Mode::Submodule, id))
    }

    fn file(&mut self, path: &str, size: u64) -> Result<Id, UnpackError> {
        let unread = |error: io::Error| storage(path, &error);
        let mut from = File::open(self.root.join(path)).map_err(unread)?;
        let pointer = self.lfs.remove(path);
        let (mut blob, mut sum, mut buffer) =
            (Hashing::new("blob", size), Sha256::new(), vec![0; 64 << 10]);
        loop {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => buffer.get(..read).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unread(error)),
            };
            if pointer.is_some() {
                sum.update(read);
            } else {
                blob.update(read);
            }
        }
        let Some(text) = pointer else {
            return Ok(blob.id());
        };
        let names =
            |pointer: Pointer| pointer.size == size && pointer.oid == hex::encode(sum.finalize());
        if Pointer::parse(text.as_bytes()).is_some_and(names) {
            return Ok(Id::of("blob", text.as_bytes()));
        }
        Err(integrity(format!(
            "the content of `{}` in the snapshot differs from its Git LFS pointer",
            clip(path, 200)
        )))
    }
}
