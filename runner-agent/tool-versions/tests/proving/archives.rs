//! Taking one file out of an archive.

use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

use flate2::{Compression, write::GzEncoder};
use tool_versions::{Digest, Kind, Limits, Packing, Result, Taken, archive};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

use super::failed;

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

/// An entry of a generated archive.
#[derive(Clone, Debug)]
pub(crate) enum In<'a> {
    File(&'a str, &'a [u8]),
    Directory(&'a str),
    Link(&'a str, &'a str),
}
use In::{Directory, File, Link};

pub(crate) fn zip(all: &[In<'_>], method: CompressionMethod) -> Vec<u8> {
    let mut into = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method).unix_permissions(0o755);
    for one in all {
        match one {
            File(name, bytes) => {
                into.start_file(*name, options).unwrap();
                into.write_all(bytes).unwrap();
            }
            Directory(name) => into.add_directory(*name, options).unwrap(),
            Link(name, to) => into.add_symlink(*name, *to, options).unwrap(),
        }
    }
    into.finish().unwrap().into_inner()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut into = GzEncoder::new(Vec::new(), Compression::default());
    into.write_all(bytes).unwrap();
    into.finish().unwrap()
}

/// A tar entry with any name and kind.
fn entry(name: &[u8], kind: tar::EntryType, size: u64, bytes: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o755);
    header.set_cksum();
    let padding = vec![0; bytes.len().next_multiple_of(512) - bytes.len()];
    [header.as_bytes().as_slice(), bytes, &padding].concat()
}

fn tarball(all: &[In<'_>]) -> Vec<u8> {
    let one = |one: &In<'_>| match one {
        File(name, bytes) => entry(name.as_bytes(), tar::EntryType::Regular, bytes.len() as u64, bytes),
        Directory(name) => entry(name.as_bytes(), tar::EntryType::Directory, 0, b""),
        Link(name, _) => entry(name.as_bytes(), tar::EntryType::Symlink, 0, b""),
    };
    all.iter().map(one).collect::<Vec<_>>().concat()
}

