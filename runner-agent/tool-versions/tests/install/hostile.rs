//! Hostile and failing mirrors: the right error, in time, and no executable left in the cache.

use std::time::Duration;

use pgp::crypto::hash::HashAlgorithm;
use tool_versions::{Kind, Verification, install::Origin, releases::http::Rules};

use super::{
    making::{BORN, DAY, Made, Plan, binary},
    rules,
    server::{Act, answer, ok, redirect},
    world::{ARCHIVE, AT, Files, SCRIPT, SUMS, World, get, key, keyring, published, release, zip},
};

/// Short deadlines, for an archive that never ends.
fn short() -> Rules {
    Rules { connect: Duration::from_secs(1), silence: Duration::from_millis(700), large: Duration::from_secs(6), ..rules() }
}

/// A fault, its files, and the error.
type Row = (&'static str, Files, Kind, &'static [&'static str]);

fn with(name: &str, acts: Vec<Act>) -> Files {
    let mut files = published(&release(), &key(), BORN + DAY);
    files.insert(format!("{AT}/{name}"), acts);
    files
}

/// Another archive with its correct sum, signed by the right key.
fn signed(archive: &[u8]) -> Files {
    published(archive, &key(), BORN + DAY)
}

fn expired() -> Made {
    // The key expired before the signature was made.
    Plan { lasts: Some(DAY), ..Plan::default() }.make()
}

const SLOW: &str = "a slow archive";
const SILENT: &str = "a silent server";
const SIGNATURE: &str = "tofu_1.10.6_SHA256SUMS.gpgsig";

fn rows() -> Vec<Row> {
    use Kind::{Configuration, Integrity, Unavailable};
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
    // The mode in the central directory.
    let at = link.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap() + 38;
    link.splice(at..at + 4, (0o120_777_u32 << 16).to_le_bytes());
    let bomb = zip(&[("tofu", &vec![0; 8 << 20])]);
    let away = |head: &str| with(ARCHIVE, answer(&format!("{head}\nContent-Length: 0"), b""));
    let page = |name: &str| with(name, ok("Content-Type: text/html", b"<html>log in</html>"));
    let none = answer("404 Not Found\nContent-Length: 0", b"");
    let else_signed = binary(&key().sign(b"else", BORN + DAY, HashAlgorithm::Sha256));
    let escapes = zip(&[("../tofu", b"x"), ("tofu", SCRIPT.as_bytes())]);
    vec![
        ("a truncated archive", with(ARCHIVE, cut(half)), Unavailable, &[ARCHIVE]),
        (SLOW, with(ARCHIVE, slow()), Unavailable, &[ARCHIVE]),
        (SILENT, with(ARCHIVE, vec![Act::Hang]), Unavailable, &[ARCHIVE]),
        ("another archive", with(ARCHIVE, ok("", &other)), Integrity, &[ARCHIVE, "SHA-256", "published with"]),
        ("sums of other files", sums_of("tofu_1.10.5_linux_amd64.zip"), Integrity, &["no sum of", ARCHIVE]),
        ("unsigned sums", with(SIGNATURE, none), Integrity, &["is not signed", "nothing was installed"]),
        ("a signature of other bytes", with(SIGNATURE, ok("", &else_signed)), Integrity, &[SUMS]),
        ("a file that is no signature", with(SIGNATURE, ok("", b"trust me")), Integrity, &[SUMS]),
        ("an unknown key", by(&stranger, BORN + DAY), Integrity, &["which is not known", SUMS]),
        ("an entry of another name", signed(&zip(&[("tofu2", SCRIPT.as_bytes())])), Integrity, &["has no `tofu`"]),
        ("an entry that escapes", signed(&escapes), Integrity, &["../tofu"]),
        ("a link", signed(&link), Integrity, &["tofu"]),
        ("a bomb", signed(&bomb), Integrity, &["tofu"]),
        ("no archive", signed(b"PK nothing"), Integrity, &[ARCHIVE]),
        ("a page instead of sums", page(SUMS), Unavailable, &["HTML"]),
        ("a page instead of the archive", page(ARCHIVE), Unavailable, &["HTML"]),
        ("503", away("503 Away"), Unavailable, &["503", "tried 3 times"]),
        ("429 with a long wait", away("429 Slow\nRetry-After: 3600"), Unavailable, &["429", "3600 s"]),
        ("a loop", with(ARCHIVE, redirect(&format!("{AT}/{ARCHIVE}"))), Unavailable, &["a loop"]),
        ("a redirect to plain http", with(ARCHIVE, redirect("http://127.0.0.2:9/x")), Integrity, &["redirect"]),
        ("no such version", Files::new(), Configuration, &["404"]),
    ]
}

#[tokio::test]
async fn each_fault_has_its_error_and_leaves_no_executable() {
    let all = rows().into_iter().map(|(what, files, kind, says)| {
        tokio::spawn(async move {
            let world = World::with(files).await;
            let mut installer = world.installer();
            if [SLOW, SILENT].contains(&what) {
                installer.channels[0].rules = short();
            }
            let error = get(&installer).await.map(|got| got.origin).expect_err(what);
            assert_eq!(error.kind, kind, "{what}: {error}");
            for said in says {
                assert!(error.text.contains(said), "{what}: `{error}` does not say `{said}`");
            }
            assert_eq!(world.left(), Vec::<std::path::PathBuf>::new(), "{what}");
            // A retry succeeds.
            *world.files.lock().unwrap() = published(&release(), &key(), BORN + DAY);
            assert!(matches!(world.get().await.unwrap().origin, Origin::Installed { .. }), "{what}");
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
}

#[tokio::test]
async fn signature_after_key_expiry_is_refused() {
    let world = World::with(published(&release(), &key(), BORN + 2 * DAY)).await;
    let error = get(&world.verified(Verification::Signature(keyring(&expired())))).await.unwrap_err();
    assert_eq!(error.kind, Kind::Integrity);
    assert!(error.text.contains("expired"), "{error}");
    assert_eq!(world.left(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn retry_after_is_waited_for() {
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
    assert!(begun.elapsed() >= Duration::from_secs(1));
}
