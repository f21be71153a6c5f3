//! Takes the one file that is wanted out of what a release is packed in, or all files of a source.
//!
//! An archive is unpacked after its sum was proven, so that a hostile one has the signature of its project. That is no reason to let it
//! write where it likes or fill the disk: a mirror may be verified by an operator's own key and repackage what it pleases. That of a source
//! has the digest that somebody wrote into a run, which says no more of it: [`tree`].

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// `.zip`
    Zip,
    /// `.tar.gz`
    TarGz,
    /// The executable as it is.
    Plain,
}

impl Packing {
    /// By the name of the file. One that is packed in another way is an error of configuration.
    pub fn of(name: &str) -> Result<Self> {
        const OTHERS: [&str; 9] = [".tar", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".deb", ".rpm"];
        let ends = |suffix: &str| name.to_ascii_lowercase().ends_with(suffix);
        match () {
            () if ends(".zip") => Ok(Self::Zip),
            () if ends(".tar.gz") || ends(".tgz") => Ok(Self::TarGz),
            () if OTHERS.into_iter().any(ends) => Err(Error::configuration(format!(
                "`{name}` is packed in a way that is not read here, which are .zip and .tar.gz"
            ))),
            () => Ok(Self::Plain),
        }
    }
}

/// How much is taken out of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a file, and of all that is read of a `.tar.gz`.
    pub size: u64,
    /// How often larger something may be than it was packed. Executables are three to four times larger; deflate goes up to 1030.
    pub ratio: u64,
    /// Files.
    pub entries: usize,
}

impl Default for Limits {
    /// 1 GiB, 200 times, 128 files. Releases of today have 100 MiB in four files.
    fn default() -> Self {
        Self { size: 1 << 30, ratio: 200, entries: 128 }
    }
}

/// Below so many bytes the ratio is not judged: little text may well be packed that tightly.
const SLACK: u64 = 1 << 20;

/// What was taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its bytes.
    pub size: u64,
    pub digest: Digest,
}

/// Writes the file `entry` of an archive to `into`, which is not closed, flushed to disk or made executable here. `name` is that of the
/// archive, which says how it is packed. Memory needed is bounded, whatever the archive says of itself.
///
/// Other files are passed over, as licences are. An error of integrity is an archive that has the entry not at all, twice, as a directory, a link or a
/// device, or empty; any entry that is a link or a device, or whose name leads out of a directory; more, larger or more tightly packed
/// files than `limits` allow; a checksum that does not match, an end that is missing, and bytes that no entry accounts for. What was
/// written until then stays in `into` and is worth nothing. An error of the disk is one of storage.
pub fn take(name: &str, mut archive: impl Read + Seek, entry: &str, limits: &Limits, into: impl Write) -> Result<Taken> {
    let packing = Packing::of(name)?;
    let mut first = [0; 256];
    let read = (|| {
        archive.rewind()?;
        let read = fill(&mut archive, &mut first)?;
        archive.rewind().map(|()| read)
    })();
    let read = read.map_err(|error| Error::storage(name, &error))?;
    let job = Job { name, entry, limits };
    let first = first.get(..read).unwrap_or_default();
    if is_html(first) {
        return Err(job.fault(format_args!("is a page of HTML: `{}`", beginning(first))));
    }
    let mut sink = Sink { job: &job, into: Hashing::new(into), failed: false };
    match packing {
        Packing::Zip => zipped::take(&job, archive, &mut sink)?,
        Packing::TarGz => tarball::take(&job, archive, &mut sink)?,
        Packing::Plain => sink.copy(archive, u64::MAX)?,
    }
    sink.into.flush().map_err(|error| Error::storage(format_args!("{entry} of {name}"), &error))?;
    match sink.into.written() {
        0 => Err(job.fault(format_args!("has `{entry}` with no bytes"))),
        size => Ok(Taken { size, digest: sink.into.digest() }),
    }
}

