//! Objects that were modified, belong to another owner, or need a missing key are never decrypted.

use crds::datastore::{CORRUPT, KEY_MISSING};
use serving::auth::Identity;

use super::{Lab, claim, noise, pod, view, write_key};
use crate::cluster::RunView;

/// Asserts that a read is rejected or breaks off, and never returns another object's content.
async fn refused(lab: &Lab, rest: &str, original: &[u8]) {
    let answer = lab.get(rest).await;
    match answer.body {
        Some(_) => assert_eq!(
            (answer.code, answer.reason().as_str()),
            (500, CORRUPT),
            "{rest}"
        ),
        None => assert_eq!(
            answer.code, 200,
            "{rest} broke off behind its first segment"
        ),
    }
    assert!(lab.get(rest).await.body.as_deref() != Some(original));
    assert_eq!(
        lab.get(&format!("{rest}/digest")).await.reason(),
        CORRUPT,
        "{rest}"
    );
}

/// Burrito 11.26: stored data was not authenticated, and data that could not be decrypted was returned unchanged.
#[tokio::test]
async fn modified_truncated_or_swapped_object_is_corrupt() {
    let lab = Lab::new();
    let (plan, bundle, json) = (noise(5_000, 1), noise(900_000, 2), noise(900_000, 3));
    let requests = [
        ("PUT objects/plan", &plan[..], "201"),
        ("PUT objects/bundle", &bundle, "201"),
        ("PUT objects/planjson", &json, "201"),
    ];
    lab.asks("pod-1", &requests).await;
    let (record, blob, other) = (
        lab.file("/a1/plan"),
        lab.file("/blobs/a1-bundle"),
        lab.file("/blobs/a1-planjson"),
    );
    for path in [&record, &blob] {
        let (rest, original) = if path == &record {
            ("objects/plan", &plan)
        } else {
            ("objects/bundle", &bundle)
        };
        let good = std::fs::read(path).unwrap();
        for at in [0, 5, 20, 60, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(path, bad).unwrap();
            let answer = lab.get(rest).await;
            // A changed letter of the key's id references another key.
            assert!(
                answer.body.is_none() || [CORRUPT, KEY_MISSING].contains(&answer.reason().as_str()),
                "{at}"
            );
        }
        for length in [0, 1, 40, good.len() / 2, good.len() - 1] {
            std::fs::write(path, &good[..length]).unwrap();
            refused(&lab, rest, original).await;
        }
        std::fs::write(path, [good.as_slice(), b"more"].concat()).unwrap();
        refused(&lab, rest, original).await;
        std::fs::write(path, &good).unwrap();
        assert!(lab.get(rest).await.body.as_deref() == Some(original.as_slice()));
    }
    let (ours, theirs) = (
        std::fs::read(&blob).unwrap(),
        std::fs::read(&other).unwrap(),
    );
    std::fs::write(&blob, &theirs).unwrap();
    std::fs::write(&other, &ours).unwrap();
    refused(&lab, "objects/bundle", &bundle).await;
    refused(&lab, "objects/planjson", &json).await;
    std::fs::remove_file(&blob).unwrap();
    assert_eq!(
        lab.get("objects/bundle").await.reason(),
        CORRUPT,
        "named and not there"
    );
}

#[tokio::test]
async fn objects_moved_between_runs_are_corrupt() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT objects/plan", b"of the first run", "201")])
        .await;
    let theirs = lab.file("/a1/plan");
    let again = RunView {
        uid: "22222222-2222".into(),
        ..view(1, true)
    };
    let ours = theirs
        .to_string_lossy()
        .replace(&view(1, true).uid, &again.uid);
    std::fs::create_dir_all(std::path::Path::new(&ours).parent().unwrap()).unwrap();
    std::fs::copy(&theirs, &ours).unwrap();
    let own = pod(&again, 1);
    lab.cluster.token(
        "again",
        Identity {
            user: "u".into(),
            pod: Some(own),
            ..Identity::default()
        },
    );
    lab.cluster.set(again);
    lab.asks("again", &[("GET objects/plan", b"", "500 Corrupt")])
        .await;
}

/// Burrito 11.16: data that was already encrypted counted as an encryption failure.
#[tokio::test]
async fn rotated_keys_work_and_missing_or_wrong_ones_are_named() {
    let mut lab = Lab::new();
    let bundle = noise(500_000, 1);
    lab.asks(
        "pod-1",
        &[
            ("PUT objects/plan", b"first", "201"),
            ("PUT objects/bundle", &bundle, "201"),
        ],
    )
    .await;
    write_key(lab.keys.path(), "k2", 2);
    lab.restart();
    lab.asks("pod-1", &[("PUT objects/result", b"second", "201")])
        .await;
    assert_eq!(
        lab.get("objects/plan").await.text(),
        "first",
        "what was written before is read with its key"
    );
    assert!(
        std::fs::read(lab.file("/a1/result"))
            .unwrap()
            .windows(2)
            .any(|w| w == b"k2")
    );
    assert!(
        !std::fs::read(lab.file("/a1/result"))
            .unwrap()
            .windows(6)
            .any(|w| w == b"second")
    );
    std::fs::remove_file(lab.keys.path().join("k1")).unwrap();
    lab.restart();
    for rest in ["objects/plan", "objects/bundle"] {
        let answer = lab.get(rest).await;
        assert_eq!((answer.code, answer.reason().as_str()), (500, KEY_MISSING));
        assert!(answer.problem().message.contains("`k1`"), "{answer:?}");
    }
    assert_eq!(lab.get("objects/result").await.text(), "second");
    write_key(lab.keys.path(), "k1", 99);
    lab.restart();
    // A key of that id, and not that key.
    lab.asks(
        "pod-1",
        &[
            ("GET objects/plan", b"", "500 Corrupt"),
            ("GET objects/bundle", b"", "500 Corrupt"),
        ],
    )
    .await;
}

#[tokio::test]
async fn modified_claim_log_or_state_is_corrupt() {
    let lab = Lab::claimed();
    let requests = [
        (
            "PUT claim",
            &serde_json::to_vec(&claim(1)).unwrap()[..],
            "201",
        ),
        ("PUT lock", br#"{"ID": "1"}"#, "200"),
        ("PUT state?lock=1", br#"{"serial": 1}"#, "200"),
        ("PUT log/plan?offset=0", b"text", "200"),
    ];
    lab.asks("pod-1", &requests).await;
    for path in lab.files() {
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() - 1;
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(lab.of_controller("GET", "/claim").await.reason(), CORRUPT);
    assert_eq!(lab.get("state").await.reason(), CORRUPT);
    let begun = std::time::Instant::now();
    let log = lab
        .of_person("GET", "terraformruns/net/log?phase=plan", b"")
        .await;
    // A problem that is detected late breaks the connection.
    let broken = log.body.is_none() && begun.elapsed() >= crate::http::read::runs::FIRST;
    assert!(broken || log.json()["code"] == 500, "{log:?}");
}
