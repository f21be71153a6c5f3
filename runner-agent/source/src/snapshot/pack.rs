//! Writes a snapshot from the objects of a mirror.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead as _, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use crds::text::clip;
use flate2::{Compression, GzBuilder, write::GzEncoder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType};

use super::{
    HEADER, Header, LIMITS, MAX_HEADER, VERSION,
    object::{self, Hashing, Id, Mode},
};
use crate::lfs::{MAX_POINTER, Pointer};

/// The largest commit or tree, in bytes.
const MAX_OBJECT: u64 = 64 << 20;
/// The longest link target, in bytes.
const MAX_LINK: u64 = 1024;

/// The content of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Files and links.
    pub files: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// Paths of submodules whose commits the mirror lacks. They are empty directories.
    pub without: Vec<String>,
}

/// The reason why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Git could not be run.
    #[error("git cannot be run")]
    NotRun(#[source] io::Error),
    /// The mirror lacks an object of the tree or has a corrupt one. A new fetch may help.
    #[error("the mirror is broken: {0}")]
    Mirror(String),
    /// The commit has content that no snapshot may have. A retry fails as well.
    #[error("{0}")]
    Refused(String),
    /// Writing failed.
    #[error("the snapshot cannot be written")]
    Write(#[source] io::Error),
}

/// Writes the snapshot of a commit, by its full id, from a bare mirror with all of its objects. `git` is the command with its
/// environment; this function adds the arguments. Large files come from `lfs/objects` of the mirror, submodules from the mirror
/// itself. The output is deterministic for a commit and the submodules and large files that the mirror has. Blocks the thread.
///
/// # Errors
/// The snapshot is incomplete.
pub fn pack(
    git: Command,
    mirror: &Path,
    revision: &str,
    into: impl Write,
) -> Result<Packed, PackError> {
    let id = Id::parse(revision).ok_or_else(|| {
        PackError::Refused(format!(
            "{} is no commit of SHA-1, as snapshots are made of",
            clip(revision, 100)
        ))
    })?;
    let mut packing = Packing {
        objects: Objects::start(git, mirror)?,
        header: Header {
            version: VERSION,
            revision: revision.to_owned(),
            ..Header::default()
        },
        items: Vec::new(),
        entries: 0,
        large: BTreeMap::new(),
        packed: Packed::default(),
    };
    let commit = packing.objects.need(&id, "commit")?;
    packing.take_commit("", &commit)?;
    packing.find_large(&mirror.join("lfs/objects"))?;
    packing.write(object::committed(&commit).unwrap_or_default(), into)
}

struct Item {
    path: String,
    mode: Mode,
    id: Id,
}

struct Packing {
    objects: Objects,
    header: Header,
    items: Vec<Item>,
    /// Items, and their parent directories.
    entries: usize,
    /// The files with the content of large files, by path.
    large: BTreeMap<String, (PathBuf, Pointer)>,
    packed: Packed,
}

impl Packing {
    /// Adds the tree of a commit at a path.
    fn take_commit(&mut self, at: &str, commit: &[u8]) -> Result<(), PackError> {
        let tree = object::tree_of(commit)
            .ok_or_else(|| PackError::Mirror("a commit without a tree".into()))?;
        self.header
            .commits
            .insert(at.to_owned(), STANDARD.encode(commit));
        self.take_tree(at, &tree)
    }

    fn take_tree(&mut self, at: &str, tree: &Id) -> Result<(), PackError> {
        let content = self.objects.need(tree, "tree")?;
        let entries = object::entries(&content).ok_or_else(|| {
            PackError::Refused(format!(
                "the directory `{}` has an entry of a mode that git no longer writes",
                clip(at, 200)
            ))
        })?;
        for entry in entries {
            let path = path(at, &entry.name)?;
            self.entries += 1;
            if self.entries > LIMITS.entries {
                return Err(PackError::Refused(format!(
                    "it has more than {} files and directories",
                    LIMITS.entries
                )));
            }
            match entry.mode {
                Mode::Directory => {
                    let before = self.items.len();
                    self.take_tree(&path, &entry.id)?;
                    if self.items.len() == before {
                        return Err(refused(
                            &path,
                            "a directory without a file, which no checkout has",
                        ));
                    }
                }
                Mode::Submodule => {
                    self.header
                        .gitlinks
                        .insert(path.clone(), entry.id.to_string());
                    // Its place is a directory in any case.
                    self.items.push(Item {
                        path: path.clone(),
                        mode: Mode::Submodule,
                        id: entry.id,
                    });
                    match self.objects.whole(&entry.id, "commit", MAX_OBJECT)? {
                        Some(commit) => self.take_commit(&path, &commit)?,
                        None => self.packed.without.push(path),
                    }
                }
                mode @ (Mode::File | Mode::Executable | Mode::Link) => self.items.push(Item {
                    path,
                    mode,
                    id: entry.id,
                }),
            }
        }
        Ok(())
    }

    /// Finds the contents of large files in the mirror.
    fn find_large(&mut self, store: &Path) -> Result<(), PackError> {
        if !store.is_dir() {
            return Ok(());
        }
        for Item { path, id, .. } in self
            .items
            .iter()
            .filter(|item| matches!(item.mode, Mode::File | Mode::Executable))
        {
            if self.objects.size(id)? > MAX_POINTER {
                continue;
            }
            let text = self.objects.need(id, "blob")?;
            let Some(pointer) = Pointer::parse(&text) else {
                continue;
            };
            let file = store.join(pointer.place());
            if file
                .metadata()
                .is_ok_and(|meta| meta.is_file() && meta.len() == pointer.size)
            {
                self.header
                    .lfs
                    .insert(path.clone(), String::from_utf8_lossy(&text).into_owned());
                self.large.insert(path.clone(), (file, pointer));
            }
        }
        Ok(())
    }

    fn write(mut self, time: u64, into: impl Write) -> Result<Packed, PackError> {
        let mut archive = Archive {
            builder: Builder::new(GzBuilder::new().write(into, Compression::default())),
            time,
        };
        let header =
            serde_json::to_vec(&self.header).map_err(|error| PackError::Write(error.into()))?;
        if header.len() as u64 > MAX_HEADER {
            return Err(PackError::Refused(
                "it has too many submodules and large files".into(),
            ));
        }
        archive.file(HEADER, Mode::File, header.len() as u64, header.as_slice())?;
        for Item { path, mode, id } in std::mem::take(&mut self.items) {
            let size = match mode {
                Mode::Link => {
                    let target = self
                        .objects
                        .whole(&id, "blob", MAX_LINK)?
                        .ok_or_else(|| missing(&id))?;
                    archive.link(&path, target_of(&path, &target)?)?;
                    target.len() as u64
                }
                Mode::Directory | Mode::Submodule => {
                    archive.directory(&path)?;
                    continue;
                }
                Mode::File | Mode::Executable => match self.large.get(&path) {
                    Some((file, pointer)) => {
                        archive.large(&path, mode, file, pointer)?;
                        pointer.size
                    }
                    None => self.objects.copy(&id, |size, content| {
                        archive.file(&path, mode, size, content)
                    })?,
                },
            };
            self.packed.files += 1;
            self.packed.bytes += size;
            if self.packed.bytes > LIMITS.size {
                return Err(PackError::Refused(format!(
                    "it has more than {} bytes in its files",
                    LIMITS.size
                )));
            }
        }
        archive.finish()?;
        Ok(self.packed)
    }
}

/// Writes entries with the time of the commit and without an owner.
struct Archive<W: Write> {
    builder: Builder<GzEncoder<W>>,
    time: u64,
}

impl<W: Write> Archive<W> {
    fn header(&self, kind: EntryType, mode: u32, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(self.time);
        header.set_uid(0);
        header.set_gid(0);
        header
    }

    fn file(
        &mut self,
        path: &str,
        mode: Mode,
        size: u64,
        content: impl Read,
    ) -> Result<(), PackError> {
        let mode = if mode == Mode::Executable {
            0o755
        } else {
            0o644
        };
        let mut header = self.header(EntryType::Regular, mode, size);
        self.builder
            .append_data(&mut header, path, content)
            .map_err(PackError::Write)
    }

    fn directory(&mut self, path: &str) -> Result<(), PackError> {
        let mut header = self.header(EntryType::Directory, 0o755, 0);
        self.builder
            .append_data(&mut header, path, io::empty())
            .map_err(PackError::Write)
    }

    fn link(&mut self, path: &str, target: &str) -> Result<(), PackError> {
        let mut header = self.header(EntryType::Symlink, 0o777, 0);
        self.builder
            .append_link(&mut header, path, target)
            .map_err(PackError::Write)
    }

    fn large(
        &mut self,
        path: &str,
        mode: Mode,
        file: &Path,
        pointer: &Pointer,
    ) -> Result<(), PackError> {
        let unread = |error: io::Error| PackError::Mirror(format!("{}: {error}", file.display()));
        let mut content = Summed {
            from: File::open(file).map_err(unread)?.take(pointer.size),
            hash: Sha256::new(),
            bytes: 0,
        };
        self.file(path, mode, pointer.size, &mut content)?;
        if content.bytes != pointer.size || hex::encode(content.hash.finalize()) != pointer.oid {
            return Err(PackError::Mirror(format!(
                "{} is not what {path} points to",
                file.display()
            )));
        }
        Ok(())
    }

    fn finish(self) -> Result<(), PackError> {
        let finished = self.builder.into_inner().and_then(GzEncoder::finish);
        finished
            .and_then(|mut into| into.flush())
            .map_err(PackError::Write)
    }
}

struct Summed<R> {
    from: R,
    hash: Sha256,
    bytes: u64,
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.hash.update(into.get(..read).unwrap_or_default());
        self.bytes += read as u64;
        Ok(read)
    }
}

