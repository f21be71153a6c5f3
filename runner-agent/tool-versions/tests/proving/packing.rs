//! Generated archives.

use std::io::{Cursor, Write as _};

use flate2::{Compression, write::GzEncoder};
use tar::EntryType;
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// An entry of an archive. `kind` and `mode` may be invalid in a tar.
#[derive(Clone)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: EntryType,
    pub(crate) mode: u32,
    pub(crate) link: &'a [u8],
    pub(crate) bytes: &'a [u8],
}

pub(crate) fn special(name: &str, kind: EntryType) -> Entry<'_> {
    Entry {
        name: name.as_bytes(),
        kind,
        mode: 0o644,
        link: b"",
        bytes: b"",
    }
}

pub(crate) fn file<'a>(name: &'a str, bytes: &'a [u8]) -> Entry<'a> {
    Entry {
        bytes,
        ..special(name, EntryType::Regular)
    }
}

pub(crate) fn directory(name: &str) -> Entry<'_> {
    special(name, EntryType::Directory)
}

pub(crate) fn link<'a>(name: &'a str, to: &'a str) -> Entry<'a> {
    Entry {
        link: to.as_bytes(),
        ..special(name, EntryType::Symlink)
    }
}

/// Parses an entry: a file `NAME` with the content `x`, a link `NAME -> TARGET`, a hard link `NAME => TARGET`, another kind `KIND NAME`,
/// or a file with a mode `MODE NAME`.
pub(crate) fn entry(text: &str) -> Entry<'_> {
    let kinds = [
        ("dir", EntryType::Directory),
        ("fifo", EntryType::Fifo),
        ("char", EntryType::Char),
        ("block", EntryType::Block),
        ("continuous", EntryType::Continuous),
        ("sparse", EntryType::GNUSparse),
        ("unknown", EntryType::new(b'Z')),
    ];
    if let Some((name, to)) = text.split_once(" ->") {
        return link(name, to.trim());
    }
    if let Some((name, to)) = text.split_once(" => ") {
        return Entry {
            kind: EntryType::Link,
            ..link(name, to)
        };
    }
    let Some((word, name)) = text.split_once(' ') else {
        return file(text, b"x");
    };
    match kinds.iter().find(|(kind, _)| *kind == word) {
        Some((_, kind)) => special(name, *kind),
        None => Entry {
            mode: u32::from_str_radix(word, 8).unwrap(),
            ..file(name, b"x")
        },
    }
}

/// An extended header.
pub(crate) fn extended(kind: EntryType, bytes: &[u8]) -> Entry<'_> {
    Entry {
        bytes,
        ..special("x", kind)
    }
}

/// The record of a pax header.
pub(crate) fn record(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let length = (1..9999)
        .find(|length| format!("{length}{rest}").len() == *length)
        .unwrap();
    format!("{length}{rest}").into_bytes()
}

/// Bytes that deflate cannot compress.
pub(crate) fn binary(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..size).map(next).collect()
}

pub(crate) fn zip(all: &[Entry<'_>], method: CompressionMethod) -> Vec<u8> {
    let mut into = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default()
        .compression_method(method)
        .unix_permissions(0o755);
    for entry in all {
        let [name, to] = [entry.name, entry.link].map(|text| std::str::from_utf8(text).unwrap());
        match entry.kind {
            EntryType::Directory => into.add_directory(name, options).unwrap(),
            EntryType::Symlink => into.add_symlink(name, to, options).unwrap(),
            _ => {
                into.start_file(name, options).unwrap();
                into.write_all(entry.bytes).unwrap();
            }
        }
    }
    into.finish().unwrap().into_inner()
}

/// A tar without its end blocks.
fn blocks(all: &[Entry<'_>]) -> Vec<u8> {
    let block = |entry: &Entry<'_>| {
        let mut header = tar::Header::new_ustar();
        let raw = header.as_mut_bytes();
        raw[..entry.name.len()].copy_from_slice(entry.name);
        raw[157..157 + entry.link.len()].copy_from_slice(entry.link);
        header.set_entry_type(entry.kind);
        header.set_mode(entry.mode);
        header.set_size(entry.bytes.len() as u64);
        header.set_cksum();
        let padding = vec![0; entry.bytes.len().next_multiple_of(512) - entry.bytes.len()];
        [header.as_bytes().as_slice(), entry.bytes, &padding].concat()
    };
    all.iter().flat_map(block).collect()
}

pub(crate) fn tar(all: &[Entry<'_>]) -> Vec<u8> {
    [blocks(all), vec![0; 1024]].concat()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut into = GzEncoder::new(Vec::new(), Compression::default());
    into.write_all(bytes).unwrap();
    into.finish().unwrap()
}
