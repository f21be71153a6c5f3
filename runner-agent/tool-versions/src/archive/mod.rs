//! Unpacks the executable of a release, or all files of a source, within bounds.
//!
//! The sum of an archive is verified before, but its content is untrusted: an operator's key may sign a repackaged release, and
//! the digest of a source archive ([`tree`]) in a run proves nothing about its content. So no archive may write outside of its
//! place or fill the disk.

mod tarball;
mod tree;
mod zipped;

use std::{
    collections::HashSet,
    fmt,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    time::Instant,
};

use tree::Tree;
pub use tree::Unpacked;

use crate::{
    Error, Result,
    verify::{
        digest::{Digest, Hashing, beginning},
        sums::is_html,
    },
};

/// The bounds of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a file of a release, and of all files of a source.
    pub size: u64,
    /// The highest compression ratio. Executables have 3 to 4; deflate reaches 1030.
    pub ratio: u64,
    /// The number of entries.
    pub entries: usize,
}

impl Default for Limits {
    /// 1 GiB, ratio 200, 128 entries. Present releases have 100 MiB in four files.
    fn default() -> Self {
        Self {
            size: 1 << 30,
            ratio: 200,
            entries: 128,
        }
    }
}

/// Below this size, in bytes, the ratio is not checked: short text may compress that well.
const SLACK: u64 = 1 << 20;

/// The unpacked file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The size in bytes.
    pub size: u64,
    pub digest: Digest,
}

/// Writes the file `entry` of a release's archive to `into`, without syncing it or making it executable. `name` is the file name of
/// the archive: a `.zip`, or the executable itself. Memory is bounded for any input.
///
/// Skips other files, such as licences. Integrity: the entry is missing, duplicate, empty, a directory, a link or a device; any
/// entry is a link or a device, or its name escapes; `limits` are exceeded; a checksum fails; the archive is truncated or has
/// bytes outside of its entries. Storage: the disk failed. After an error the content of `into` is undefined.
pub fn take(
    name: &str,
    mut archive: impl Read + Seek,
    entry: &str,
    limits: &Limits,
    into: impl Write,
) -> Result<Taken> {
    let mut first = [0; 256];
    let read = (|| {
        archive.rewind()?;
        let read = fill(&mut archive, &mut first)?;
        archive.rewind().map(|()| read)
    })();
    let read = read.map_err(|error| Error::storage(name, &error))?;
    let job = Job {
        name,
        entry,
        limits,
    };
    let first = first.get(..read).unwrap_or_default();
    if is_html(first) {
        return Err(job.fault(format_args!("is a page of HTML: `{}`", beginning(first))));
    }
    let mut sink = Sink {
        job: &job,
        into: Hashing::new(into),
        failed: false,
    };
    if Path::new(name).extension().is_some_and(|end| end == "zip") {
        zipped::take(&job, archive, &mut sink)?;
    } else {
        sink.copy(archive, u64::MAX)?;
    }
    sink.into
        .flush()
        .map_err(|error| Error::storage(format_args!("{entry} of {name}"), &error))?;
    match sink.into.written() {
        0 => Err(job.fault(format_args!("has `{entry}` with no bytes"))),
        size => Ok(Taken {
            size,
            digest: sink.into.digest(),
        }),
    }
}

/// Unpacks an archive before `until` into `root`, an empty directory without other writers. `name` is for messages; the first
/// bytes determine the format: `.tar.gz`, `.tar` or `.zip`.
///
/// Files are created with mode 644, or 755 when they were executable for anyone. Symbolic links within the archive are created. A
/// chain of links may still escape, so users must resolve paths ([`Path::canonicalize`]).
///
/// Integrity: an entry is a hard link, device, pipe or unknown, set-user-id or set-group-id, duplicate, or below a file or a
/// link; a name is not UTF-8, too long, absolute, escapes, or is `.git`; a link is absolute or escapes; `limits` or the time are
/// exceeded; there is no file. Storage: the disk failed. After an error the content of `root` is undefined.
pub fn unpack(
    name: &str,
    mut archive: impl Read + Seek,
    limits: &Limits,
    until: Instant,
    root: &Path,
) -> Result<Unpacked> {
    let mut first = [0; 512];
    let read = (|| {
        let length = archive.seek(SeekFrom::End(0))?;
        archive.rewind()?;
        let read = fill(&mut archive, &mut first)?;
        archive.rewind().map(|()| (length, read))
    })();
    let (length, read) = read.map_err(|error| Error::storage(name, &error))?;
    let job = Job {
        name,
        entry: "",
        limits,
    };
    let mut tree = Tree::new(&job, root, until, length);
    match first.get(..read).unwrap_or_default() {
        [0x1f, 0x8b, ..] => tarball::unpack(&job, archive, true, &mut tree)?,
        [b'P', b'K', 3 | 5, 4 | 6, ..] => zipped::unpack(&job, archive, &mut tree)?,
        bytes if bytes.get(257..262) == Some(b"ustar") => {
            tarball::unpack(&job, archive, false, &mut tree)?;
        }
        bytes if is_html(bytes) => return Err(job.fault("is a page of HTML")),
        _ => return Err(job.fault("is neither a .tar.gz nor a .tar nor a .zip")),
    }
    tree.finish()
}

