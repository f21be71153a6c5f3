//! A server that means no good, or has a bad day: the right failure, in time, and nothing executable left.

use std::time::Duration;

use pgp::crypto::hash::HashAlgorithm;
use tool_versions::{Kind, Verification, install::Origin, releases::http::Rules};

use super::{
    making::{BORN, DAY, Made, Plan, binary},
    rules,
    server::{Act, answer, ok, redirect},
    world::{ARCHIVE, AT, Files, SCRIPT, SUMS, World, get, key, keyring, published, release, zip},
};

/// Deadlines that a test waits for, of an archive that never comes to its end.
fn short() -> Rules {
    Rules { connect: Duration::from_secs(1), silence: Duration::from_millis(700), large: Duration::from_secs(6), ..rules() }
}

/// What is wrong, and how it ends.
struct Row {
    what: &'static str,
    files: Files,
    ends: Kind,
    says: &'static [&'static str],
}

fn with(name: &str, acts: Vec<Act>) -> Files {
    let mut files = published(&release(), &key(), BORN + DAY);
    files.insert(format!("{AT}/{name}"), acts);
    files
}

/// Another archive, with its true sum, signed by the right key.
fn signed(archive: &[u8]) -> Files {
    published(archive, &key(), BORN + DAY)
}

fn expired() -> Made {
    // The key that verifies ended before the signature was made.
    Plan { lasts: Some(DAY), ..Plan::default() }.make()
}

const SIGNATURE: &str = "tofu_1.10.6_SHA256SUMS.gpgsig";

