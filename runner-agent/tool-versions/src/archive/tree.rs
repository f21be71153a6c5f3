//! Unpacks all of an archive into an empty directory.
//!
//! Nothing is written through what the archive itself has put there: every name is one of its own, directories are made here and not
//! taken from it, and links come last, when nothing is written any more.

use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{OpenOptionsExt, symlink},
    path::Path,
    time::Instant,
};

use super::{Job, Limits, SLACK, fill, legal, tarball, zipped};
use crate::{Error, Result, sums::is_html};

/// The longest name of an entry, in bytes: a quarter of what Linux takes, since the directory has a name as well.
const LONGEST: usize = 1024;
/// The longest part of one.
const LONGEST_PART: usize = 255;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// What was unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Files and links.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
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
    let mut tree = Tree { job: &job, root, until, length, made: HashMap::new(), links: Vec::new(), files: 0, bytes: 0 };
    match first.get(..read).unwrap_or_default() {
        [0x1f, 0x8b, ..] => tarball::unpack(&job, archive, true, &mut tree)?,
        [b'P', b'K', 3 | 5, 4 | 6, ..] => zipped::unpack(&job, archive, &mut tree)?,
        bytes if bytes.get(257..262) == Some(b"ustar") => tarball::unpack(&job, archive, false, &mut tree)?,
        bytes if is_html(bytes) => return Err(job.fault("is a page of HTML")),
        _ => return Err(job.fault("is neither a .tar.gz nor a .tar nor a .zip")),
    }
    tree.finish()
}

/// What a name was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// A directory that no entry names.
    Implied,
    Directory,
    File,
    Link,
}

/// What is unpacked so far.
pub(super) struct Tree<'a> {
    job: &'a Job<'a>,
    root: &'a Path,
    until: Instant,
    /// Bytes of the archive.
    length: u64,
    made: HashMap<String, Made>,
    links: Vec<(String, String)>,
    files: usize,
    bytes: u64,
}

