//! Taking one file out of an archive.

use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

use tool_versions::{Digest, Kind, Limits, Result, Taken, archive};
use zip::{
    CompressionMethod::{Deflated, Stored},
    ZipWriter,
    write::SimpleFileOptions,
};

use super::{
    failed,
    packing::{Entry, binary, directory, entry, file, gzip, tar, zip},
};
use crate::table;

pub(crate) fn take(name: &str, bytes: &[u8], limits: Limits) -> (Result<Taken>, Vec<u8>) {
    let mut into = Vec::new();
    let taken = archive::take(name, Cursor::new(bytes), "tofu", &limits, &mut into);
    (taken, into)
}

#[track_caller]
fn good(name: &str, bytes: &[u8], content: &[u8]) {
    let (taken, into) = take(name, bytes, Limits::default());
    let taken = taken.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        taken,
        Taken {
            size: content.len() as u64,
            digest: Digest::of(content)
        }
    );
    assert!(into == content, "{name}: other bytes were written");
}

/// Asserts an error with these parts, which ` & ` separates.
#[track_caller]
fn bad(name: &str, bytes: &[u8], says: &str) {
    let (taken, _) = take(name, bytes, Limits::default());
    let says: Vec<_> = says.split(" & ").chain([name]).collect();
    failed(taken, Kind::Integrity, &says);
}

fn entries(text: &str) -> Vec<Entry<'_>> {
    text.split(", ")
        .filter(|text| !text.is_empty())
        .map(entry)
        .collect()
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    let places: Vec<_> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, found)| *found == from)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        changed[at..at + to.len()].copy_from_slice(to);
    }
    changed
}

