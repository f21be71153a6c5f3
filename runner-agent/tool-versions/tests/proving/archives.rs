//! Taking one file out of an archive.

use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

use tar::EntryType as T;
use tool_versions::{Digest, Kind, Limits, Packing, Result, Taken, archive};
use zip::{
    CompressionMethod::{Deflated, Stored},
    ZipWriter,
    write::SimpleFileOptions,
};

use super::{
    failed,
    packing::{Entry, binary, blocks, directory, extended, file, gzip, link, record, special, tar, tgz, zip},
};

pub(crate) fn take(name: &str, bytes: &[u8], limits: Limits) -> (Result<Taken>, Vec<u8>) {
    let mut into = Vec::new();
    let taken = archive::take(name, Cursor::new(bytes), "tofu", &limits, &mut into);
    (taken, into)
}

#[track_caller]
fn good(name: &str, bytes: &[u8], content: &[u8]) {
    let (taken, into) = take(name, bytes, Limits::default());
    let taken = taken.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(taken, Taken { size: content.len() as u64, digest: Digest::of(content) });
    assert!(into == content, "{name}: other bytes were written");
}

#[track_caller]
fn bad(name: &str, bytes: &[u8], says: &[&str]) {
    let (taken, _) = take(name, bytes, Limits::default());
    failed(taken, Kind::Integrity, &[&[name], says].concat());
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    let places: Vec<_> = bytes.windows(from.len()).enumerate().filter(|(_, found)| *found == from).map(|(at, _)| at).collect();
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
        &[file("LICENSE", b"MPL"), file("tofu", &tofu), file("README.md", b"x")],
        &[file("tofu.sig", b"x"), file("my-tofu", b"x"), file("TOFU", b"x"), file("tofu", &tofu)],
        &[directory("doc/"), file("doc/tofu", b"no"), file("tofu", &tofu)],
        &[file("tofu", &tofu), file("empty", b"")],
        &[file("tofu", &text)],
    ];
    for all in rows {
        let content = all.iter().find(|entry| entry.name == b"tofu").unwrap().bytes;
        good("x.zip", &zip(all, Deflated), content);
        good("x.zip", &zip(all, Stored), content);
        good("x.tar.gz", &tgz(all), content);
        good("x.TGZ", &tgz(all), content);
    }
    good("tofu_linux_amd64", &tofu, &tofu);
    // As `tar` packs a directory.
    good("x.tar.gz", &tgz(&[directory("./"), file("./tofu", &tofu), file("./LICENSE", b"x")]), &tofu);
    // Without end blocks, and in two gzip members, as some programs write.
    let parts = blocks(&[file("tofu", &tofu)]);
    good("x.tar.gz", &gzip(&parts), &tofu);
    good("x.tar.gz", &[gzip(&parts[..700]), gzip(&parts[700..])].concat(), &tofu);
}

