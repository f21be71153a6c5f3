//! Unpacks all of an archive into an empty directory.
//!
//! No write passes through a path that the archive controls: each name is unique, directories are created here, and links are
//! created last.

use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{OpenOptionsExt, symlink},
    path::Path,
    time::Instant,
};

use super::{Job, Limits, SLACK, fill, legal};
use crate::{Error, Result};

/// The longest name of an entry, in bytes: a quarter of the limit of Linux for a path, which includes the path of the root.
const LONGEST: usize = 1024;
/// The longest part of a name, in bytes.
const LONGEST_PART: usize = 255;
/// The set-user-id and set-group-id bits.
const SET_ID: u32 = 0o6000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Files and links.
    pub files: usize,
    pub bytes: u64,
}

/// The use of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// A directory that no entry names.
    Implied,
    Directory,
    File,
    Link,
}

/// The state of unpacking.
pub(super) struct Tree<'a> {
    job: &'a Job<'a>,
    root: &'a Path,
    until: Instant,
    /// The length of the archive in bytes.
    length: u64,
    made: HashMap<String, Made>,
    links: Vec<(String, String)>,
    files: usize,
    bytes: u64,
}

impl<'a> Tree<'a> {
    /// Starts with an archive of `length` bytes.
    pub(super) fn new(job: &'a Job<'a>, root: &'a Path, until: Instant, length: u64) -> Self {
        Self {
            job,
            root,
            until,
            length,
            made: HashMap::new(),
            links: Vec::new(),
            files: 0,
            bytes: 0,
        }
    }

    /// Fails after the deadline.
    pub(super) fn is_in_time(&self) -> Result<()> {
        if Instant::now() <= self.until {
            return Ok(());
        }
        Err(self.job.fault(format_args!(
            "takes too long to unpack: {} files and {} bytes until now",
            self.files, self.bytes
        )))
    }

    pub(super) fn directory(&mut self, name: &[u8]) -> Result<()> {
        match self.place(name, Made::Directory)? {
            Some(place) => self.make_directory(&place),
            None => Ok(()),
        }
    }

    pub(super) fn file(
        &mut self,
        name: &[u8],
        mode: u32,
        size: u64,
        mut from: impl Read,
    ) -> Result<()> {
        if mode & SET_ID != 0 {
            return Err(self.job.hostile(
                name,
                "which runs as another user or group (set-user-id or set-group-id)",
            ));
        }
        let Some(place) = self.place(name, Made::File)? else {
            return Err(self.job.hostile(name, "a file without a name"));
        };
        let permissions = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
        let (job, path) = (self.job, self.root.join(&place));
        let storage = |error| Error::storage(format_args!("{place} of {}", job.name), &error);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(permissions)
            .open(path)
            .map_err(storage)?;
        let (mut written, mut buffer) = (0, vec![0; 64 << 10]);
        loop {
            let read = fill(&mut from, &mut buffer)
                .map_err(|error| job.unread(format_args!("`{place}`"), &error))?;
            if read == 0 {
                break;
            }
            written += read as u64;
            self.bytes += read as u64;
            if written > size {
                return Err(job.hostile(
                    name,
                    format_args!("with more than the {size} bytes that it says"),
                ));
            }
            self.is_bounded()?;
            file.write_all(buffer.get(..read).unwrap_or_default())
                .map_err(storage)?;
        }
        if written != size {
            return Err(job.fault(format_args!(
                "is cut off in `{place}`: {written} of {size} bytes"
            )));
        }
        self.files += 1;
        Ok(())
    }

    /// Records a link, which [`Self::finish`] creates.
    pub(super) fn link(&mut self, name: &[u8], target: &[u8]) -> Result<()> {
        let Some(place) = self.place(name, Made::Link)? else {
            return Err(self.job.hostile(name, "a link without a name"));
        };
        let hostile = |why: &str| self.job.hostile(name, why);
        let target =
            std::str::from_utf8(target).map_err(|_| hostile("a link whose target is not UTF-8"))?;
        if target.is_empty() || target.contains(char::is_control) || target.len() > LONGEST {
            return Err(hostile("a link to an invalid path"));
        }
        if target.starts_with('/') {
            return Err(hostile("a link to an absolute path"));
        }
        let mut depth = place.split('/').count() - 1;
        for part in target.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    depth = depth
                        .checked_sub(1)
                        .ok_or_else(|| hostile("a link that leads out of the archive"))?;
                }
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
            return Err(self
                .job
                .fault(format_args!("has more than {size} bytes in its files")));
        }
        if self.bytes > SLACK && self.bytes / self.length.max(1) >= ratio {
            let (bytes, length) = (self.bytes, self.length);
            return Err(self.job.fault(format_args!(
                "has {bytes} bytes in {length}: more than {ratio} times as many"
            )));
        }
        self.is_in_time()
    }

    /// Reserves a name and creates its parent directories. Returns the path below the root, or `None` when there is nothing to
    /// create.
    fn place(&mut self, name: &[u8], made: Made) -> Result<Option<String>> {
        self.is_in_time()?;
        let hostile = |why: &str| self.job.hostile(name, why);
        let text = legal(self.job, name)?;
        let parts: Vec<&str> = text
            .split('/')
            .filter(|part| !matches!(*part, "" | "."))
            .collect();
        if text.len() > LONGEST || parts.iter().any(|part| part.len() > LONGEST_PART) {
            return Err(hostile("whose name is too long"));
        }
        // Git runs commands from its configuration, and the check for escaping links skips this directory.
        if parts.iter().any(|part| part.eq_ignore_ascii_case(".git")) {
            return Err(hostile("which is git's own; `git archive` leaves it out"));
        }
        let Some((_, above)) = parts.split_last() else {
            return Ok(None);
        };
        let mut at = String::new();
        for part in above {
            at = if at.is_empty() {
                (*part).to_owned()
            } else {
                format!("{at}/{part}")
            };
            match self.made.get(&at) {
                None => {
                    self.take(&at, Made::Implied)?;
                    self.make_directory(&at)?;
                }
                Some(Made::Implied | Made::Directory) => {}
                Some(Made::File | Made::Link) => {
                    return Err(self.job.hostile(name, "which lies below a file or a link"));
                }
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
            return Err(self
                .job
                .fault(format_args!("has more than {most} files and directories")));
        }
        self.made.insert(place.to_owned(), made);
        Ok(())
    }

    fn make_directory(&self, place: &str) -> Result<()> {
        fs::create_dir(self.root.join(place))
            .map_err(|error| Error::storage(format_args!("{place} of {}", self.job.name), &error))
    }

    /// Creates the links.
    pub(super) fn finish(self) -> Result<Unpacked> {
        if self.files == 0 {
            return Err(self.job.fault("has no files"));
        }
        for (place, target) in &self.links {
            symlink(target, self.root.join(place)).map_err(|error| {
                Error::storage(format_args!("{place} of {}", self.job.name), &error)
            })?;
        }
        Ok(Unpacked {
            files: self.files,
            bytes: self.bytes,
        })
    }
}
