//! `.zip`

use std::{
    cell::Cell,
    collections::HashSet,
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
};

use zip::{
    ZipArchive,
    read::{ArchiveOffset, Config},
    result::ZipError,
};

use super::{Job, SLACK, Sink, legal, tree::Tree};
use crate::{Error, Result};

/// The file type bits of the mode.
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// The most bytes that are read to find the entries, which are in memory at once.
const DIRECTORIES: u64 = 4 << 20;
/// The same for a source, which has more entries.
const DIRECTORIES_OF_TREE: u64 = 16 << 20;

/// Opens an archive, and checks its central directory.
fn open<'a, 'b, R: Read + Seek>(
    job: &Job<'_>,
    from: &'a mut Budget<'b, R>,
) -> Result<ZipArchive<&'a mut Budget<'b, R>>> {
    // Permit no prefix before the first entry: the digest covers only bytes that are read. This refuses self-extracting programs.
    let config = Config {
        archive_offset: ArchiveOffset::Known(0),
    };
    let left = from.left;
    let archive = ZipArchive::with_config(config, from)
        .map_err(|error| unread(job, "its directory", error))?;
    left.set(None);
    if archive.len() > job.limits.entries {
        return Err(job.fault(format_args!(
            "has {} entries, and {} at most are read",
            archive.len(),
            job.limits.entries
        )));
    }
    if archive.has_duplicate_names() {
        return Err(job.fault("has an entry that is there twice"));
    }
    Ok(archive)
}

pub(super) fn take<W: Write>(
    job: &Job<'_>,
    archive: impl Read + Seek,
    sink: &mut Sink<'_, W>,
) -> Result<()> {
    let fault = |error: ZipError| unread(job, "its directory", error);
    let left = Cell::new(Some(DIRECTORIES));
    let mut from = Budget {
        from: BufReader::new(archive),
        left: &left,
        most: DIRECTORIES,
    };
    let mut archive = open(job, &mut from)?;
    let mut seen = HashSet::new();
    let mut wanted = None;
    for index in 0..archive.len() {
        let entry = archive.by_index_data(index).map_err(fault)?;
        let text = legal(job, entry.name_raw())?.to_owned();
        let named = text == job.entry;
        if !seen.insert(text) {
            return Err(job.hostile(entry.name_raw(), "which is there twice"));
        }
        let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        let mode = entry.unix_mode().unwrap_or(0) & KIND;
        let is_directory = entry.is_dir() || mode == DIRECTORY;
        if !is_directory && !matches!(mode, 0 | FILE) {
            return Err(job.fault(format_args!(
                "has an entry `{name}` that is a link or a device (mode {mode:o})"
            )));
        }
        if !named {
            continue;
        }
        if is_directory {
            return Err(job.fault(format_args!("has `{name}` as a directory")));
        }
        let (size, packed) = (entry.size(), entry.compressed_size());
        if size > job.limits.size {
            return Err(job.fault(format_args!(
                "has `{name}` with {size} bytes, and {} at most are taken",
                job.limits.size
            )));
        }
        if size > SLACK && size / packed.max(1) >= job.limits.ratio {
            let ratio = job.limits.ratio;
            return Err(job.fault(format_args!(
                "has `{name}` with {size} bytes in {packed}: more than {ratio} times as many"
            )));
        }
        wanted = Some((index, size));
    }
    // Central directory and local headers must agree, or two programs see two archives.
    archive.validate_header_consistency().map_err(fault)?;
    let Some((index, size)) = wanted else {
        return Err(job.missing(&seen));
    };
    let entry = archive
        .by_index(index)
        .map_err(|error| unread(job, job.entry, error))?;
    sink.copy(entry, size)?;
    let comment = archive.comment().len();
    ends(job, &mut from, comment)?;
    match sink.into.written() {
        written if written == size => Ok(()),
        written => Err(job.fault(format_args!(
            "has `{}` with {written} bytes, and says {size}",
            job.entry
        ))),
    }
}

pub(super) fn unpack(job: &Job<'_>, archive: impl Read + Seek, tree: &mut Tree<'_>) -> Result<()> {
    let left = Cell::new(Some(DIRECTORIES_OF_TREE));
    let mut from = Budget {
        from: BufReader::new(archive),
        left: &left,
        most: DIRECTORIES_OF_TREE,
    };
    let mut archive = open(job, &mut from)?;
    archive
        .validate_header_consistency()
        .map_err(|error| unread(job, "its directory", error))?;
    for index in 0..archive.len() {
        tree.is_in_time()?;
        let mut entry = archive
            .by_index(index)
            .map_err(|error| unread(job, "an entry", error))?;
        let name = entry.name_raw().to_vec();
        let mode = entry.unix_mode().unwrap_or(0);
        match mode & KIND {
            0 | DIRECTORY if entry.is_dir() => tree.directory(&name)?,
            0 | FILE => {
                let size = entry.size();
                tree.file(&name, mode, size, &mut entry)?;
            }
            LINK => {
                let mut target = Vec::new();
                (&mut entry)
                    .take(LONGEST_LINK + 1)
                    .read_to_end(&mut target)
                    .map_err(|error| job.unread("a link", &error))?;
                if target.len() as u64 > LONGEST_LINK {
                    return Err(job.hostile(&name, "which leads further than any path"));
                }
                tree.link(&name, &target)?;
            }
            kind => {
                return Err(job.hostile(
                    &name,
                    format_args!(
                        "which is a device, or another thing that is no file (mode {kind:o})"
                    ),
                ));
            }
        }
    }
    let comment = archive.comment().len();
    ends(job, &mut from, comment)
}

/// The longest path on Linux, in bytes.
const LONGEST_LINK: u64 = 4096;

/// Checks that the directory ends at the end record, and that only a comment of `comment` bytes follows.
fn ends(job: &Job<'_>, from: &mut (impl Read + Seek), comment: usize) -> Result<()> {
    let mut record = [0; 22];
    let mut read = || {
        let at = from.seek(SeekFrom::End(
            -i64::try_from(record.len() + comment).unwrap_or(i64::MAX),
        ))?;
        from.read_exact(&mut record).map(|()| at)
    };
    let at = read().map_err(|error| job.unread("the record of its end", &error))?;
    if !record.starts_with(b"PK\x05\x06") {
        return Err(job.fault("has bytes after its end"));
    }
    let number = |at: usize| {
        record
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(u32::MAX, u32::from_le_bytes)
    };
    let (size, start) = (number(12), number(16));
    // A Zip64 archive has its numbers in another record.
    let is_large = size == u32::MAX || start == u32::MAX;
    if is_large || u64::from(size) + u64::from(start) == at {
        return Ok(());
    }
    Err(job.fault("has bytes between its directory and its end"))
}

/// The error of the archive or of reading it.
fn unread(job: &Job<'_>, what: &str, error: ZipError) -> Error {
    match error {
        ZipError::Io(error) => job.unread(what, &error),
        error => job.fault(format_args!(
            "is no zip that can be read, in {what}: {error}"
        )),
    }
}

/// Fails after a number of bytes, while the limit is set.
struct Budget<'a, R> {
    from: R,
    left: &'a Cell<Option<u64>>,
    /// The limit, for messages.
    most: u64,
}

impl<R: Read> Read for Budget<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        if let Some(left) = self.left.get() {
            let left = left.checked_sub(read as u64);
            self.left.set(Some(left.ok_or_else(|| {
                io::Error::other(format!("it has more than {} bytes", self.most))
            })?));
        }
        Ok(read)
    }
}

impl<R: Seek> Seek for Budget<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.from.seek(to)
    }
}
