//! What the fuzzer once found (`fuzz/README.md`) is run again, by the functions that it ran. All of `corpus` is besides.

#[allow(unreachable_pub, reason = "the fuzzer has it in a library")]
#[path = "../../fuzz/bodies.rs"]
mod bodies;
mod large;

use std::{fs, path::Path};

/// Runs a target for all files of some directories.
fn replay(target: fn(&[u8]), directories: &[&str]) {
    for directory in directories {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let mut count = 0;
        for path in files {
            // Is shown when it fails.
            println!("{}", path.display());
            target(&fs::read(path).unwrap());
            count += 1;
        }
        assert!(count > 5, "{} has {count} files", directory.display());
    }
}

#[test]
fn version_files() {
    replay(bodies::version_files, &["fuzz/corpus/version_files"]);
}

#[test]
fn hcl() {
    replay(bodies::hcl, &["fuzz/corpus/hcl"]);
}

#[test]
fn sums() {
    replay(bodies::sums, &["fuzz/corpus/sums", "corpus/sums"]);
}

#[test]
fn lists() {
    replay(bodies::lists, &["fuzz/corpus/lists", "corpus/lists"]);
}

#[test]
fn archives() {
    replay(bodies::archives, &["fuzz/corpus/archives", "corpus/archives"]);
}

#[test]
fn signatures() {
    replay(bodies::signature, &["fuzz/corpus/signature", "corpus/signatures"]);
}

#[test]
fn constraints() {
    replay(bodies::constraint, &["fuzz/corpus/constraint"]);
}