/// Unpacks an archive below `root`, an empty directory that nobody else writes to, before a point in time. `name` is that of the archive
/// for messages; whether it is a `.tar.gz`, a `.tar` or a `.zip` is told by its first bytes.
///
/// Files become readable by all and writable by their owner, and executable when they were for anybody. Symbolic links that lead
/// elsewhere within the archive are made; where they lead through each other their user has to look ([`Path::canonicalize`]).
///
/// An error of integrity is: an entry that is a hard link, device, pipe or anything else; that is set-user-id; that is there twice, or
/// lies below a file or a link; whose name is no UTF-8, too long, absolute, leads out, or is that of git's directory; a link that is absolute
/// or leads out; more, larger or more tightly packed files than `limits` allow, or more time; no file at all. An error of the disk is one of storage. What was
/// written until then stays below `root` and is worth nothing.
pub fn unpack(name: &str, mut archive: impl Read + Seek, limits: &Limits, until: Instant, root: &Path) -> Result<Unpacked> {
    let mut first = [0; 512];
    let read = (|| {
        let length = archive.seek(SeekFrom::End(0))?;
        archive.rewind()?;
        let read = fill(&mut archive, &mut first)?;
        archive.rewind().map(|()| (length, read))
    })();
    let (length, read) = read.map_err(|error| Error::storage(name, &error))?;
    let job = Job { name, entry: "", limits };
    let mut tree = Tree::new(&job, root, until, length);
    match first.get(..read).unwrap_or_default() {
        [0x1f, 0x8b, ..] => tarball::unpack(&job, archive, true, &mut tree)?,
        [b'P', b'K', 3 | 5, 4 | 6, ..] => zipped::unpack(&job, archive, &mut tree)?,
        bytes if bytes.get(257..262) == Some(b"ustar") => tarball::unpack(&job, archive, false, &mut tree)?,
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
    /// An error of integrity.
    fn fault(&self, found: impl fmt::Display) -> Error {
        Error::integrity(format!("`{}` {found}", self.name))
    }

    /// An error of an entry.
    fn hostile(&self, entry: &[u8], why: impl fmt::Display) -> Error {
        self.fault(format_args!("has an entry `{}`, {why}", beginning(entry)))
    }

    /// An error of reading: what the operating system said is of the disk, and all else of the archive.
    fn unread(&self, what: impl fmt::Display, error: &io::Error) -> Error {
        match (error.raw_os_error(), error.kind()) {
            (Some(_), _) => Error::storage(self.name, error),
            (None, io::ErrorKind::UnexpectedEof) => self.fault(format_args!("is cut off in {what}")),
            (None, _) => self.fault(format_args!("is broken in {what}: {error}")),
        }
    }

    /// That there is no entry of that name.
    fn missing(&self, seen: &Seen) -> Error {
        let mut names: Vec<_> = seen.0.iter().map(|name| beginning(name.as_bytes())).collect();
        names.sort_unstable();
        names.truncate(5);
        self.fault(format_args!("has no `{}`; it begins with `{}`", self.entry, names.join("`, `")))
    }
}

/// Names that were seen.
struct Seen(HashSet<String>);

impl Seen {
    /// Takes the name of one more entry, and says whether it is the one that is wanted.
    fn take(&mut self, job: &Job<'_>, name: &[u8]) -> Result<bool> {
        if self.0.len() >= job.limits.entries {
            return Err(job.fault(format_args!("has more than {} entries", job.limits.entries)));
        }
        let text = legal(job, name)?;
        if !self.0.insert(text.to_owned()) {
            return Err(job.hostile(name, "which is there twice"));
        }
        Ok(text == job.entry)
    }
}

/// The name of an entry, if it is one within the archive.
fn legal<'a>(job: &Job<'_>, name: &'a [u8]) -> Result<&'a str> {
    let hostile = |why: &str| job.hostile(name, why);
    let text = std::str::from_utf8(name).map_err(|_| hostile("whose name is no UTF-8"))?;
    // What tar writes of a directory's content.
    let text = text.strip_prefix("./").unwrap_or(text);
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.starts_with('/') || text.contains('\\') || text.as_bytes().get(1) == Some(&b':') {
        return Err(hostile("whose name is an absolute path"));
    }
    if text.split('/').any(|part| part == "..") {
        return Err(hostile("whose name leads out of a directory"));
    }
    if text.contains(char::is_control) {
        return Err(hostile("whose name has characters that cannot be seen"));
    }
    Ok(text)
}

/// Where the entry goes.
struct Sink<'a, W> {
    job: &'a Job<'a>,
    into: Hashing<W>,
    failed: bool,
}

impl<W: Write> Sink<'_, W> {
    /// Copies all there is, up to `most` bytes and what is allowed.
    fn copy(&mut self, mut from: impl Read, most: u64) -> Result<()> {
        let Job { name, entry, limits } = *self.job;
        let most = most.min(limits.size);
        let copied = io::copy(&mut (&mut from).take(most), self);
        copied.map_err(|error| {
            if self.failed {
                return Error::storage(format_args!("{entry} of {name}"), &error);
            }
            self.job.unread(format_args!("`{entry}`"), &error)
        })?;
        // Reads to the end, where checksums are compared.
        match fill(&mut from, &mut [0]).map_err(|error| self.job.unread(format_args!("`{entry}`"), &error))? {
            0 => Ok(()),
            _ => Err(self.job.fault(format_args!("has `{entry}` with more than the {most} bytes that it may have"))),
        }
    }
}

impl<W: Write> Write for Sink<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.into.write(bytes).inspect_err(|error| self.failed = error.kind() != io::ErrorKind::Interrupted)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

/// Reads until the buffer is full or there is no more, and says how much was read.
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