impl Tree<'_> {
    /// An error when there is no more time.
    pub(super) fn is_in_time(&self) -> Result<()> {
        if Instant::now() <= self.until {
            return Ok(());
        }
        Err(self.job.fault(format_args!("takes too long to unpack: {} files and {} bytes until now", self.files, self.bytes)))
    }

    /// Makes a directory.
    pub(super) fn directory(&mut self, name: &[u8]) -> Result<()> {
        match self.place(name, Made::Directory)? {
            Some(place) => self.make_directory(&place),
            None => Ok(()),
        }
    }

    /// Writes a file of so many bytes.
    pub(super) fn file(&mut self, name: &[u8], mode: u32, size: u64, mut from: impl Read) -> Result<()> {
        if mode & SET_ID != 0 {
            return Err(self.job.hostile(name, "which runs as another user or group (set-user-id or set-group-id)"));
        }
        let Some(place) = self.place(name, Made::File)? else { return Err(self.job.hostile(name, "a file without a name")) };
        let permissions = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
        let (job, path) = (self.job, self.root.join(&place));
        let storage = |error| Error::storage(format_args!("{place} of {}", job.name), &error);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(permissions).open(path).map_err(storage)?;
        let (mut written, mut buffer) = (0, vec![0; 64 << 10]);
        loop {
            let read = fill(&mut from, &mut buffer).map_err(|error| job.unread(format_args!("`{place}`"), &error))?;
            if read == 0 {
                break;
            }
            written += read as u64;
            self.bytes += read as u64;
            if written > size {
                return Err(job.hostile(name, format_args!("with more than the {size} bytes that it says")));
            }
            self.is_bounded()?;
            file.write_all(buffer.get(..read).unwrap_or_default()).map_err(storage)?;
        }
        if written != size {
            return Err(job.fault(format_args!("is cut off in `{place}`: {written} of {size} bytes")));
        }
        self.files += 1;
        Ok(())
    }

    /// Makes a link, at the end.
    pub(super) fn link(&mut self, name: &[u8], target: &[u8]) -> Result<()> {
        let Some(place) = self.place(name, Made::Link)? else { return Err(self.job.hostile(name, "a link without a name")) };
        let hostile = |why: &str| self.job.hostile(name, why);
        let target = std::str::from_utf8(target).map_err(|_| hostile("a link to what is no UTF-8"))?;
        if target.is_empty() || target.contains(char::is_control) || target.len() > LONGEST {
            return Err(hostile("a link to what is no path"));
        }
        if target.starts_with('/') {
            return Err(hostile("a link to an absolute path"));
        }
        let mut depth = place.split('/').count() - 1;
        for part in target.split('/') {
            match part {
                "" | "." => {}
                ".." => depth = depth.checked_sub(1).ok_or_else(|| hostile("a link that leads out of the archive"))?,
                _ => depth += 1,
            }
        }
        self.links.push((place, target.to_owned()));
        self.files += 1;
        Ok(())
    }

    fn is_bounded(&self) -> Result<()> {
        let Limits { size, ratio, .. } = *self.job.limits;
        if self.bytes > size {
            return Err(self.job.fault(format_args!("has more than {size} bytes in its files")));
        }
        if self.bytes > SLACK && self.bytes / self.length.max(1) >= ratio {
            let (bytes, length) = (self.bytes, self.length);
            return Err(self.job.fault(format_args!("has {bytes} bytes in {length}: more than {ratio} times as many")));
        }
        self.is_in_time()
    }

    /// Takes a name, with the directories above it; its path below the root, or none where nothing has to be made.
    fn place(&mut self, name: &[u8], made: Made) -> Result<Option<String>> {
        self.is_in_time()?;
        let hostile = |why: &str| self.job.hostile(name, why);
        let text = legal(self.job, name)?;
        let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if text.len() > LONGEST || parts.iter().any(|part| part.len() > LONGEST_PART) {
            return Err(hostile("whose name is too long"));
        }
        // Git takes commands from its configuration, and whoever looks for links that lead out passes it over.
        if parts.iter().any(|part| part.eq_ignore_ascii_case(".git")) {
            return Err(hostile("which is git's own; `git archive` leaves it out"));
        }
        let Some((_, above)) = parts.split_last() else { return Ok(None) };
        let mut at = String::new();
        for part in above {
            at = if at.is_empty() { (*part).to_owned() } else { format!("{at}/{part}") };
            match self.made.get(&at) {
                None => {
                    self.take(&at, Made::Implied)?;
                    self.make_directory(&at)?;
                }
                Some(Made::Implied | Made::Directory) => {}
                Some(Made::File | Made::Link) => return Err(self.job.hostile(name, "which lies below a file or a link")),
            }
        }
        let place = parts.join("/");
        match (self.made.get(&place), made) {
            (None, _) => self.take(&place, made).map(|()| Some(place)),
            (Some(Made::Implied), Made::Directory) => {
                self.made.insert(place, Made::Directory);
                Ok(None)
            }
            (Some(_), _) => Err(self.job.hostile(name, "which is there twice")),
        }
    }

    fn take(&mut self, place: &str, made: Made) -> Result<()> {
        let most = self.job.limits.entries;
        if self.made.len() >= most {
            return Err(self.job.fault(format_args!("has more than {most} files and directories")));
        }
        self.made.insert(place.to_owned(), made);
        Ok(())
    }

    fn make_directory(&self, place: &str) -> Result<()> {
        fs::create_dir(self.root.join(place))
            .map_err(|error| Error::storage(format_args!("{place} of {}", self.job.name), &error))
    }

    fn finish(self) -> Result<Unpacked> {
        if self.files == 0 {
            return Err(self.job.fault("has no files"));
        }
        for (place, target) in &self.links {
            symlink(target, self.root.join(place))
                .map_err(|error| Error::storage(format_args!("{place} of {}", self.job.name), &error))?;
        }
        Ok(Unpacked { files: self.files, bytes: self.bytes })
    }
}
