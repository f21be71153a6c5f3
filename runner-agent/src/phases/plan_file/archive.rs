//! Finds the members of a plan file, which is a zip archive. Code of the stack may have written the file, so the tools and this reader must
//! see one and the same member: any archive that two programs may read differently is refused. Crates for zip archives accept more
//! (names in extra fields, comments, data before the archive).

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Read as _, Seek as _, SeekFrom},
};

use flate2::read::DeflateDecoder;

use super::{Read, Unread};

/// The member with the plan.
pub(super) const PLAN: &str = "tfplan";
/// Maximum size of the list of members in bytes.
const DIRECTORY: u64 = 4 << 20;
/// Maximum size of a member in bytes.
const MEMBER: u64 = 1 << 30;
/// Sizes of the fixed parts.
const END: usize = 22;
const LOCATOR: u64 = 20;
const ENTRY: usize = 46;
const LOCAL: usize = 30;
/// With this number, the real one is in another field, which is not read.
const ELSEWHERE: u64 = 0xffff_ffff;

/// A number of two bytes in a record.
fn short(record: &[u8], at: usize) -> u16 {
    let bytes = record.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

/// A number of four bytes in a record.
fn long(record: &[u8], at: usize) -> u64 {
    let bytes = record.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes).into())
}

fn at<const N: usize>(mut file: &File, position: u64) -> Read<[u8; N]> {
    let mut bytes = [0; N];
    file.seek(SeekFrom::Start(position))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn no(what: &str) -> Unread {
    Unread(format!("it is no archive as the tools write it: {what}"))
}

/// A plan file's members by name. They are read one after the other.
pub(super) struct Archive<'a> {
    file: &'a File,
    /// Where the members end.
    end: u64,
    members: BTreeMap<String, Member>,
}

#[derive(Clone, Copy)]
struct Member {
    packed: u64,
    size: u64,
    header: u64,
    method: u16,
}

impl<'a> Archive<'a> {
    pub(super) fn open(mut file: &'a File) -> Read<Self> {
        let length = file.metadata()?.len();
        if length > 0 && at::<1>(file, 0)? == *b"{" {
            return Err(Unread::of("it is encrypted, or the plan of a remote run"));
        }
        let end = length
            .checked_sub(END as u64)
            .ok_or_else(|| no("it is too short"))?;
        let last = at::<END>(file, end)?;
        // The tools search for this record backwards, and a comment may follow it.
        if !last.starts_with(b"PK\x05\x06") || short(&last, 20) != 0 {
            return Err(no("it does not end with its directory"));
        }
        let (count, size, start) = (short(&last, 10), long(&last, 12), long(&last, 16));
        if start + size != end || size > DIRECTORY {
            return Err(no("its directory is not where it should be"));
        }
        if end >= LOCATOR && at::<4>(file, end - LOCATOR)? == *b"PK\x06\x07" {
            return Err(no("it has a second directory"));
        }
        file.seek(SeekFrom::Start(start))?;
        let mut directory = Vec::new();
        file.take(size).read_to_end(&mut directory)?;
        let (mut rest, mut members) = (directory.as_slice(), BTreeMap::new());
        while !rest.is_empty() {
            let length = |at| usize::from(short(rest, at));
            let name = ENTRY + length(28);
            let entry = name + length(30) + length(32);
            if !rest.starts_with(b"PK\x01\x02") || rest.len() < entry {
                return Err(no("its directory is damaged"));
            }
            let name = str::from_utf8(&rest[ENTRY..name]).map_err(|_| no("a name is no text"))?;
            let member = Member {
                packed: long(rest, 20),
                size: long(rest, 24),
                header: long(rest, 42),
                method: short(rest, 10),
            };
            if members.insert(name.to_owned(), member).is_some() {
                return Err(no(&format!("it has {name:?} twice")));
            }
            rest = &rest[entry..];
        }
        if members.len() != usize::from(count) {
            return Err(no("its directory is damaged"));
        }
        Ok(Self {
            file,
            end: start,
            members,
        })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// A member's bytes, and their number.
    pub(super) fn member(&self, name: &str) -> Read<(Box<dyn BufRead + '_>, u64)> {
        let member = self.members.get(name);
        let Member {
            packed,
            size,
            header,
            method,
        } = *member.ok_or_else(|| no(&format!("it has no {name:?}")))?;
        if size > MEMBER {
            return Err(Unread(format!("its {name:?} has more than {MEMBER} bytes")));
        }
        let local = at::<LOCAL>(self.file, header)?;
        let names = u64::from(short(&local, 26)) + u64::from(short(&local, 28));
        let data = header + LOCAL as u64 + names;
        let is_there = local.starts_with(b"PK\x03\x04") && data + packed <= self.end;
        if !is_there || packed == ELSEWHERE || header == ELSEWHERE {
            return Err(no(&format!("{name:?} is not in it")));
        }
        let mut file = self.file;
        file.seek(SeekFrom::Start(data))?;
        let bytes = BufReader::with_capacity(64 << 10, file.take(packed));
        match method {
            0 => Ok((Box::new(bytes), size)),
            8 => {
                let plain = DeflateDecoder::new(bytes);
                Ok((Box::new(BufReader::with_capacity(64 << 10, plain)), size))
            }
            method => Err(no(&format!("it is packed with method {method}"))),
        }
    }
}
