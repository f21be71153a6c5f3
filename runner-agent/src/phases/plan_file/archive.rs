//! Finds the plan in a plan file, which is a zip archive. Code of the stack may have written the file, so the tools and this reader must
//! see one and the same member: any archive that two programs may read differently is refused. Crates for zip archives accept more
//! (names in extra fields, comments, data before the archive).

use std::{
    fs::File,
    io::{BufRead, BufReader, Read as _, Seek as _, SeekFrom},
};

use flate2::read::DeflateDecoder;

use super::{Read, Unread};

/// The member with the plan.
const MEMBER: &[u8] = b"tfplan";
/// Maximum size of the list of members in bytes.
const DIRECTORY: u64 = 4 << 20;
/// Maximum size of the member in bytes.
const PLAN: u64 = 1 << 30;
/// Sizes of the fixed parts.
const END: usize = 22;
const LOCATOR: u64 = 20;
const ENTRY: usize = 46;
const LOCAL: usize = 30;

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

/// The plan's bytes, and their number.
pub(super) fn plan(mut file: &File) -> Read<(Box<dyn BufRead + '_>, u64)> {
    let length = file.metadata()?.len();
    if length > 0 && at::<1>(file, 0)? == *b"{" {
        return Err(Unread::of("it is encrypted, or the plan of a remote run"));
    }
    let no = |what: &str| Unread(format!("it is no archive as the tools write it: {what}"));
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
    let mut rest = directory.as_slice();
    let (mut members, mut found) = (0_u16, None);
    while !rest.is_empty() {
        let length = |at| usize::from(short(rest, at));
        let name = length(28);
        let entry = ENTRY + name + length(30) + length(32);
        if !rest.starts_with(b"PK\x01\x02") || rest.len() < entry {
            return Err(no("its directory is damaged"));
        }
        if rest[ENTRY..].starts_with(MEMBER) && name == MEMBER.len() {
            if found.is_some() {
                return Err(no("it has two plans"));
            }
            found = Some(rest);
        }
        members = members
            .checked_add(1)
            .ok_or_else(|| no("it is too large"))?;
        rest = &rest[entry..];
    }
    let entry = found.ok_or_else(|| no("it has no plan"))?;
    if members != count {
        return Err(no("its directory is damaged"));
    }
    let (packed, size, header) = (long(entry, 20), long(entry, 24), long(entry, 42));
    if size > PLAN {
        return Err(Unread(format!("it has more than {PLAN} bytes")));
    }
    let local = at::<LOCAL>(file, header)?;
    let names = u64::from(short(&local, 26)) + u64::from(short(&local, 28));
    let data = header + LOCAL as u64 + names;
    if !local.starts_with(b"PK\x03\x04") || data + packed > start {
        return Err(no("its plan is not in it"));
    }
    file.seek(SeekFrom::Start(data))?;
    let bytes = BufReader::with_capacity(64 << 10, file.take(packed));
    match short(entry, 10) {
        0 => Ok((Box::new(bytes), size)),
        8 => {
            let plain = DeflateDecoder::new(bytes);
            Ok((Box::new(BufReader::with_capacity(64 << 10, plain)), size))
        }
        method => Err(no(&format!("it is packed with method {method}"))),
    }
}