#[allow(clippy::too_many_lines, reason = "one table")]
fn rows() -> Vec<Row> {
    let half = &release()[..100];
    let cut = |bytes: &[u8]| {
        vec![Act::Send([format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", release().len()).as_bytes(), bytes].concat())]
    };
    let slow = || {
        let mut acts = cut(&[]);
        for byte in release().chunks(8).take(200) {
            acts.extend([Act::Send(byte.to_vec()), Act::Wait(Duration::from_millis(250))]);
        }
        acts
    };
    let other = zip(&[("tofu", b"#!/bin/sh\nrm -rf /\n")]);
    let sums_of = |name: &str| {
        let text = format!("{}  {name}\n", tool_versions::Digest::of(&release()));
        let signature = binary(&key().sign(text.as_bytes(), BORN + DAY, HashAlgorithm::Sha256));
        let mut files = with(SUMS, ok("", text.as_bytes()));
        files.insert(format!("{AT}/{SIGNATURE}"), ok("", &signature));
        files
    };
    let by = |made: &Made, at: u32| published(&release(), made, at);
    let stranger = Plan { seed: 5, ..Plan::default() }.make();
    let mut link = zip(&[("tofu", b"/bin/sh")]);
    // In the central directory, where its mode is.
    let at = link.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap() + 38;
    link.splice(at..at + 4, (0o120_777_u32 << 16).to_le_bytes());
    let bomb = zip(&[("tofu", &vec![0; 8 << 20])]);
    vec![
        Row { what: "an archive that is cut", files: with(ARCHIVE, cut(half)), ends: Kind::Unavailable, says: &[ARCHIVE] },
        Row { what: "an archive that comes by drops", files: with(ARCHIVE, slow()), ends: Kind::Unavailable, says: &[ARCHIVE] },
        Row { what: "silence", files: with(ARCHIVE, vec![Act::Hang]), ends: Kind::Unavailable, says: &[ARCHIVE] },
        Row {
            what: "another archive",
            files: with(ARCHIVE, ok("", &other)),
            ends: Kind::Integrity,
            says: &[ARCHIVE, "SHA-256", "published with"],
        },
        Row {
            what: "sums of other files",
            files: sums_of("tofu_1.10.5_linux_amd64.zip"),
            ends: Kind::Integrity,
            says: &["no sum of", ARCHIVE],
        },
        Row {
            what: "sums that nobody signed",
            files: with(SIGNATURE, answer("404 Not Found\nContent-Length: 0", b"")),
            ends: Kind::Integrity,
            says: &["is not signed", "nothing was installed"],
        },
        Row {
            what: "a signature of something else",
            files: with(SIGNATURE, ok("", &binary(&key().sign(b"else", BORN + DAY, HashAlgorithm::Sha256)))),
            ends: Kind::Integrity,
            says: &[SUMS],
        },
        Row { what: "no signature at all", files: with(SIGNATURE, ok("", b"trust me")), ends: Kind::Integrity, says: &[SUMS] },
        Row {
            what: "a key that nobody knows",
            files: by(&stranger, BORN + DAY),
            ends: Kind::Integrity,
            says: &["which is not known", SUMS],
        },
        Row {
            what: "an entry of another name",
            files: signed(&zip(&[("tofu2", SCRIPT.as_bytes())])),
            ends: Kind::Integrity,
            says: &["has no `tofu`"],
        },
        Row {
            what: "an entry that leads out",
            files: signed(&zip(&[("../tofu", b"x"), ("tofu", SCRIPT.as_bytes())])),
            ends: Kind::Integrity,
            says: &["../tofu"],
        },
        Row { what: "a link", files: signed(&link), ends: Kind::Integrity, says: &["tofu"] },
        Row { what: "a bomb", files: signed(&bomb), ends: Kind::Integrity, says: &["tofu"] },
        Row { what: "no archive", files: signed(b"PK nothing"), ends: Kind::Integrity, says: &[ARCHIVE] },
        Row {
            what: "a page instead of sums",
            files: with(SUMS, ok("Content-Type: text/html", b"<html>log in</html>")),
            ends: Kind::Unavailable,
            says: &["HTML"],
        },
        Row {
            what: "a page instead of the archive",
            files: with(ARCHIVE, ok("Content-Type: text/html", b"<html>log in</html>")),
            ends: Kind::Unavailable,
            says: &["HTML"],
        },
        Row {
            what: "503",
            files: with(ARCHIVE, answer("503 Away\nContent-Length: 0", b"")),
            ends: Kind::Unavailable,
            says: &["503", "tried 3 times"],
        },
        Row {
            what: "429 for long",
            files: with(ARCHIVE, answer("429 Slow\nRetry-After: 3600\nContent-Length: 0", b"")),
            ends: Kind::Unavailable,
            says: &["429", "3600 s"],
        },
        Row {
            what: "a loop",
            files: with(ARCHIVE, redirect(&format!("{AT}/{ARCHIVE}"))),
            ends: Kind::Unavailable,
            says: &["a loop"],
        },
        Row {
            what: "a way to plain HTTP elsewhere",
            files: with(ARCHIVE, redirect("http://127.0.0.2:9/x")),
            ends: Kind::Integrity,
            says: &["redirect"],
        },
        Row { what: "no such version", files: Files::new(), ends: Kind::Configuration, says: &["404"] },
    ]
}

#[tokio::test]
async fn it_ends_in_the_right_failure_with_a_clean_cache() {
    let all = rows().into_iter().map(|row| {
        tokio::spawn(async move {
            let world = World::with(row.files).await;
            let mut installer = world.installer();
            if ["an archive that comes by drops", "silence"].contains(&row.what) {
                installer.channels[0].rules = short();
            }
            let error = get(&installer).await.map(|got| got.origin).expect_err(row.what);
            assert_eq!(error.kind, row.ends, "{}: {error}", row.what);
            for said in row.says {
                assert!(error.text.contains(said), "{}: `{error}` does not say `{said}`", row.what);
            }
            assert_eq!(world.left(), Vec::<std::path::PathBuf>::new(), "{}", row.what);
            // And nobody is kept from trying again.
            *world.files.lock().unwrap() = published(&release(), &key(), BORN + DAY);
            assert!(matches!(world.get().await.unwrap().origin, Origin::Installed { .. }), "{}", row.what);
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_ended_before_it_signed_is_none() {
    let world = World::with(published(&release(), &key(), BORN + 2 * DAY)).await;
    let error = get(&world.verified(Verification::Signature(keyring(&expired())))).await.unwrap_err();
    assert_eq!(error.kind, Kind::Integrity);
    assert!(error.text.contains("expired"), "{error}");
    assert_eq!(world.left(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_server_that_asks_for_a_moment_gets_it() {
    let world = World::new().await;
    world.set(ARCHIVE, answer("429 Slow\nRetry-After: 1\nContent-Length: 0", b""));
    let begun = std::time::Instant::now();
    let later = async {
        while world.asked(ARCHIVE) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.set(ARCHIVE, ok("", &release()));
    };
    let (got, ()) = tokio::join!(world.get(), later);
    assert!(matches!(got.unwrap().origin, Origin::Installed { .. }));
    assert!(begun.elapsed() >= Duration::from_secs(1), "not before it may");
}
