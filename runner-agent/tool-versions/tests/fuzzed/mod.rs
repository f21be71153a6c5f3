//! Properties of the parsers of untrusted bytes, tested with the corpus and with random and mutated input.
//!
//! `corpus/TARGET` has seeds (`seed-*`), inputs that once failed (`found-*`), and those of a fuzzer that add the most coverage (`least-*`).

mod bodies;
mod large;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use proptest::{prelude::*, sample::Index};

type Target = fn(&[u8]);

/// Each target with its directories.
const TARGETS: [(Target, &[&str]); 7] = [
    (
        bodies::version_files,
        &["tests/fuzzed/corpus/version_files"],
    ),
    (bodies::hcl, &["tests/fuzzed/corpus/hcl"]),
    (bodies::constraint, &["tests/fuzzed/corpus/constraint"]),
    (bodies::sums, &["tests/fuzzed/corpus/sums", "corpus/sums"]),
    (
        bodies::lists,
        &["tests/fuzzed/corpus/lists", "corpus/lists"],
    ),
    (
        bodies::archives,
        &["tests/fuzzed/corpus/archives", "corpus/archives"],
    ),
    (
        bodies::signature,
        &["tests/fuzzed/corpus/signature", "corpus/signatures"],
    ),
];

fn files(directories: &[&str]) -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let paths = directories
        .iter()
        .flat_map(|directory| fs::read_dir(root.join(directory)).unwrap());
    paths
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

/// Each target with the content of its corpus.
static CORPUS: LazyLock<Vec<(Target, Vec<Vec<u8>>)>> = LazyLock::new(|| {
    let of = |(target, directories)| {
        (
            target,
            files(directories)
                .into_iter()
                .map(|(_, bytes)| bytes)
                .collect(),
        )
    };
    TARGETS.into_iter().map(of).collect()
});

#[test]
fn corpus_replays() {
    std::thread::scope(|scope| {
        for (target, directories) in TARGETS {
            scope.spawn(move || {
                let files = files(directories);
                assert!(
                    files.len() > 20,
                    "{directories:?} has {} files",
                    files.len()
                );
                for (path, bytes) in files {
                    // Shown when the test fails.
                    println!("{}", path.display());
                    target(&bytes);
                }
            });
        }
    });
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Flip(Index, u8),
    Cut(Index),
    Drop(Index, Index),
    Insert(Index, Vec<u8>),
    Repeat(Index, Index),
}

pub(crate) fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        4 => (at(), 1_u8..).prop_map(|(at, by)| Change::Flip(at, by)),
        1 => at().prop_map(Change::Cut),
        1 => (at(), at()).prop_map(|(from, to)| Change::Drop(from, to)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        1 => (at(), at()).prop_map(|(from, to)| Change::Repeat(from, to)),
    ]
}

pub(crate) fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        if bytes.is_empty() {
            break;
        }
        let length = bytes.len();
        let range = |from: &Index, to: &Index| {
            let (from, to) = (from.index(length), to.index(length));
            from.min(to)..from.max(to)
        };
        match change {
            Change::Flip(at, by) => bytes[at.index(length)] ^= by,
            Change::Cut(at) => bytes.truncate(at.index(length)),
            Change::Drop(from, to) => drop(bytes.drain(range(from, to))),
            Change::Insert(at, more) => {
                drop(bytes.splice(at.index(length)..at.index(length), more.iter().copied()));
            }
            Change::Repeat(from, to) => bytes.extend_from_within(range(from, to)),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn random_input_holds(bytes in prop::collection::vec(any::<u8>(), 0..400), text in "[\\[\\]{}\",:<>a-z=/.0-9 v'\\-]{0,200}|\\PC{0,60}") {
        for (target, _) in TARGETS {
            target(&bytes);
            target(text.as_bytes());
        }
    }

    #[test]
    fn mutated_corpus_holds(which in any::<Index>(), file in any::<Index>(), changes in prop::collection::vec(change(), 1..5)) {
        let (target, files) = which.get(&CORPUS);
        target(&changed(file.get(files).clone(), &changes));
    }

    #[test]
    fn printed_versions_and_constraints_are_parsed(
        numbers in "[0-9]{1,3}(\\.[0-9]{1,3}){0,4}(-[0-9A-Za-z]{1,4}(\\.[0-9A-Za-z]{1,3}){0,2})?",
        parts in prop::collection::vec("(|=|!=|>|>=|<|<=|~>) [0-9]{1,2}(\\.[0-9]{1,2}){0,3}(-[a-z]{1,3}[0-9]?)?", 1..4),
    ) {
        bodies::constraint(numbers.as_bytes());
        bodies::constraint(parts.join(",").as_bytes());
    }
}