#[test]
fn wanted_entry_is_taken_others_are_skipped() {
    let tofu = binary(100_000);
    let text = vec![b'a'; 1_000_000];
    let rows: [&[Entry<'_>]; 6] = [
        &[file("tofu", &tofu)],
        &[
            file("LICENSE", b"MPL"),
            file("tofu", &tofu),
            file("README.md", b"x"),
        ],
        &[
            file("tofu.sig", b"x"),
            file("my-tofu", b"x"),
            file("TOFU", b"x"),
            file("tofu", &tofu),
        ],
        &[
            directory("doc/"),
            file("doc/tofu", b"no"),
            file("tofu", &tofu),
        ],
        &[file("tofu", &tofu), file("empty", b"")],
        &[file("tofu", &text)],
    ];
    for all in rows {
        let content = all
            .iter()
            .find(|entry| entry.name == b"tofu")
            .unwrap()
            .bytes;
        good("x.zip", &zip(all, Deflated), content);
        good("x.zip", &zip(all, Stored), content);
    }
    good("tofu_linux_amd64", &tofu, &tofu);
}

/// An entry, and parts of the error. The zip writer cannot produce `\\` and a file with `/` at its end.
const HOSTILE: &str = "
    ../x | `../x` & leads out
    a/../../x | leads out
    a/.. | leads out
    dir ../ | leads out
    /etc/passwd | `/etc/passwd` & absolute
    C:x | absolute
    a\u{7} | invisible characters
    lib -> / | `lib` & link
    tofu2 -> tofu | link
    dir tofu/ | `tofu
";

/// Each entry before and after the wanted one.
#[test]
fn hostile_entries_are_refused() {
    for [text, says] in table(HOSTILE) {
        let (tofu, hostile) = (file("tofu", b"abc"), entry(text));
        bad(
            "x.zip",
            &zip(&[tofu.clone(), hostile.clone()], Stored),
            says,
        );
        bad("x.zip", &zip(&[hostile, tofu], Stored), says);
    }
}

/// The entries of an archive, and parts of the error.
const UNUSABLE: &str = "
    | no `tofu`
    terraform, LICENSE | no `tofu` & `LICENSE`, `terraform`
    dir tofu/ | `tofu/` & directory
    tofu -> /bin/sh | `tofu` & link
";

#[test]
fn entry_must_be_one_file_with_content() {
    for [all, says] in table(UNUSABLE) {
        bad("x.zip", &zip(&entries(all), Deflated), says);
    }
    let empty = [file("tofu", b"")];
    for (name, bytes) in [("x.zip", zip(&empty, Deflated)), ("tofu", Vec::new())] {
        bad(name, &bytes, "`tofu` & no bytes");
    }
    bad("x.zip", &zip(&entries("tofu, ./tofu"), Stored), "twice");
    // No writer produces this zip: change a name in both of its places.
    let other = zip(&entries("tofu, tofv"), Stored);
    bad("x.zip", &replaced(&other, b"tofv", b"tofu"), "twice");
}

#[test]
fn truncated_archives_are_refused() {
    let tofu = binary(40_000);
    let all = [
        file("LICENSE", b"MPL"),
        file("tofu", &tofu),
        file("README.md", b"x"),
    ];
    for whole in [zip(&all, Deflated), zip(&all, Stored)] {
        for part in 0..16 {
            bad("x.zip", &whole[..whole.len() * part / 16], "");
        }
        bad("x.zip", &whole[..whole.len() - 1], "");
    }
}

#[test]
fn checksum_mismatches_are_refused() {
    let tofu = binary(40_000);
    let all = [file("tofu", &tofu)];
    let changed = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] ^= 1;
        bytes
    };
    for method in [Deflated, Stored] {
        bad("x.zip", &changed(zip(&all, method), 20_000), "`tofu`");
    }
    // The checksum alone, in both of its places.
    let whole = zip(&all, Stored);
    let sum = whole[14..18].to_vec();
    let other: Vec<_> = sum.iter().map(|byte| !byte).collect();
    bad("x.zip", &replaced(&whole, &sum, &other), "checksum");
}

#[test]
fn bytes_outside_of_entries_are_refused() {
    let all = [file("tofu", b"abc"), file("LICENSE", b"x")];
    let whole = zip(&all, Stored);
    // A comment belongs to the archive; the local header has another name.
    let (mut commented, mut renamed) = (whole.clone(), whole.clone());
    *commented.iter_mut().rev().nth(1).unwrap() = 4;
    renamed[30] = b'T';
    good("x.zip", &[commented.as_slice(), b"more"].concat(), b"abc");
    for (bytes, says) in [
        ([b"#!/bin/sh\n".as_slice(), &whole].concat(), ""),
        ([whole.as_slice(), b"more"].concat(), "bytes after its end"),
        (
            [whole.as_slice(), &whole].concat(),
            "between its directory and its end",
        ),
        (
            [commented.as_slice(), b"more!"].concat(),
            "bytes after its end",
        ),
        (renamed, "header"),
    ] {
        bad("x.zip", &bytes, says);
    }
}

#[test]
fn other_formats_are_refused() {
    for name in ["x.zip", "tofu"] {
        bad(
            name,
            b"<!DOCTYPE html>\n<html>",
            "a page of HTML & <!DOCTYPE html>",
        );
    }
    bad("x.zip", &gzip(&tar(&[file("tofu", b"abc")])), "zip");
}

#[test]
fn sizes_ratios_and_entries_are_bounded() {
    let limits = Limits {
        size: 2_000_000,
        ratio: 200,
        entries: 3,
    };
    let (zeros, noise) = (vec![0; 2_000_001], binary(3_300_000));
    let [over, most] = [[file("tofu", &zeros)], [file("tofu", &zeros[..2_000_000])]];
    let four = [
        file("a", b"x"),
        file("b", b"x"),
        file("c", b"x"),
        file("tofu", b"x"),
    ];
    // A zip that announces another size.
    let lying = |says: u32| {
        let whole = zip(&[file("tofu", &binary(5000))], Deflated);
        replaced(&whole, &5000_u32.to_le_bytes(), &says.to_le_bytes())
    };
    for (name, bytes, says) in [
        ("x.zip", zip(&over, Deflated), "2000001 bytes, and 2000000"),
        ("x.zip", zip(&most, Deflated), "more than 200 times"),
        ("tofu", noise.clone(), "more than the 2000000 bytes"),
        ("x.zip", lying(4999), "`tofu`"),
        ("x.zip", lying(5001), "`tofu`"),
        ("x.zip", lying(u32::MAX - 1), "4294967294 bytes"),
        ("x.zip", zip(&four, Stored), "4 entries, and 3"),
    ] {
        let (taken, into) = take(name, &bytes, limits);
        failed(taken, Kind::Integrity, &[says]);
        assert!(
            into.len() as u64 <= limits.size,
            "{} bytes were written",
            into.len()
        );
    }
    // Exactly the limits.
    let noise = &noise[..2_000_000];
    for (name, bytes) in [
        ("x.zip", zip(&four[1..], Stored)),
        ("tofu", noise.to_vec()),
        ("x.zip", zip(&[file("tofu", noise)], Stored)),
    ] {
        assert!(take(name, &bytes, limits).0.is_ok(), "{name}");
    }
}

#[test]
fn central_directory_is_bounded() {
    let mut into = ZipWriter::new(Cursor::new(Vec::new()));
    let name = "x".repeat(60_000);
    for entry in 0..100 {
        into.start_file(format!("{name}{entry}"), SimpleFileOptions::default())
            .unwrap();
    }
    bad(
        "x.zip",
        &into.finish().unwrap().into_inner(),
        "more than 4194304 bytes",
    );
}

/// A disk that fails after a number of bytes.
struct Failing<T>(T, usize);

impl<T> Failing<T> {
    fn count(&mut self, bytes: usize, code: i32) -> io::Result<()> {
        self.1 = self
            .1
            .checked_sub(bytes)
            .ok_or_else(|| io::Error::from_raw_os_error(code))?;
        Ok(())
    }
}

impl<T: Read> Read for Failing<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        self.count(read, 5).map(|()| read)
    }
}

impl<T: Seek> Seek for Failing<T> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl<T: Write> Write for Failing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.count(bytes.len(), 28)?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.1 == 0 {
            Err(io::Error::from_raw_os_error(28))
        } else {
            Ok(())
        }
    }
}

#[test]
fn disk_errors_are_storage_errors() {
    let tofu = binary(200_000);
    let all = [file("tofu", &tofu)];
    for (name, bytes) in [("x.zip", zip(&all, Deflated)), ("tofu", tofu.clone())] {
        for after in [0, 1000, 100_000] {
            let from = Failing(Cursor::new(&bytes), after);
            let taken = archive::take(name, from, "tofu", &Limits::default(), io::sink());
            failed(taken, Kind::Storage, &[name, "os error 5"]);
        }
        for after in [0, 100_000, tofu.len()] {
            let into = Failing(io::sink(), after);
            let taken = archive::take(name, Cursor::new(&bytes), "tofu", &Limits::default(), into);
            failed(taken, Kind::Storage, &["tofu of", name, "os error 28"]);
        }
    }
}
