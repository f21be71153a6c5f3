//! Files that are kept: what other programs wrote, and what was once found.

use std::{collections::BTreeMap, fs, path::Path, time::SystemTime};

use tool_versions::{Keyring, Limits, Sums};

use super::{archives::take, properties::read_all};

/// The files of a part of the corpus, by name.
fn files(part: &str) -> BTreeMap<String, Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(part);
    let read = |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    let files: BTreeMap<_, _> = fs::read_dir(directory).unwrap().map(Result::unwrap).map(read).collect();
    assert!(files.len() > 5, "{part} has {} files", files.len());
    files
}

/// Whether a file is a good one, by its name.
fn is_good(name: &str) -> bool {
    let (good, bad) = (name.starts_with("good-"), name.starts_with("bad-"));
    assert!(good != bad, "{name} says neither or both");
    good
}

#[test]
fn everything_reads_every_file() {
    for part in ["sums", "archives", "signatures"] {
        for bytes in files(part).values() {
            read_all(bytes);
        }
    }
}

#[test]
fn sums_are_good_or_bad_as_their_names_say() {
    for (name, bytes) in files("sums") {
        assert_eq!(Sums::parse(&bytes).is_ok(), is_good(&name), "{name}");
    }
}

#[test]
fn archives_are_good_or_bad_as_their_names_say() {
    for (name, bytes) in files("archives") {
        let (taken, into) = take(&name, &bytes, Limits::default());
        assert_eq!(taken.is_ok(), is_good(&name), "{name}: {taken:?}");
        assert!(taken.is_err() || into == b"#!/bin/sh\necho tofu\n", "{name}");
    }
}

/// They are over `signed`, by GnuPG, and verified with the key beside them.
#[test]
fn signatures_are_good_or_bad_as_their_names_say() {
    let mut files = files("signatures");
    let signed = files.remove("signed").unwrap();
    let key = String::from_utf8(files.remove("key.asc").unwrap()).unwrap();
    let fingerprint = String::from_utf8(files.remove("key.fingerprint").unwrap()).unwrap();
    let ring = Keyring::from_armored(&key, &[fingerprint.parse().unwrap()]).unwrap();
    for (name, bytes) in files {
        let proven = ring.verify("signed", &signed, &bytes, SystemTime::now());
        assert_eq!(proven.is_ok(), is_good(&name), "{name}: {proven:?}");
    }
}