/// A `.tar.gz` with its end blocks.
pub(crate) fn tgz(all: &[In<'_>]) -> Vec<u8> {
    gzip(&[tarball(all), vec![0; 1024]].concat())
}

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

#[test]
fn wanted_entry_is_taken_others_are_skipped() {
    let tofu = binary(100_000);
    let text = vec![b'a'; 1_000_000];
    let rows: [&[In<'_>]; 6] = [
        &[File("tofu", &tofu)],
        &[File("LICENSE", b"MPL"), File("tofu", &tofu), File("README.md", b"x")],
        &[File("tofu.sig", b"x"), File("my-tofu", b"x"), File("TOFU", b"x"), File("tofu", &tofu)],
        &[Directory("doc/"), File("doc/tofu", b"no"), File("tofu", &tofu)],
        &[File("tofu", &tofu), File("empty", b"")],
        &[File("tofu", &text)],
    ];
    for all in rows {
        let content = all.iter().find_map(|one| if let File("tofu", bytes) = one { Some(*bytes) } else { None }).unwrap();
        good("x.zip", &zip(all, CompressionMethod::Deflated), content);
        good("x.zip", &zip(all, CompressionMethod::Stored), content);
        good("x.tar.gz", &tgz(all), content);
        good("x.TGZ", &tgz(all), content);
    }
    good("tofu_linux_amd64", &tofu, &tofu);
    // As `tar` packs a directory.
    good("x.tar.gz", &tgz(&[Directory("./"), File("./tofu", &tofu), File("./LICENSE", b"x")]), &tofu);
    // Without end blocks, and in two gzip members, as some programs write.
    good("x.tar.gz", &gzip(&tarball(&[File("tofu", &tofu)])), &tofu);
    let parts = tarball(&[File("tofu", &tofu)]);
    good("x.tar.gz", &[gzip(&parts[..700]), gzip(&parts[700..])].concat(), &tofu);
}

#[test]
fn hostile_entries_are_refused() {
    let tofu = File("tofu", b"abc");
    let rows: [(In<'_>, &[&str]); 12] = [
        (File("../x", b"x"), &["`../x`", "leads out"]),
        (File("a/../../x", b"x"), &["leads out"]),
        (File("a/..", b"x"), &["leads out"]),
        (Directory("../"), &["leads out"]),
        (File("/etc/passwd", b"x"), &["`/etc/passwd`", "absolute"]),
        (File("C:x", b"x"), &["absolute"]),
        (File("..\\x", b"x"), &["absolute"]),
        (File("a\u{7}", b"x"), &["cannot be seen"]),
        (Link("lib", "/"), &["`lib`", "link"]),
        (Link("tofu2", "tofu"), &["link"]),
        (File("tofu/", b""), &["twice"]),
        (Directory("tofu/"), &["twice"]),
    ];
    for (hostile, says) in rows {
        for all in [[tofu.clone(), hostile.clone()], [hostile.clone(), tofu.clone()]] {
            bad(
                "x.tar.gz",
                &tgz(&all),
                match says {
                    // Another check may find it first.
                    ["twice"] => &["`tofu"],
                    says => says,
                },
            );
            // The zip writer cannot produce all of these.
            if !matches!(&hostile, File(name, _) if name.contains('\\') || name.ends_with('/')) {
                bad(
                    "x.zip",
                    &zip(&all, CompressionMethod::Stored),
                    match says {
                        ["twice"] => &["`tofu"],
                        says => says,
                    },
                );
            }
        }
    }
}

#[test]
fn entry_must_be_one_file_with_content() {
    let rows: [(&[In<'_>], &[&str]); 5] = [
        (&[], &["no `tofu`"]),
        (&[File("terraform", b"x"), File("LICENSE", b"x")], &["no `tofu`", "`LICENSE`, `terraform`"]),
        (&[Directory("tofu/")], &["`tofu/`", "directory"]),
        (&[Link("tofu", "/bin/sh")], &["`tofu`", "link"]),
        (&[File("tofu", b"")], &["`tofu`", "no bytes"]),
    ];
    for (all, says) in rows {
        bad("x.zip", &zip(all, CompressionMethod::Deflated), says);
        bad("x.tar.gz", &tgz(all), says);
    }
    bad("tofu", b"", &["no bytes"]);
    let twice = [File("tofu", b"abc"), File("tofu", b"abd")];
    bad("x.tar.gz", &tgz(&twice), &["twice"]);
    bad("x.tar.gz", &tgz(&[File("tofu", b"abc"), File("./tofu", b"abd")]), &["twice"]);
    // No writer produces this zip: change a name in both of its places.
    let other = zip(&[File("tofu", b"abc"), File("tofv", b"abd")], CompressionMethod::Stored);
    bad("x.zip", &replaced(&other, b"tofv", b"tofu"), &["twice"]);
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
fn devices_and_sparse_files_are_refused() {
    use tar::EntryType as T;
    for kind in [T::Link, T::Symlink, T::Fifo, T::Char, T::Block, T::GNUSparse, T::Continuous, T::new(b'V')] {
        for name in [b"tofu".as_slice(), b"x"] {
            let all = [entry(name, kind, 0, b""), tarball(&[File("tofv", b"abc")]), vec![0; 1024]].concat();
            bad("x.tar.gz", &gzip(&all), &["link or a device"]);
        }
    }
}

#[test]
fn extended_headers_are_bounded() {
    use tar::EntryType as T;
    let pax = |key: &str, value: &str| {
        let rest = format!(" {key}={value}\n");
        let length = (1..99).find(|length| format!("{length}{rest}").len() == *length).unwrap();
        let record = format!("{length}{rest}");
        entry(b"pax", T::XHeader, record.len() as u64, record.as_bytes())
    };
    let long = |name: &[u8]| entry(b"././@LongLink", T::GNULongName, name.len() as u64, name);
    let file = |name: &str| [tarball(&[File(name, b"abc")]), vec![0; 1024]].concat();
    good("x.tar.gz", &gzip(&[pax("path", "tofu"), file("x")].concat()), b"abc");
    good("x.tar.gz", &gzip(&[pax("mtime", "1.5"), file("tofu")].concat()), b"abc");
    good("x.tar.gz", &gzip(&[pax("path", "tofu"), pax("mtime", "1.5"), file("x")].concat()), b"abc");
    good("x.tar.gz", &gzip(&[long(b"tofu\0"), file("x")].concat()), b"abc");
    good("x.tar.gz", &gzip(&[entry(b"pax", T::XGlobalHeader, 4, b"abcd"), file("tofu")].concat()), b"abc");
    let bad = |first: Vec<u8>, name: &str, says: &[&str]| bad("x.tar.gz", &gzip(&[first, file(name)].concat()), says);
    bad(pax("path", "/tofu"), "tofu", &["absolute"]);
    bad(pax("path", "x"), "tofu", &["no `tofu`"]);
    bad(long(b"../tofu\0"), "tofu", &["leads out"]);
    bad(pax("size", "1"), "tofu", &["changes its size", "`size`"]);
    bad(pax("GNU.sparse.realsize", "1"), "tofu", &["changes its size"]);
    bad(entry(b"pax", T::XHeader, 5, b"5 a\n\n"), "tofu", &["description"]);
    bad(long(&vec![b'a'; 65_537]), "tofu", &["65537 bytes"]);
    bad(entry(b"pax", T::XHeader, 65_537, &vec![b'\n'; 65_537]), "tofu", &["65537 bytes"]);
}

#[test]
fn truncated_archives_are_refused() {
    let tofu = binary(40_000);
    let all = [File("LICENSE", b"MPL"), File("tofu", &tofu), File("README.md", b"x")];
    for method in [CompressionMethod::Deflated, CompressionMethod::Stored] {
        let whole = zip(&all, method);
        for part in 0..16 {
            bad("x.zip", &whole[..whole.len() * part / 16], &[]);
        }
        bad("x.zip", &whole[..whole.len() - 1], &[]);
    }
    let whole = tgz(&all);
    for part in 0..16 {
        bad("x.tar.gz", &whole[..whole.len() * part / 16], &[]);
    }
    for less in 1..9 {
        bad("x.tar.gz", &whole[..whole.len() - less], &["cut off"]);
    }
    // Truncated before compression.
    let inner = tarball(&[File("tofu", &tofu)]);
    for at in [1, 511, 513, 20_000, 512 + tofu.len() - 1] {
        let says: &[&str] = if at > 512 { &["cut off in `tofu`"] } else { &[] };
        bad("x.tar.gz", &gzip(&inner[..at]), says);
    }
}

#[test]
fn checksum_mismatches_are_refused() {
    let tofu = binary(40_000);
    for method in [CompressionMethod::Deflated, CompressionMethod::Stored] {
        let mut whole = zip(&[File("tofu", &tofu)], method);
        whole[20_000] ^= 1;
        bad("x.zip", &whole, &["`tofu`"]);
    }
    // The checksum alone, in both of its places.
    let whole = zip(&[File("tofu", &tofu)], CompressionMethod::Stored);
    let sum = whole[14..18].to_vec();
    let other: Vec<_> = sum.iter().map(|byte| !byte).collect();
    bad("x.zip", &replaced(&whole, &sum, &other), &["checksum"]);
    let mut whole = tgz(&[File("tofu", &tofu)]);
    let sum = whole.len() - 8;
    whole[sum] ^= 1;
    bad("x.tar.gz", &whole, &["broken", "checksum"]);
    // A tar header has its own checksum.
    let mut inner = tarball(&[File("tofu", &tofu)]);
    inner[100] ^= 1;
    bad("x.tar.gz", &gzip(&inner), &["header"]);
}

#[test]
fn bytes_outside_of_entries_are_refused() {
    let all = [File("tofu", b"abc".as_slice()), File("LICENSE", b"x")];
    let whole = zip(&all, CompressionMethod::Stored);
    bad("x.zip", &[b"#!/bin/sh\n", whole.as_slice()].concat(), &[]);
    bad("x.zip", &[whole.as_slice(), b"more"].concat(), &["bytes after its end"]);
    bad("x.zip", &[whole.as_slice(), whole.as_slice()].concat(), &["between its directory and its end"]);
    // A comment belongs to the archive.
    let mut commented = whole.clone();
    *commented.iter_mut().rev().nth(1).unwrap() = 4;
    good("x.zip", &[commented.as_slice(), b"more"].concat(), b"abc");
    bad("x.zip", &[commented.as_slice(), b"more!"].concat(), &["bytes after its end"]);
    // The local header has another name.
    let mut renamed = whole.clone();
    renamed[30] = b'T';
    bad("x.zip", &renamed, &["header"]);
    let inner = tarball(&all);
    let after = [inner.clone(), vec![0; 1024], tarball(&[File("tofu", b"abd")])].concat();
    bad("x.tar.gz", &gzip(&after), &["bytes after its end"]);
    bad("x.tar.gz", &[tgz(&all), b"more".to_vec()].concat(), &["what follows its last entry"]);
    // In a second gzip member.
    bad("x.tar.gz", &[tgz(&all), gzip(b"more")].concat(), &["bytes after its end"]);
}

#[test]
fn other_formats_are_refused() {
    for name in ["x.zip", "x.tar.gz", "tofu"] {
        bad(name, b"<!DOCTYPE html>\n<html>", &["a page of HTML", "<!DOCTYPE html>"]);
    }
    bad("x.zip", &tgz(&[File("tofu", b"abc")]), &["zip"]);
    bad("x.tar.gz", &zip(&[File("tofu", b"abc")], CompressionMethod::Stored), &["gzip"]);
    bad("x.tar.gz", &gzip(b"abc"), &["header of an entry"]);
}

/// A zip that announces another size.
fn lying(says: u32) -> Vec<u8> {
    let whole = zip(&[File("tofu", &binary(5000))], CompressionMethod::Deflated);
    replaced(&whole, &5000_u32.to_le_bytes(), &says.to_le_bytes())
}

#[test]
fn sizes_ratios_and_entries_are_bounded() {
    let limits = Limits { size: 2_000_000, ratio: 200, entries: 3 };
    let bad = |name: &str, bytes: &[u8], says: &[&str]| {
        let (taken, into) = take(name, bytes, limits);
        failed(taken, Kind::Integrity, says);
        assert!(into.len() as u64 <= limits.size, "{} bytes were written", into.len());
    };
    // Bombs: by size, by ratio, and in another entry.
    let zeros = vec![0; 2_000_001];
    bad("x.zip", &zip(&[File("tofu", &zeros)], CompressionMethod::Deflated), &["2000001 bytes", "2000000"]);
    bad("x.zip", &zip(&[File("tofu", &zeros[..2_000_000])], CompressionMethod::Deflated), &["more than 200 times"]);
    bad("x.tar.gz", &tgz(&[File("tofu", &zeros[..2_000_000])]), &["more than 200 times"]);
    bad("x.tar.gz", &tgz(&[File("LICENSE", &zeros[..2_000_000]), File("tofu", b"abc")]), &["more than 200 times"]);
    let noise = binary(3_300_000);
    bad("x.tar.gz", &tgz(&[File("LICENSE", &noise), File("tofu", b"abc")]), &["more than 2000000 bytes"]);
    bad("x.tar.gz", &tgz(&[File("tofu", &noise)]), &["3300000 bytes", "2000000"]);
    bad("tofu", &noise, &["more than the 2000000 bytes"]);
    // False sizes.
    bad("x.zip", &lying(4999), &["`tofu`"]);
    bad("x.zip", &lying(5001), &["`tofu`"]);
    bad("x.zip", &lying(u32::MAX - 1), &["4294967294 bytes"]);
    // Too many entries.
    let four = [File("a", b"x"), File("b", b"x"), File("c", b"x"), File("tofu", b"x")];
    bad("x.zip", &zip(&four, CompressionMethod::Stored), &["4 entries", "3"]);
    bad("x.tar.gz", &tgz(&four), &["more than 3 entries"]);
    assert!(take("x.zip", &zip(&four[1..], CompressionMethod::Stored), limits).0.is_ok());
    assert!(take("x.tar.gz", &tgz(&four[1..]), limits).0.is_ok());
    // Exactly the limit.
    assert!(take("tofu", &noise[..2_000_000], limits).0.is_ok());
    assert!(take("x.zip", &zip(&[File("tofu", &noise[..2_000_000])], CompressionMethod::Stored), limits).0.is_ok());
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
    let rows = [
        ("tofu_1.10.6_linux_amd64.zip", Some(Packing::Zip)),
        ("tofu_1.10.6_linux_amd64.tar.gz", Some(Packing::TarGz)),
        ("x.tgz", Some(Packing::TarGz)),
        ("terragrunt_linux_amd64", Some(Packing::Plain)),
        ("terragrunt_windows_amd64.exe", Some(Packing::Plain)),
        ("x.tar.xz", None),
        ("x.tar", None),
        ("x.gz", None),
        ("x.7z", None),
        ("x.deb", None),
    ];
    for (name, packing) in rows {
        match packing {
            Some(packing) => assert_eq!(Packing::of(name).unwrap(), packing, "{name}"),
            None => failed(Packing::of(name), Kind::Configuration, &[name, ".tar.gz"]),
        }
    }
}

/// A disk that fails after a number of bytes.
struct Failing<T>(T, usize);

impl<T: Read> Read for Failing<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        self.1 = self.1.checked_sub(read).ok_or_else(|| io::Error::from_raw_os_error(5))?;
        Ok(read)
    }
}

impl<T: Seek> Seek for Failing<T> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl<T: Write> Write for Failing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1 = self.1.checked_sub(bytes.len()).ok_or_else(|| io::Error::from_raw_os_error(28))?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.checked_sub(1).map(|_| ()).ok_or_else(|| io::Error::from_raw_os_error(28))
    }
}

#[test]
fn disk_errors_are_storage_errors() {
    let tofu = binary(200_000);
    let all = [File("tofu", tofu.as_slice())];
    for (name, bytes) in [("x.zip", zip(&all, CompressionMethod::Deflated)), ("x.tar.gz", tgz(&all)), ("tofu", tofu.clone())] {
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