struct Job<'a> {
    name: &'a str,
    entry: &'a str,
    limits: &'a Limits,
}

impl Job<'_> {
    /// Makes an integrity error.
    fn fault(&self, found: impl fmt::Display) -> Error {
        Error::integrity(format!("`{}` {found}", self.name))
    }

    /// Makes an integrity error for an entry.
    fn hostile(&self, entry: &[u8], why: impl fmt::Display) -> Error {
        self.fault(format_args!("has an entry `{}`, {why}", beginning(entry)))
    }

    /// Classifies a failed read: an error of the operating system is a storage error, any other an error of the archive.
    fn unread(&self, what: impl fmt::Display, error: &io::Error) -> Error {
        match (error.raw_os_error(), error.kind()) {
            (Some(_), _) => Error::storage(self.name, error),
            (None, io::ErrorKind::UnexpectedEof) => {
                self.fault(format_args!("is cut off in {what}"))
            }
            (None, _) => self.fault(format_args!("is broken in {what}: {error}")),
        }
    }

    /// The error for a missing entry.
    fn missing(&self, seen: &HashSet<String>) -> Error {
        let mut names: Vec<_> = seen.iter().map(|name| beginning(name.as_bytes())).collect();
        names.sort_unstable();
        names.truncate(5);
        self.fault(format_args!(
            "has no `{}`; it begins with `{}`",
            self.entry,
            names.join("`, `")
        ))
    }
}

/// Validates the name of an entry.
fn legal<'a>(job: &Job<'_>, name: &'a [u8]) -> Result<&'a str> {
    let hostile = |why: &str| job.hostile(name, why);
    let text = std::str::from_utf8(name).map_err(|_| hostile("whose name is not UTF-8"))?;
    // `tar` writes this prefix for the content of a directory.
    let text = text.strip_prefix("./").unwrap_or(text);
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.starts_with('/') || text.contains('\\') || text.as_bytes().get(1) == Some(&b':') {
        return Err(hostile("whose name is an absolute path"));
    }
    if text.split('/').any(|part| part == "..") {
        return Err(hostile("whose name leads out of a directory"));
    }
    if text.contains(char::is_control) {
        return Err(hostile("whose name has invisible characters"));
    }
    Ok(text)
}

/// The destination of the entry.
struct Sink<'a, W> {
    job: &'a Job<'a>,
    into: Hashing<W>,
    failed: bool,
}

impl<W: Write> Sink<'_, W> {
    /// Copies up to `most` bytes, within the limits.
    fn copy(&mut self, mut from: impl Read, most: u64) -> Result<()> {
        let Job {
            name,
            entry,
            limits,
        } = *self.job;
        let most = most.min(limits.size);
        let copied = io::copy(&mut (&mut from).take(most), self);
        copied.map_err(|error| {
            if self.failed {
                return Error::storage(format_args!("{entry} of {name}"), &error);
            }
            self.job.unread(format_args!("`{entry}`"), &error)
        })?;
        // Reads to the end: decoders check the checksum there.
        match fill(&mut from, &mut [0])
            .map_err(|error| self.job.unread(format_args!("`{entry}`"), &error))?
        {
            0 => Ok(()),
            _ => Err(self.job.fault(format_args!(
                "has `{entry}` with more than the {most} bytes that it may have"
            ))),
        }
    }
}

impl<W: Write> Write for Sink<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.into
            .write(bytes)
            .inspect_err(|error| self.failed = error.kind() != io::ErrorKind::Interrupted)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

/// Reads until the buffer is full or the input ends; returns the number of bytes.
fn fill(from: &mut impl Read, mut into: &mut [u8]) -> io::Result<usize> {
    let all = into.len();
    while !into.is_empty() {
        match from.read(into) {
            Ok(0) => break,
            Ok(read) => into = into.get_mut(read..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all - into.len())
}
