//! `.tar.gz` and `.tar`.

use std::{
    cell::Cell,
    io::{self, BufReader, Read},
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, Entry, EntryType, PaxExtensions};

use super::{Job, SLACK, fill, tree::Tree};
use crate::Result;

/// The longest extended header, in bytes: a long name, times, owners.
const DESCRIPTION: u64 = 64 << 10;

pub(super) fn unpack(
    job: &Job<'_>,
    archive: impl Read,
    is_packed: bool,
    tree: &mut Tree<'_>,
) -> Result<()> {
    let (packed, unpacked) = (Cell::new(0), Cell::new(0));
    let from = BufReader::new(Counting {
        from: archive,
        count: &packed,
    });
    let from: Box<dyn Read + '_> = if is_packed {
        Box::new(MultiGzDecoder::new(from))
    } else {
        Box::new(from)
    };
    let counted = Bounded {
        from: Counting {
            from,
            count: &unpacked,
        },
        packed: &packed,
        job,
    };
    let mut archive = Archive::new(counted);
    let mut next = Described::default();
    // Raw entries: the library would hold extended headers of any length in memory.
    for entry in archive
        .entries()
        .map_err(|error| job.unread("its first entry", &error))?
        .raw(true)
    {
        let mut entry = entry.map_err(|error| job.unread("the header of an entry", &error))?;
        tree.is_in_time()?;
        let kind = entry.header().entry_type();
        if matches!(
            kind,
            EntryType::XHeader | EntryType::GNULongName | EntryType::GNULongLink
        ) {
            let Described { path, link } = describe(job, &mut entry, kind)?;
            next = Described {
                path: path.or(next.path),
                link: link.or(next.link),
            };
            continue;
        }
        // `git archive` stores the commit in one.
        if kind == EntryType::XGlobalHeader {
            continue;
        }
        let Described { path, link } = std::mem::take(&mut next);
        let name = path.unwrap_or_else(|| entry.path_bytes().into_owned());
        let mode = entry
            .header()
            .mode()
            .map_err(|error| job.unread("the mode of an entry", &error))?;
        match kind {
            EntryType::Directory => tree.directory(&name)?,
            EntryType::Regular if name.ends_with(b"/") => tree.directory(&name)?,
            EntryType::Regular => {
                let size = entry.size();
                tree.file(&name, mode, size, &mut entry)?;
            }
            EntryType::Symlink => {
                let target =
                    link.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
                tree.link(&name, &target.unwrap_or_default())?;
            }
            EntryType::Link => return Err(job.hostile(&name, "which is a hard link")),
            EntryType::Char | EntryType::Block => {
                return Err(job.hostile(&name, "which is a device"));
            }
            EntryType::Fifo => return Err(job.hostile(&name, "which is a named pipe")),
            other => {
                return Err(job.hostile(
                    &name,
                    format_args!("of a kind that is not unpacked ({other:?})"),
                ));
            }
        }
    }
    ends(job, archive.into_inner())
}

/// The content of an extended header.
#[derive(Default)]
struct Described {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

/// Reads the path and the link target of the next entry from an extended header.
fn describe(job: &Job<'_>, entry: &mut Entry<'_, impl Read>, kind: EntryType) -> Result<Described> {
    let size = entry.size();
    if size > DESCRIPTION {
        return Err(job.fault(format_args!(
            "has a description of an entry with {size} bytes, and {DESCRIPTION} at most are read"
        )));
    }
    let mut bytes = Vec::new();
    entry
        .read_to_end(&mut bytes)
        .map_err(|error| job.unread("the description of an entry", &error))?;
    if bytes.len() as u64 != size {
        return Err(job.fault("is cut off in the description of an entry"));
    }
    let mut described = Described::default();
    if let EntryType::GNULongName | EntryType::GNULongLink = kind {
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        bytes.truncate(end);
        let field = if kind == EntryType::GNULongName {
            &mut described.path
        } else {
            &mut described.link
        };
        *field = Some(bytes);
        return Ok(described);
    }
    for extension in PaxExtensions::new(&bytes) {
        let extension =
            extension.map_err(|error| job.unread("the description of an entry", &error))?;
        let key = String::from_utf8_lossy(extension.key_bytes());
        // Both change the extent of the entry, and programs differ in which value they use.
        if key == "size" || key.starts_with("GNU.sparse.") {
            return Err(job.fault(format_args!(
                "has a description of an entry that changes its size (`{key}`)"
            )));
        }
        match &*key {
            "path" => described.path = Some(extension.value_bytes().to_vec()),
            "linkpath" => described.link = Some(extension.value_bytes().to_vec()),
            _ => {}
        }
    }
    Ok(described)
}

/// Checks that only zeros follow the last entry, and that the checksum is right.
fn ends(job: &Job<'_>, mut rest: impl Read) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match fill(&mut rest, &mut buffer)
            .map_err(|error| job.unread("what follows its last entry", &error))?
        {
            0 => return Ok(()),
            read if buffer.iter().take(read).all(|byte| *byte == 0) => {}
            _ => return Err(job.fault("has bytes after its end")),
        }
    }
}

struct Counting<'a, R> {
    from: R,
    count: &'a Cell<u64>,
}

impl<R: Read> Read for Counting<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

/// Bounds the unpacked bytes by the packed ones, with skipped entries.
struct Bounded<'a, R> {
    from: Counting<'a, R>,
    packed: &'a Cell<u64>,
    job: &'a Job<'a>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        let (packed, unpacked, limits) =
            (self.packed.get(), self.from.count.get(), self.job.limits);
        // Headers and end blocks do not count.
        if unpacked > limits.size.saturating_add(SLACK) {
            return Err(io::Error::other(format!(
                "more than {} bytes are packed in it",
                limits.size
            )));
        }
        if unpacked > SLACK && unpacked / packed.max(1) >= limits.ratio {
            return Err(io::Error::other(format!(
                "{unpacked} bytes are packed in {packed}: more than {} times as many",
                limits.ratio
            )));
        }
        Ok(read)
    }
}
