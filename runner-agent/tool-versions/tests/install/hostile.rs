//! Hostile and failing mirrors: the right error, in time, and no executable left in the cache.

use std::time::Duration;

use pgp::crypto::hash::HashAlgorithm;
use tool_versions::{Verification, install::Origin, releases::http::Rules};

use super::{
    making::{BORN, DAY, binary, made},
    rules,
    server::{Act, answer, ok, redirect},
    world::{ARCHIVE, AT, Files, SCRIPT, SUMS, World, get, key, keyring, published, release, zip},
};
use crate::table;

/// Short deadlines, for an archive that never ends.
fn short() -> Rules {
    Rules {
        connect: Duration::from_secs(1),
        silence: Duration::from_millis(700),
        large: Duration::from_secs(6),
        ..rules()
    }
}

fn with(name: &str, acts: Vec<Act>) -> Files {
    let mut files = published(&release(), &key(), BORN + DAY);
    files.insert(format!("{AT}/{name}"), acts);
    files
}

/// Another archive with its correct sum, signed by the right key.
fn signed(entries: &[(&str, &[u8])]) -> Files {
    published(&zip(entries), &key(), BORN + DAY)
}

const SIGNATURE: &str = "tofu_1.10.6_SHA256SUMS.gpgsig";

/// A fault, the kind of the error, and parts of its message.
const FAULTS: &str = "
    a truncated archive | Unavailable | tofu_1.10.6_linux_amd64.zip
    a slow archive | Unavailable | tofu_1.10.6_linux_amd64.zip
    a silent server | Unavailable | tofu_1.10.6_linux_amd64.zip
    another archive | Integrity | tofu_1.10.6_linux_amd64.zip & SHA-256 & published with
    sums of other files | Integrity | no sum of & tofu_1.10.6_linux_amd64.zip
    unsigned sums | Integrity | is not signed & nothing was installed
    a signature of other bytes | Integrity | tofu_1.10.6_SHA256SUMS
    a file that is no signature | Integrity | tofu_1.10.6_SHA256SUMS
    an unknown key | Integrity | which is not known & tofu_1.10.6_SHA256SUMS
    an expired key | Integrity | expired
    an entry of another name | Integrity | has no `tofu`
    an entry that escapes | Integrity | ../tofu
    a link | Integrity | tofu
    a bomb | Integrity | tofu
    no archive | Integrity | tofu_1.10.6_linux_amd64.zip
    a page instead of sums | Unavailable | HTML
    a page instead of the archive | Unavailable | HTML
    503 | Unavailable | 503 & tried 3 times
    429 with a long wait | Unavailable | 429 & 3600 s
    a loop | Unavailable | a loop
    a redirect to plain http | Integrity | redirect
    no such version | Configuration | 404
";

fn files_of(fault: &str) -> Files {
    let head =
        |length: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
    let signature = |bytes: &[u8]| {
        ok(
            "",
            &binary(&key().sign(bytes, BORN + DAY, HashAlgorithm::Sha256)),
        )
    };
    let page = ok("Content-Type: text/html", b"<html>log in</html>");
    let status = |head: &str| answer(&format!("{head}\nContent-Length: 0"), b"");
    match fault {
        "a truncated archive" => with(
            ARCHIVE,
            vec![Act::Send(
                [head(release().len()), release()[..100].to_vec()].concat(),
            )],
        ),
        "a slow archive" => {
            let pieces = release()
                .chunks(8)
                .take(200)
                .map(<[u8]>::to_vec)
                .collect::<Vec<_>>();
            let slow = |piece| [Act::Send(piece), Act::Wait(Duration::from_millis(250))];
            let acts = [Act::Send(head(release().len()))]
                .into_iter()
                .chain(pieces.into_iter().flat_map(slow));
            with(ARCHIVE, acts.collect())
        }
        "a silent server" => with(ARCHIVE, vec![Act::Hang]),
        "another archive" => with(ARCHIVE, ok("", &zip(&[("tofu", b"#!/bin/sh\nrm -rf /\n")]))),
        "sums of other files" => {
            let text = format!(
                "{}  tofu_1.10.5_linux_amd64.zip\n",
                tool_versions::Digest::of(&release())
            );
            let mut files = with(SUMS, ok("", text.as_bytes()));
            files.insert(format!("{AT}/{SIGNATURE}"), signature(text.as_bytes()));
            files
        }
        "unsigned sums" => with(SIGNATURE, status("404 Not Found")),
        "a signature of other bytes" => with(SIGNATURE, signature(b"else")),
        "a file that is no signature" => with(SIGNATURE, ok("", b"trust me")),
        "an unknown key" => published(&release(), &made("seed=5"), BORN + DAY),
        // The test takes a copy of the key that had expired before.
        "an expired key" => published(&release(), &key(), BORN + 2 * DAY),
        "an entry of another name" => signed(&[("tofu2", SCRIPT.as_bytes())]),
        "an entry that escapes" => signed(&[("../tofu", b"x"), ("tofu", SCRIPT.as_bytes())]),
        "a link" => {
            let mut link = zip(&[("tofu", b"/bin/sh")]);
            // The mode in the central directory.
            let at = link
                .windows(4)
                .rposition(|four| four == b"PK\x01\x02")
                .unwrap()
                + 38;
            link.splice(at..at + 4, (0o120_777_u32 << 16).to_le_bytes());
            published(&link, &key(), BORN + DAY)
        }
        "a bomb" => signed(&[("tofu", &vec![0; 8 << 20])]),
        "no archive" => published(b"PK nothing", &key(), BORN + DAY),
        "a page instead of sums" => with(SUMS, page),
        "a page instead of the archive" => with(ARCHIVE, page),
        "503" => with(ARCHIVE, status("503 Away")),
        "429 with a long wait" => with(ARCHIVE, status("429 Slow\nRetry-After: 3600")),
        "a loop" => with(ARCHIVE, redirect(&format!("{AT}/{ARCHIVE}"))),
        "a redirect to plain http" => with(ARCHIVE, redirect("http://127.0.0.2:9/x")),
        "no such version" => Files::new(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn each_fault_has_its_error_and_leaves_no_executable() {
    let all = table(FAULTS).map(|[fault, kind, says]| {
        tokio::spawn(async move {
            let world = World::with(files_of(fault)).await;
            let mut installer = world.installer();
            match fault {
                "a slow archive" | "a silent server" => installer.channels[0].rules = short(),
                "an expired key" => {
                    installer = world.verified(Verification::Signature(keyring(&made("lasts=1"))));
                }
                _ => {}
            }
            let error = get(&installer)
                .await
                .map(|got| got.origin)
                .expect_err(fault);
            assert_eq!(format!("{:?}", error.kind), kind, "{fault}: {error}");
            for said in says.split(" & ") {
                assert!(
                    error.text.contains(said),
                    "{fault}: `{error}` does not say `{said}`"
                );
            }
            assert_eq!(world.left(), Vec::<std::path::PathBuf>::new(), "{fault}");
            // A retry succeeds.
            *world.files.lock().unwrap() = published(&release(), &key(), BORN + DAY);
            assert!(
                matches!(world.get().await.unwrap().origin, Origin::Installed { .. }),
                "{fault}"
            );
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
}
