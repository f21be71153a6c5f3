//! Deletions by the controller and by the sweep, and their limits.

use std::{
    sync::atomic::Ordering,
    time::{Duration, SystemTime},
};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{Lab, noise, view};
use crate::{
    cluster::RunView,
    gc::sweep,
    testing::{NONCE, claim},
};

async fn filled() -> Lab {
    let lab = Lab::claimed();
    let (small, large) = (noise(10, 1), noise(500_000, 1));
    let requests = [
        ("PUT objects/bundle", &large[..], "201"),
        ("PUT objects/plan", &small, "201"),
        ("PUT objects/planjson", &large, "201"),
        ("PUT objects/result", &small, "201"),
        ("PUT log/plan?offset=0", b"text", "200"),
        ("PUT claim", &serde_json::to_vec(&claim(1)).unwrap(), "201"),
    ];
    lab.asks("pod-1", &requests).await;
    lab
}

fn has(lab: &Lab, part: &str) -> bool {
    lab.files()
        .iter()
        .any(|path| path.to_string_lossy().contains(part))
}

fn age(lab: &Lab, part: &str, by: Duration) {
    for path in lab
        .files()
        .iter()
        .filter(|path| path.to_string_lossy().contains(part))
    {
        std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(SystemTime::now() - by)
            .unwrap();
    }
}

#[tokio::test]
async fn record_of_an_apply_outlives_its_run_and_is_exported() {
    let lab = Lab::new();
    let mut run = RunView {
        claim: Some(claim(1)),
        ..view(1, true)
    };
    run.audit.approved_by = "ada".to_owned();
    run.audit.layer = Some("network".to_owned());
    lab.cluster.set(run.clone());
    let told = json!({"runUID": run.uid, "attempt": 1, "podUID": "pod-1", "nonce": NONCE, "result": "Applied", "message": "applied +1"});
    let told = serde_json::to_vec(&told).unwrap();
    let requests = [
        ("PUT claim", &*serde_json::to_vec(&claim(1)).unwrap(), "201"),
        ("PUT objects/result", &told, "201"),
    ];
    lab.asks("pod-1", &requests).await;
    let lines = async || {
        let answer = lab.of_person("GET", "records", b"").await;
        let lines: Vec<serde_json::Value> = answer
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines
    };
    let before = lines().await;
    assert_eq!(before.len(), 1);
    let wanted = json!({"run": "net", "layer": "network", "approvedBy": "ada", "result": "Applied", "message": "applied +1"});
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(&before[0][key], value, "{before:?}");
    }
    // Its author deletes the run.
    assert_eq!(lab.of_controller("DELETE", "").await.code, 200);
    lab.cluster.remove(&run);
    assert!(!has(&lab, "result"), "{:?}", lab.files());
    assert_eq!(lines().await, before);
    // After a year and a month the record is deleted as well.
    let now = Timestamp::now();
    for days in [0, 399, 401] {
        sweep(&lab.service, now + SignedDuration::from_hours(days * 24))
            .await
            .unwrap();
        assert_eq!(lines().await.is_empty(), days == 401, "day {days}");
    }
    assert!(!has(&lab, "ends"), "{:?}", lab.files());
}

/// A link to itself, which cannot be opened, stands for a store that is away.
#[tokio::test]
async fn end_that_cannot_be_retained_holds_up_the_deletion_only_while_the_store_is_away() {
    let lab = filled().await;
    let (record, content) = (
        lab.file("claims/"),
        std::fs::read(lab.file("claims/")).unwrap(),
    );
    std::fs::remove_file(&record).unwrap();
    std::os::unix::fs::symlink(&record, &record).unwrap();
    let refused = lab.of_controller("DELETE", "").await;
    assert_eq!(refused.brief(), "503 Unavailable");
    assert!(has(&lab, "result"), "{:?}", lab.files());
    // A damaged record stays so.
    std::fs::remove_file(&record).unwrap();
    std::fs::write(&record, &content[..content.len() / 2]).unwrap();
    assert_eq!(lab.of_controller("DELETE", "").await.code, 200);
    assert!(!has(&lab, "result"), "{:?}", lab.files());
}

#[tokio::test]
async fn bundle_is_deleted_first_then_all_but_the_claim() {
    let lab = filled().await;
    assert_eq!(lab.of_controller("DELETE", "?only=bundle").await.code, 200);
    assert!(
        !has(&lab, "bundle") && has(&lab, "planjson"),
        "{:?}",
        lab.files()
    );
    lab.asks(
        "pod-1",
        &[
            ("GET objects/bundle", b"", "404 NotFound"),
            ("GET objects/planjson", b"", "200"),
        ],
    )
    .await;
    assert_eq!(lab.of_controller("DELETE", "").await.code, 200);
    assert_eq!(lab.of_controller("DELETE", "").await.code, 200, "again");
    assert!(!has(&lab, "/runs/"), "{:?}", lab.files());
    assert_eq!(lab.of_controller("GET", "/claim").await.code, 200);
}

#[tokio::test]
async fn existing_run_is_never_swept() {
    let lab = filled().await;
    let before = lab.files();
    let mut now = Timestamp::now();
    for _ in 0..3 {
        now += SignedDuration::from_hours(24 * 40);
        sweep(&lab.service, now).await.unwrap();
    }
    assert_eq!(lab.files(), before);
}