/// Each entry before and after the wanted one.
#[test]
fn hostile_entries_are_refused() {
    let tofu = file("tofu", b"abc");
    let rows: [(Entry<'_>, &[&str]); 12] = [
        (file("../x", b"x"), &["`../x`", "leads out"]),
        (file("a/../../x", b"x"), &["leads out"]),
        (file("a/..", b"x"), &["leads out"]),
        (directory("../"), &["leads out"]),
        (file("/etc/passwd", b"x"), &["`/etc/passwd`", "absolute"]),
        (file("C:x", b"x"), &["absolute"]),
        (file("..\\x", b"x"), &["absolute"]),
        (file("a\u{7}", b"x"), &["invisible characters"]),
        (link("lib", "/"), &["`lib`", "link"]),
        (link("tofu2", "tofu"), &["link"]),
        (file("tofu/", b""), &["`tofu"]),
        (directory("tofu/"), &["`tofu"]),
    ];
    for (hostile, says) in rows {
        for all in [[tofu.clone(), hostile.clone()], [hostile.clone(), tofu.clone()]] {
            bad("x.tar.gz", &tgz(&all), says);
            // The zip writer cannot produce all of these.
            if hostile.kind != T::Regular || !(hostile.name.contains(&b'\\') || hostile.name.ends_with(b"/")) {
                bad("x.zip", &zip(&all, Stored), says);
            }
        }
    }
    for kind in [T::Link, T::Symlink, T::Fifo, T::Char, T::Block, T::GNUSparse, T::Continuous, T::new(b'V')] {
        for name in ["tofu", "x"] {
            bad("x.tar.gz", &tgz(&[special(name, kind), file("tofv", b"abc")]), &["link or a device"]);
        }
    }
}

#[test]
fn entry_must_be_one_file_with_content() {
    let rows: [(&[Entry<'_>], &[&str]); 5] = [
        (&[], &["no `tofu`"]),
        (&[file("terraform", b"x"), file("LICENSE", b"x")], &["no `tofu`", "`LICENSE`, `terraform`"]),
        (&[directory("tofu/")], &["`tofu/`", "directory"]),
        (&[link("tofu", "/bin/sh")], &["`tofu`", "link"]),
        (&[file("tofu", b"")], &["`tofu`", "no bytes"]),
    ];
    for (all, says) in rows {
        bad("x.zip", &zip(all, Deflated), says);
        bad("x.tar.gz", &tgz(all), says);
    }
    bad("tofu", b"", &["no bytes"]);
    for second in ["tofu", "./tofu"] {
        bad("x.tar.gz", &tgz(&[file("tofu", b"abc"), file(second, b"abd")]), &["twice"]);
    }
    // No writer produces this zip: change a name in both of its places.
    let other = zip(&[file("tofu", b"abc"), file("tofv", b"abd")], Stored);
    bad("x.zip", &replaced(&other, b"tofv", b"tofu"), &["twice"]);
}

#[test]
fn extended_headers_are_bounded() {
    let [path, mtime] = [record("path", "tofu"), record("mtime", "1.5")];
    let (path, mtime) = (extended(T::XHeader, &path), extended(T::XHeader, &mtime));
    let both = [path.clone(), mtime.clone()];
    let long = vec![b'a'; 65_537];
    let rows: [(&[Entry<'_>], &str); 5] = [
        (std::slice::from_ref(&path), "x"),
        (std::slice::from_ref(&mtime), "tofu"),
        (&both, "x"),
        (&[extended(T::GNULongName, b"tofu\0")], "x"),
        (&[extended(T::XGlobalHeader, b"abcd")], "tofu"),
    ];
    for (headers, name) in rows {
        good("x.tar.gz", &tgz(&[headers, &[file(name, b"abc")]].concat()), b"abc");
    }
    for (kind, bytes, says) in [
        (T::XHeader, record("path", "/tofu"), "absolute"),
        (T::XHeader, record("path", "x"), "no `tofu`"),
        (T::GNULongName, b"../tofu\0".to_vec(), "leads out"),
        (T::XHeader, record("size", "1"), "changes its size"),
        (T::XHeader, record("GNU.sparse.realsize", "1"), "changes its size"),
        (T::XHeader, b"5 a\n\n".to_vec(), "description"),
        (T::GNULongName, long.clone(), "65537 bytes"),
        (T::XHeader, long, "65537 bytes"),
    ] {
        bad("x.tar.gz", &tgz(&[extended(kind, &bytes), file("tofu", b"abc")]), &[says]);
    }
}

#[test]
fn truncated_archives_are_refused() {
    let tofu = binary(40_000);
    let all = [file("LICENSE", b"MPL"), file("tofu", &tofu), file("README.md", b"x")];
    for (name, whole) in [("x.zip", zip(&all, Deflated)), ("x.zip", zip(&all, Stored)), ("x.tar.gz", tgz(&all))] {
        for part in 0..16 {
            bad(name, &whole[..whole.len() * part / 16], &[]);
        }
        bad(name, &whole[..whole.len() - 1], &[]);
    }
    let whole = tgz(&all);
    for less in 1..9 {
        bad("x.tar.gz", &whole[..whole.len() - less], &["cut off"]);
    }
    // Truncated before compression.
    let inner = blocks(&[file("tofu", &tofu)]);
    for at in [1, 511, 513, 20_000, 512 + tofu.len() - 1] {
        let says: &[&str] = if at > 512 { &["cut off in `tofu`"] } else { &[] };
        bad("x.tar.gz", &gzip(&inner[..at]), says);
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
        bad("x.zip", &changed(zip(&all, method), 20_000), &["`tofu`"]);
    }
    // The checksum alone, in both of its places.
    let whole = zip(&all, Stored);
    let sum = whole[14..18].to_vec();
    let other: Vec<_> = sum.iter().map(|byte| !byte).collect();
    bad("x.zip", &replaced(&whole, &sum, &other), &["checksum"]);
    let whole = tgz(&all);
    let sum = whole.len() - 8;
    bad("x.tar.gz", &changed(whole, sum), &["broken", "checksum"]);
    // A tar header has its own checksum.
    bad("x.tar.gz", &gzip(&changed(blocks(&all), 100)), &["header"]);
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
    let after = [tar(&all), blocks(&[file("tofu", b"abd")])].concat();
    for (name, bytes, says) in [
        ("x.zip", [b"#!/bin/sh\n".as_slice(), &whole].concat(), ""),
        ("x.zip", [whole.as_slice(), b"more"].concat(), "bytes after its end"),
        ("x.zip", [whole.as_slice(), &whole].concat(), "between its directory and its end"),
        ("x.zip", [commented.as_slice(), b"more!"].concat(), "bytes after its end"),
        ("x.zip", renamed, "header"),
        ("x.tar.gz", gzip(&after), "bytes after its end"),
        ("x.tar.gz", [tgz(&all), b"more".to_vec()].concat(), "what follows its last entry"),
        ("x.tar.gz", [tgz(&all), gzip(b"more")].concat(), "bytes after its end"),
    ] {
        bad(name, &bytes, &[says]);
    }
}

#[test]
fn other_formats_are_refused() {
    for name in ["x.zip", "x.tar.gz", "tofu"] {
        bad(name, b"<!DOCTYPE html>\n<html>", &["a page of HTML", "<!DOCTYPE html>"]);
    }
    bad("x.zip", &tgz(&[file("tofu", b"abc")]), &["zip"]);
    bad("x.tar.gz", &zip(&[file("tofu", b"abc")], Stored), &["gzip"]);
    bad("x.tar.gz", &gzip(b"abc"), &["header of an entry"]);
}

#[test]
fn sizes_ratios_and_entries_are_bounded() {
    let limits = Limits { size: 2_000_000, ratio: 200, entries: 3 };
    let (zeros, noise) = (vec![0; 2_000_001], binary(3_300_000));
    let [over, most] = [[file("tofu", &zeros)], [file("tofu", &zeros[..2_000_000])]];
    let four = [file("a", b"x"), file("b", b"x"), file("c", b"x"), file("tofu", b"x")];
    // A zip that announces another size.
    let lying = |says: u32| {
        let whole = zip(&[file("tofu", &binary(5000))], Deflated);
        replaced(&whole, &5000_u32.to_le_bytes(), &says.to_le_bytes())
    };
    for (name, bytes, says) in [
        ("x.zip", zip(&over, Deflated), "2000001 bytes, and 2000000"),
        ("x.zip", zip(&most, Deflated), "more than 200 times"),
        ("x.tar.gz", tgz(&most), "more than 200 times"),
        ("x.tar.gz", tgz(&[file("LICENSE", &zeros), file("tofu", b"abc")]), "more than 200 times"),
        ("x.tar.gz", tgz(&[file("LICENSE", &noise), file("tofu", b"abc")]), "more than 2000000 bytes"),
        ("x.tar.gz", tgz(&[file("tofu", &noise)]), "3300000 bytes, and 2000000"),
        ("tofu", noise.clone(), "more than the 2000000 bytes"),
        ("x.zip", lying(4999), "`tofu`"),
        ("x.zip", lying(5001), "`tofu`"),
        ("x.zip", lying(u32::MAX - 1), "4294967294 bytes"),
        ("x.zip", zip(&four, Stored), "4 entries, and 3"),
        ("x.tar.gz", tgz(&four), "more than 3 entries"),
    ] {
        let (taken, into) = take(name, &bytes, limits);
        failed(taken, Kind::Integrity, &[says]);
        assert!(into.len() as u64 <= limits.size, "{} bytes were written", into.len());
    }
    // Exactly the limits.
    let noise = &noise[..2_000_000];
    for (name, bytes) in [
        ("x.zip", zip(&four[1..], Stored)),
        ("x.tar.gz", tgz(&four[1..])),
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
        into.start_file(format!("{name}{entry}"), SimpleFileOptions::default()).unwrap();
    }
    bad("x.zip", &into.finish().unwrap().into_inner(), &["more than 4194304 bytes"]);
}

#[test]
fn names_select_the_packing() {
    for (name, packing) in [
        ("tofu_1.10.6_linux_amd64.zip", Packing::Zip),
        ("tofu_1.10.6_linux_amd64.tar.gz", Packing::TarGz),
        ("x.tgz", Packing::TarGz),
        ("terragrunt_linux_amd64", Packing::Plain),
        ("terragrunt_windows_amd64.exe", Packing::Plain),
    ] {
        assert_eq!(Packing::of(name).unwrap(), packing, "{name}");
    }
    for name in ["x.tar.xz", "x.tar", "x.gz", "x.7z", "x.deb"] {
        failed(Packing::of(name), Kind::Configuration, &[name, ".tar.gz"]);
    }
}

/// A disk that fails after a number of bytes.
struct Failing<T>(T, usize);

impl<T> Failing<T> {
    fn count(&mut self, bytes: usize, code: i32) -> io::Result<()> {
        self.1 = self.1.checked_sub(bytes).ok_or_else(|| io::Error::from_raw_os_error(code))?;
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
        if self.1 == 0 { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) }
    }
}

#[test]
fn disk_errors_are_storage_errors() {
    let tofu = binary(200_000);
    let all = [file("tofu", &tofu)];
    for (name, bytes) in [("x.zip", zip(&all, Deflated)), ("x.tar.gz", tgz(&all)), ("tofu", tofu.clone())] {
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
