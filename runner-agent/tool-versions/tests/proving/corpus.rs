//! The corpus: files that other programs wrote, good or bad as their names state, and archives with changed bytes.

use std::{
    collections::BTreeMap,
    fs,
    io::Cursor,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use proptest::prelude::*;
use tool_versions::{Digest, Keyring, Limits, Sums, archive};
use zip::CompressionMethod::{Deflated, Stored};

use super::{
    archives::take,
    packing::{binary, file, zip},
};
use crate::fuzzed::{change, changed};

/// The files of a part of the corpus, by name.
fn files(part: &str) -> BTreeMap<String, Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(part);
    let read = |entry: fs::DirEntry| {
        (
            entry.file_name().into_string().unwrap(),
            fs::read(entry.path()).unwrap(),
        )
    };
    let files: BTreeMap<_, _> = fs::read_dir(directory)
        .unwrap()
        .map(Result::unwrap)
        .map(read)
        .collect();
    assert!(files.len() > 5, "{part} has {} files", files.len());
    files
}

fn is_good(name: &str) -> bool {
    let (good, bad) = (name.starts_with("good-"), name.starts_with("bad-"));
    assert!(good != bad, "{name} is neither or both");
    good
}

#[test]
fn sums_match_their_names() {
    for (name, bytes) in files("sums") {
        assert_eq!(Sums::parse(&bytes).is_ok(), is_good(&name), "{name}");
    }
}

#[test]
fn archives_match_their_names() {
    for (name, bytes) in files("archives") {
        let (result, tofu) = if name.ends_with(".tar.gz") {
            let (root, until) = (
                tempfile::tempdir().unwrap(),
                Instant::now() + Duration::from_secs(600),
            );
            let unpacked = archive::unpack(
                &name,
                Cursor::new(bytes),
                &Limits::default(),
                until,
                root.path(),
            );
            (
                unpacked.map(drop),
                fs::read(root.path().join("tofu")).unwrap_or_default(),
            )
        } else {
            let (taken, into) = take(&name, &bytes, Limits::default());
            (taken.map(drop), into)
        };
        assert_eq!(result.is_ok(), is_good(&name), "{name}: {result:?}");
        assert!(
            result.is_err() || tofu == b"#!/bin/sh\necho tofu\n",
            "{name}"
        );
    }
}

/// Signatures over `signed` by GnuPG, verified with the key beside them.
#[test]
fn signatures_match_their_names() {
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn changed_archive_has_the_same_entry_or_is_refused(stored in any::<bool>(), changes in prop::collection::vec(change(), 1..3)) {
        let content = binary(3000);
        let bytes = zip(&[file("LICENSE", b"MPL"), file("tofu", &content)], if stored { Stored } else { Deflated });
        let (taken, _) = take("x.zip", &changed(bytes, &changes), Limits::default());
        if let Ok(taken) = taken {
            prop_assert_eq!(taken.digest, Digest::of(&content));
        }
    }
}