/// Reads the objects of a mirror through one git process. Each object is hashed again, so corruption is found here and not by the
/// reader.
struct Objects {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Objects {
    fn start(mut git: Command, mirror: &Path) -> Result<Self, PackError> {
        git.arg("--no-replace-objects")
            .arg("--git-dir")
            .arg(mirror)
            .args(["cat-file", "--batch-command"]);
        git.env("GIT_NO_LAZY_FETCH", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = git.spawn().map_err(PackError::NotRun)?;
        let (Some(ask), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(PackError::NotRun(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Self {
            child,
            ask,
            answers: BufReader::with_capacity(64 << 10, answers),
        })
    }

    /// Requests an object: its kind and size; `None` when it is missing.
    fn ask(&mut self, what: &str, id: &Id) -> Result<Option<(String, u64)>, PackError> {
        let ended = |error: io::Error| {
            PackError::Mirror(format!("git ended when it was asked for {id}: {error}"))
        };
        self.ask
            .write_all(format!("{what} {id}\n").as_bytes())
            .and_then(|()| self.ask.flush())
            .map_err(ended)?;
        let mut line = Vec::new();
        (&mut self.answers)
            .take(256)
            .read_until(b'\n', &mut line)
            .map_err(ended)?;
        let line = String::from_utf8_lossy(&line);
        let mut words = line.trim_end().split(' ').skip(1);
        match (words.next(), words.next().map(str::parse)) {
            (Some("missing"), None) => Ok(None),
            (Some(kind), Some(Ok(size))) => Ok(Some((kind.to_owned(), size))),
            _ => Err(ended(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn size(&mut self, id: &Id) -> Result<u64, PackError> {
        self.ask("info", id)?
            .map(|(_, size)| size)
            .ok_or_else(|| missing(id))
    }

    /// An object that must exist.
    fn need(&mut self, id: &Id, kind: &str) -> Result<Vec<u8>, PackError> {
        self.whole(id, kind, MAX_OBJECT)?.ok_or_else(|| missing(id))
    }

    /// An object of at most `most` bytes; `None` when it is missing.
    fn whole(&mut self, id: &Id, kind: &str, most: u64) -> Result<Option<Vec<u8>>, PackError> {
        let Some((found, size)) = self.ask("contents", id)? else {
            return Ok(None);
        };
        if found != kind {
            return Err(PackError::Mirror(format!(
                "{id} is a {found}, and a {kind} is named"
            )));
        }
        if size > most {
            return Err(PackError::Refused(format!(
                "{kind} {id} has {size} bytes, and {most} at most are taken"
            )));
        }
        let mut content = Vec::new();
        self.content(id, kind, size, |from| {
            from.read_to_end(&mut content)
                .map(drop)
                .map_err(PackError::Write)
        })?;
        Ok(Some(content))
    }

    /// Passes the size and content of a file to be copied; returns its size.
    fn copy(
        &mut self,
        id: &Id,
        take: impl FnOnce(u64, &mut dyn Read) -> Result<(), PackError>,
    ) -> Result<u64, PackError> {
        let Some((found, size)) = self.ask("contents", id)? else {
            return Err(missing(id));
        };
        if found != "blob" {
            return Err(PackError::Mirror(format!(
                "{id} is a {found}, and a file is named"
            )));
        }
        if size > LIMITS.size {
            return Err(PackError::Refused(format!(
                "it has a file of {size} bytes, and {} at most are taken",
                LIMITS.size
            )));
        }
        self.content(id, "blob", size, |from| take(size, from))?;
        Ok(size)
    }

    /// Passes the content of an object to a reader, and checks its id.
    fn content(
        &mut self,
        id: &Id,
        kind: &str,
        size: u64,
        read: impl FnOnce(&mut dyn Read) -> Result<(), PackError>,
    ) -> Result<(), PackError> {
        let mut content = Content {
            from: (&mut self.answers).take(size),
            hash: Hashing::new(kind, size),
            failed: None,
        };
        read(&mut content)?;
        let (left, hash, failed) = (content.from.limit(), content.hash, content.failed);
        let mut end = [0];
        let ended = self.answers.read_exact(&mut end);
        if left > 0 || failed.is_some() || ended.is_err() || end != *b"\n" {
            return Err(PackError::Mirror(format!(
                "git ended in the middle of {id}"
            )));
        }
        if hash.id() != *id {
            return Err(PackError::Mirror(format!(
                "its object {id} has other content"
            )));
        }
        Ok(())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Git's output for an object. Reports an error of the pipe as an early end of the content, so that it is not taken for an error of the
/// snapshot's file.
struct Content<'a> {
    from: io::Take<&'a mut BufReader<ChildStdout>>,
    hash: Hashing,
    failed: Option<io::Error>,
}

impl Read for Content<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.from.read(into) {
            Ok(read) => {
                self.hash.update(into.get(..read).unwrap_or_default());
                Ok(read)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                self.failed = Some(error);
                Ok(0)
            }
        }
    }
}

fn missing(id: &Id) -> PackError {
    PackError::Mirror(format!("it has no {id}"))
}

fn refused(path: &str, what: &str) -> PackError {
    PackError::Refused(format!("it has `{}`, {what}", clip(path, 200)))
}

/// The path of an entry, valid on every system.
fn path(at: &str, name: &[u8]) -> Result<String, PackError> {
    let shown = String::from_utf8_lossy(name);
    let path = if at.is_empty() {
        shown.clone().into_owned()
    } else {
        format!("{at}/{shown}")
    };
    let why = match &*shown {
        _ if std::str::from_utf8(name).is_err() => "whose name is no UTF-8",
        "" | "." | ".." => "which is no name",
        _ if shown.eq_ignore_ascii_case(".git") => "which is git's own name",
        _ if shown.contains(['/', '\\']) || path.as_bytes().get(1) == Some(&b':') => {
            "a name that is a path elsewhere"
        }
        _ if shown.contains(char::is_control) => "whose name has invisible characters",
        _ if shown.len() > 255 || path.len() > 1024 => "whose name is too long",
        _ if path == HEADER => "a name that a snapshot uses itself",
        _ => return Ok(path),
    };
    Err(refused(&path, why))
}

/// The target of a link, which must be within the tree.
fn target_of<'a>(path: &str, target: &'a [u8]) -> Result<&'a str, PackError> {
    let text = std::str::from_utf8(target)
        .ok()
        .filter(|text| !text.is_empty() && !text.contains(char::is_control));
    let text = text.ok_or_else(|| refused(path, "a link to an invalid path"))?;
    let mut depth = path.split('/').count() - 1;
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| refused(path, "a link that leads out of the repository"))?;
            }
            _ => depth += 1,
        }
    }
    if text.starts_with('/') {
        return Err(refused(path, "a link to an absolute path"));
    }
    Ok(text)
}
