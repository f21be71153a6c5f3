//! What holds for any bytes.

use std::{sync::LazyLock, time::SystemTime};

use pgp::crypto::hash::HashAlgorithm::Sha256;
use proptest::{prelude::*, sample::Index};
use tool_versions::{Digest, Fingerprint, Keyring, Limits, Sums};
use zip::CompressionMethod::{Deflated, Stored};

use super::{
    archives::{In::File, binary, take, tgz, zip},
    making::{self, BORN, DAY, Made, Plan, Sub},
};

const DATA: &[u8] = b"sums";

static MADE: LazyLock<Made> = LazyLock::new(|| Plan { sub: Some(Sub::default()), ..Plan::default() }.make());
static RING: LazyLock<Keyring> = LazyLock::new(|| Keyring::from_armored(&MADE.armored(), &[MADE.fingerprint()]).unwrap());

/// Good bytes for each parser.
static GOOD: LazyLock<[Vec<u8>; 7]> = LazyLock::new(|| {
    let content = binary(3000);
    let all = [File("LICENSE", b"MPL"), File("tofu", &content)];
    let signature = MADE.sign(DATA, BORN + DAY, Sha256);
    let sums = format!("{}  x.zip\n{} *y.zip\r\n", Digest::of(b"x"), Digest::of(b"y"));
    [
        zip(&all, Deflated),
        zip(&all, Stored),
        tgz(&all),
        sums.into_bytes(),
        making::binary(&signature),
        making::armored(&signature),
        MADE.armored().into_bytes(),
    ]
});

/// Runs everything that reads bytes of others.
pub(crate) fn read_all(bytes: &[u8]) {
    let limits = Limits { size: 100_000, ratio: 200, entries: 8 };
    for name in ["x.zip", "x.tar.gz", "x"] {
        let (taken, into) = take(name, bytes, limits);
        assert!(into.len() as u64 <= limits.size);
        if let Ok(taken) = taken {
            assert_eq!((taken.size, taken.digest), (into.len() as u64, Digest::of(&into)));
        }
    }
    let _ = RING.verify("it", DATA, bytes, SystemTime::now());
    let _ = Sums::parse(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (text.parse::<Digest>(), text.parse::<Fingerprint>());
        let _ = Keyring::from_armored(text, &[MADE.fingerprint()]);
    }
}

#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Cut(Index),
    Drop(Index, Index),
    Insert(Index, Vec<u8>),
    Repeat(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        4 => (at(), 1_u8..).prop_map(|(at, by)| Change::Flip(at, by)),
        1 => at().prop_map(Change::Cut),
        1 => (at(), at()).prop_map(|(from, to)| Change::Drop(from, to)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        1 => (at(), at()).prop_map(|(from, to)| Change::Repeat(from, to)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
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
            Change::Insert(at, more) => drop(bytes.splice(at.index(length)..at.index(length), more.iter().copied())),
            Change::Repeat(from, to) => bytes.extend_from_within(range(from, to)),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_read_is_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        read_all(&bytes);
    }

    #[test]
    fn nothing_that_was_good_is_a_fault(which in 0..7_usize, changes in prop::collection::vec(change(), 1..5)) {
        read_all(&changed(GOOD[which].clone(), &changes));
    }

    #[test]
    fn a_changed_archive_is_refused_or_has_the_same_entry(which in 0..3_usize, changes in prop::collection::vec(change(), 1..3)) {
        let name = if which < 2 { "x.zip" } else { "x.tar.gz" };
        let (taken, _) = take(name, &changed(GOOD[which].clone(), &changes), Limits::default());
        if let Ok(taken) = taken {
            prop_assert_eq!(taken.digest, Digest::of(&binary(3000)));
        }
    }

    #[test]
    fn other_data_is_never_proven(data in prop::collection::vec(any::<u8>(), 0..40), changes in prop::collection::vec(change(), 0..3)) {
        let signature = changed(GOOD[4].clone(), &changes);
        let proven = RING.verify("it", &data, &signature, SystemTime::now()).is_ok();
        prop_assert!(!proven || data == DATA);
    }

    #[test]
    fn sums_say_what_was_written(all in prop::collection::btree_map("[a-z][a-z0-9._-]{0,20}", any::<Vec<u8>>(), 1..10)) {
        let lines: Vec<_> = all.iter().map(|(name, bytes)| format!("{}  {name}", Digest::of(bytes))).collect();
        let text = lines.join("\n");
        let sums = Sums::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(sums.names().count(), all.len());
        for (name, bytes) in &all {
            sums.check(name, &Digest::of(bytes)).unwrap();
        }
    }
}