#[tokio::test]
async fn nothing_is_swept_while_the_api_server_fails() {
    let lab = filled().await;
    let before = lab.files();
    lab.cluster.down.store(true, Ordering::Relaxed);
    for days in [0, 2, 200] {
        assert!(
            sweep(
                &lab.service,
                Timestamp::now() + SignedDuration::from_hours(24 * days)
            )
            .await
            .is_err()
        );
    }
    assert_eq!(lab.files(), before);
}

#[tokio::test]
async fn deleted_run_is_swept_after_a_day_its_claim_after_400() {
    let lab = filled().await;
    lab.cluster.remove(&view(1, true));
    let start = Timestamp::now();
    // The objects, the mark and the claim after each sweep.
    let all = [true, true, true];
    let claim = [false, true, true];
    for (hours, left) in [
        (0, all),
        (23, all),
        (25, claim),
        (399 * 24, claim),
        (400 * 24, [false; 3]),
    ] {
        sweep(&lab.service, start + SignedDuration::from_hours(hours))
            .await
            .unwrap();
        let found = ["/a1/bundle", "/gone/", "/claims/"].map(|part| has(&lab, part));
        assert_eq!(found, left, "after {hours} h: {:?}", lab.files());
    }
    assert!(lab.files().is_empty(), "{:?}", lab.files());
}

#[tokio::test]
async fn run_found_again_keeps_everything() {
    let lab = filled().await;
    let before = lab.files();
    lab.cluster.remove(&view(1, true));
    sweep(&lab.service, Timestamp::now()).await.unwrap();
    lab.cluster.set(view(1, true));
    sweep(
        &lab.service,
        Timestamp::now() + SignedDuration::from_hours(48),
    )
    .await
    .unwrap();
    assert_eq!(lab.files(), before, "and the mark is gone");
    lab.cluster.remove(&view(1, true));
    sweep(
        &lab.service,
        Timestamp::now() + SignedDuration::from_hours(72),
    )
    .await
    .unwrap();
    assert!(has(&lab, "/a1/bundle"), "a day is counted anew");
}

#[tokio::test]
async fn recreated_run_does_not_protect_its_predecessor() {
    let lab = filled().await;
    lab.cluster.set(RunView {
        uid: "44444444-4444".into(),
        ..view(1, true)
    });
    sweep(&lab.service, Timestamp::now()).await.unwrap();
    sweep(
        &lab.service,
        Timestamp::now() + SignedDuration::from_hours(25),
    )
    .await
    .unwrap();
    assert!(!has(&lab, "/runs/") && has(&lab, "/claims/"));
}

#[tokio::test]
async fn unreferenced_blobs_are_deleted_after_a_day() {
    let lab = filled().await;
    let named = lab.file("/blobs/a1-bundle");
    let orphan = named.with_file_name("a1-bundle-00000000000000000000000000000000");
    let other = named.with_file_name("a2-plan-00000000000000000000000000000000");
    let staged = named.with_file_name("a1-bundle-x#1");
    for path in [&orphan, &other, &staged] {
        std::fs::write(path, b"x").unwrap();
    }
    sweep(&lab.service, Timestamp::now()).await.unwrap();
    assert!(
        orphan.exists() && other.exists() && staged.exists(),
        "they may belong to a write that is under way"
    );
    age(&lab, "/blobs/", Duration::from_secs(90_000));
    sweep(&lab.service, Timestamp::now()).await.unwrap();
    assert!(!orphan.exists() && !other.exists() && !staged.exists() && named.exists());
    assert_eq!(lab.get("objects/bundle/digest").await.code, 200);
}

#[tokio::test]
async fn sweep_of_a_state_keeps_what_the_newest_record_references() {
    let lab = Lab::claimed();
    lab.asks("pod-1", &[("PUT lock", br#"{"ID": "a"}"#, "200")])
        .await;
    for serial in 0..70 {
        let filler = if serial % 3 == 0 {
            "x".repeat(200_000)
        } else {
            String::new()
        };
        let state = format!(r#"{{"serial": {serial}, "x": "{filler}"}}"#);
        lab.asks("pod-1", &[("PUT state?lock=a", state.as_bytes(), "200")])
            .await;
    }
    lab.asks("pod-1", &[("DELETE lock?lock=a", b"", "200")])
        .await;
    let all = lab.files().len();
    sweep(&lab.service, Timestamp::now()).await.unwrap();
    assert_eq!(lab.files().len(), all, "nothing is old");
    age(&lab, "/states/", Duration::from_secs(90_000));
    sweep(&lab.service, Timestamp::now()).await.unwrap();
    let versions = lab.of_person("GET", "states/net", b"").await.json()["versions"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(versions.len(), 64);
    for version in versions {
        let read = lab
            .of_person(
                "GET",
                &format!("states/net/download?version={}", version["number"]),
                b"",
            )
            .await;
        assert_eq!(read.body.unwrap().len() as u64, version["size"]);
    }
    // Expected to remain: the records with content, the newest, and the blobs of every third of 64 versions.
    assert!(
        lab.files().len() < all && lab.files().len() <= 64 + 22 + 1,
        "{} of {all}",
        lab.files().len()
    );
}
