//! Managed states and their locks.

use serde_json::json;

use crds::datastore::{FORBIDDEN, HEADER_DIGEST, HEADER_NONCE, LOCKED, NOT_FOUND, REPLACED, StateId, WRONG_DIGEST, attempt_path};

use super::{Lab, NONCE, digest, noise, view};
use crate::datastore::{auth::caller::tests::claim, cluster::RunView, names::StateKey};

fn lock(id: &str) -> Vec<u8> {
    json!({"ID": id, "Operation": "OperationTypeApply", "Who": "agent", "Version": "1.10.6", "Created": "2026-11-21T00:00:00Z"})
        .to_string()
        .into_bytes()
}

fn state(serial: u64, more: usize) -> Vec<u8> {
    let filler: String = noise(more, serial).iter().map(|byte| char::from(b'a' + byte % 26)).collect();
    format!(r#"{{"version": 4, "serial": {serial}, "lineage": "3f8a", "outputs": {{"x": "{filler}"}}}}"#).into_bytes()
}

#[tokio::test]
async fn a_state_is_written_under_its_lock_only() {
    let lab = Lab::new();
    assert_eq!(lab.get("state").await.code, 204);
    let refused = lab.put("state?lock=a", &state(1, 0)).await;
    assert_eq!((refused.code, refused.reason().as_str(), refused.problem().holder), (423, LOCKED, None));
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200, "again, after a lost answer");
    let other = lab.put("lock", &lock("b")).await;
    assert_eq!((other.code, other.problem().holder.unwrap()["ID"].clone()), (423, json!("a")));
    assert_eq!(lab.put("state?lock=b", &state(1, 0)).await.reason(), LOCKED);
    for (serial, size) in [(1, 0), (2, 400_000), (3, 10)] {
        let body = state(serial, size);
        assert_eq!(lab.put("state?lock=a", &body).await.code, 200);
        let read = lab.get("state").await;
        assert!(read.body.as_deref() == Some(body.as_slice()) && read.headers[HEADER_DIGEST] == digest(&body).as_str());
    }
    assert_eq!(lab.put("state?lock=a", &state(3, 10)).await.code, 200, "again, after a lost answer");
    assert_eq!(lab.of_pod("pod-1", "DELETE", 1, "lock?lock=b", b"").await.reason(), LOCKED);
    assert_eq!(lab.of_pod("pod-1", "DELETE", 1, "lock?lock=a", b"").await.code, 200);
    assert_eq!(lab.of_pod("pod-1", "DELETE", 1, "lock?lock=a", b"").await.code, 200, "again");
    assert_eq!(lab.put("state?lock=a", &state(4, 0)).await.reason(), LOCKED);
    let versions = lab.of_person("GET", "states/net", b"").await.json();
    assert_eq!(versions["versions"].as_array().unwrap().iter().map(|v| v["serial"].clone()).collect::<Vec<_>>(), [3, 2, 1]);
}

#[tokio::test]
async fn a_state_of_a_hundred_mebibytes() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    let body = state(1, 100 << 20);
    assert_eq!(lab.put("state?lock=a", &body).await.code, 200);
    assert!(lab.get("state").await.body.as_deref() == Some(body.as_slice()));
    assert_eq!(lab.put("state?lock=a", &state(2, 10)).await.code, 200);
    let old = lab.of_person("GET", "states/net/download?version=1", b"").await;
    assert!(old.body.as_deref() == Some(body.as_slice()), "an older version of that size is read as well");
}

#[tokio::test]
async fn of_many_that_want_a_lock_one_has_it() {
    let lab = Lab::new();
    let key = StateKey::new("team", StateId { stack: "net".into(), workspace: "default".into() }).unwrap();
    let run = view(1, true);
    let lockers = (0..12).map(|n| {
        // Each in a replica of its own.
        let (service, key, run) = (super::service(lab.folder.path(), lab.keys.path(), &lab.cluster), key.clone(), run.clone());
        tokio::spawn(async move {
            let pod_uid = format!("pod-{n}");
            let holder = crate::datastore::state::lock::Holder { run: &run, attempt: 1, pod_uid: &pod_uid };
            let id = format!("lock-{n}");
            service.0.states.lock(&key, &holder, &lock(&id), &service.0.lookup).await.map(|()| id)
        })
    });
    let outcomes: Vec<_> = futures::future::join_all(lockers).await.into_iter().map(Result::unwrap).collect();
    let winners: Vec<_> = outcomes.iter().flatten().collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    let held = lab.service.states.holder(&key).await.unwrap().unwrap();
    assert_eq!(&held.id, winners[0]);
    for problem in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        assert_eq!((problem.reason.as_str(), problem.holder.as_ref().unwrap()["ID"].as_str()), (LOCKED, Some(held.id.as_str())));
    }
}

#[tokio::test]
async fn a_replaced_attempt_writes_late_and_lands_nothing() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    assert_eq!(lab.put("state?lock=a", &state(1, 0)).await.code, 200);
    lab.cluster.set(view(2, true));
    assert_eq!(lab.of_pod("pod-2", "PUT", 2, "lock", &lock("b")).await.code, 200, "its holder can write no more");
    assert_eq!(lab.of_pod("pod-2", "PUT", 2, "state?lock=b", &state(2, 0)).await.code, 200);
    for rest in ["state?lock=a", "state?lock=b"] {
        assert_eq!(lab.put(rest, &state(9, 0)).await.reason(), REPLACED);
        assert_eq!(lab.of_pod("pod-1", "PUT", 2, rest, &state(9, 0)).await.reason(), REPLACED);
    }
    assert_eq!(lab.of_pod("pod-1", "DELETE", 1, "lock?lock=b", b"").await.reason(), REPLACED);
    assert_eq!(lab.of_pod("pod-2", "GET", 2, "state", b"").await.json()["serial"], 2);
    let notes = lab.of_person("GET", "states/net", b"").await.json()["notes"].clone();
    assert!(notes[0]["what"].as_str().unwrap().contains("taken over"), "{notes}");
}

/// The write was let in while the attempt was open, and its body took until the lock was somebody else's.
#[tokio::test]
async fn a_body_that_was_on_its_way_when_the_lock_was_taken_over_lands_nothing() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
    let body = axum::body::Body::from_stream(futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    }));
    let path = format!("{}/state?lock=a", attempt_path("team", "net", 1));
    let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE)];
    let late = async {
        sender.send(Ok(state(1, 0).into())).await.unwrap();
        lab.cluster.set(view(2, true));
        assert_eq!(lab.of_pod("pod-2", "PUT", 2, "lock", &lock("b")).await.code, 200);
        drop(sender);
    };
    let (answer, ()) = tokio::join!(lab.send("PUT", &path, &headers, body), late);
    let problem = answer.problem();
    assert_eq!((problem.reason.as_str(), problem.holder.unwrap()["ID"].as_str()), (LOCKED, Some("b")));
    assert_eq!(lab.of_pod("pod-2", "GET", 2, "state", b"").await.code, 204);
}

#[tokio::test]
async fn behind_its_claim_a_lock_is_nobody_elses_and_its_holder_still_writes() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    lab.cluster.set(RunView { claim: Some(claim(1)), terminal: true, ..view(1, false) });
    let next = RunView { name: "next".into(), uid: "33333333-3333".into(), ..view(1, true) };
    let holder = crate::datastore::state::lock::Holder { run: &next, attempt: 1, pod_uid: "x" };
    let key = StateKey::new("team", next.state.clone()).unwrap();
    let refused = lab.service.states.lock(&key, &holder, &lock("b"), &lab.service.lookup).await.unwrap_err();
    assert_eq!(refused.reason, LOCKED);
    assert_eq!(lab.put("state?lock=a", &state(5, 0)).await.code, 200);
    assert_eq!(lab.put("lock", &lock("c")).await.reason(), REPLACED, "but takes no further lock");
    assert_eq!(lab.of_pod("pod-1", "DELETE", 1, "lock?lock=a", b"").await.code, 200);
    assert!(lab.service.states.lock(&key, &holder, &lock("b"), &lab.service.lookup).await.is_ok());
    assert_eq!(lab.put("state?lock=a", &state(6, 0)).await.reason(), LOCKED);
}

#[tokio::test]
async fn the_controller_releases_the_lock_that_a_run_left_and_its_writer_is_fenced() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    // The name of a run is known from the first that its pod sends.
    assert!(lab.put("log/setup?offset=0", b"x").await.code < 300);
    assert_eq!(lab.of_controller("DELETE", "lock").await.reason(), FORBIDDEN, "its attempt could take the lock again");
    let mut closed = RunView { claim: Some(claim(1)), terminal: true, ..view(1, false) };
    lab.cluster.set(closed.clone());
    assert_eq!(lab.put("state?lock=a", &state(1, 0)).await.code, 200, "behind the claim");
    assert_eq!(lab.of_controller("DELETE", "lock").await.code, 200);
    assert_eq!(lab.put("state?lock=a", &state(2, 0)).await.reason(), LOCKED, "late");
    assert_eq!(lab.put("lock", &lock("a")).await.reason(), REPLACED);
    let next = RunView { name: "next".into(), uid: "33333333-3333".into(), ..view(1, true) };
    let holder = crate::datastore::state::lock::Holder { run: &next, attempt: 1, pod_uid: "x" };
    let key = StateKey::new("team", next.state.clone()).unwrap();
    assert!(lab.service.states.lock(&key, &holder, &lock("b"), &lab.service.lookup).await.is_ok());
    assert_eq!(lab.of_controller("DELETE", "lock").await.code, 200, "again");
    assert_eq!(lab.service.states.holder(&key).await.unwrap().unwrap().id, "b", "another run's lock stays");
    closed.uid = "44444444-4444".into();
    lab.cluster.set(closed);
    assert_eq!(lab.of_controller("DELETE", "lock").await.code, 404, "another run of the name");
    let notes = lab.of_person("GET", "states/net", b"").await.json()["notes"].clone();
    assert!(notes.to_string().contains("has ended or was given up"), "{notes}");
}

#[tokio::test]
async fn runs_of_another_stack_or_workspace_have_another_state() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    assert_eq!(lab.put("state?lock=a", &state(1, 0)).await.code, 200);
    for (stack, workspace) in [("other", "default"), ("net", "b")] {
        lab.cluster.set(RunView { state: StateId { stack: stack.into(), workspace: workspace.into() }, ..view(1, true) });
        assert_eq!(lab.get("state").await.code, 204, "{stack} {workspace}");
        assert_eq!(lab.put("state?lock=a", &state(1, 0)).await.reason(), LOCKED);
    }
}

#[tokio::test]
async fn a_state_with_a_wrong_digest_is_no_version() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    let path = format!("{}/state?lock=a", attempt_path("team", "net", 1));
    let said = digest(b"x");
    let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE), (HEADER_DIGEST, said.as_str())];
    assert_eq!(lab.send("PUT", &path, &headers, state(1, 300_000)).await.reason(), WRONG_DIGEST);
    assert_eq!(lab.get("state").await.code, 204);
    assert!(!lab.files().iter().any(|path| path.to_string_lossy().contains("/blobs/")));
}

#[tokio::test]
async fn the_last_versions_are_kept_and_old_ones_restored() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    for serial in 1..=70 {
        let size = if serial % 7 == 0 { 300_000 } else { 10 };
        assert_eq!(lab.put("state?lock=a", &state(serial, size)).await.code, 200);
    }
    let body = |version: u64| format!(r#"{{"version": {version}, "reason": "the last one broke"}}"#).into_bytes();
    let locked = lab.of_person("POST", "states/net/restore", &body(68)).await;
    assert_eq!((locked.code, locked.json()["reason"].clone()), (409, json!("Conflict")));
    assert_eq!(lab.of_pod("pod-1", "DELETE", 1, "lock?lock=a", b"").await.code, 200);
    assert_eq!(lab.of_person("POST", "states/net/restore", br#"{"version": 68}"#).await.code, 400, "no reason");
    assert_eq!(lab.of_person("POST", "states/net/restore", &body(6)).await.json()["reason"], json!(NOT_FOUND));
    for (from, to) in [(7, 71), (68, 72)] {
        let made = lab.of_person("POST", "states/net/restore", &body(from)).await;
        assert_eq!((made.code, &made.json()["number"], &made.json()["serial"]), (201, &json!(to), &json!(to)), "{made:?}");
        let newest = lab.get("state").await.json();
        let old = serde_json::from_slice::<serde_json::Value>(&state(from, if from % 7 == 0 { 300_000 } else { 10 })).unwrap();
        assert_eq!((&newest["serial"], &newest["outputs"]), (&json!(to), &old["outputs"]));
    }
    let shown = lab.of_person("GET", "states/net?workspace=default", b"").await.json();
    let numbers: Vec<u64> = shown["versions"].as_array().unwrap().iter().map(|v| v["number"].as_u64().unwrap()).collect();
    assert_eq!((numbers.len(), numbers[0], numbers[63]), (64, 72, 9));
    assert_eq!((&shown["versions"][0]["by"], &shown["versions"][0]["reason"]), (&json!("ada"), &json!("the last one broke")));
    for number in numbers {
        let read = lab.of_person("GET", &format!("states/net/download?version={number}"), b"").await;
        assert_eq!(read.headers[HEADER_DIGEST], digest(&read.body.unwrap()).as_str(), "{number}");
    }
}

#[tokio::test]
async fn a_person_unlocks_with_a_reason() {
    let lab = Lab::new();
    assert_eq!(lab.of_person("POST", "states/net/unlock", br#"{"reason": "x"}"#).await.code, 404);
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    let shown = lab.of_person("GET", "states", b"").await.json();
    assert_eq!((&shown["items"][0]["lock"]["id"], &shown["items"][0]["stack"]), (&json!("a"), &json!("net")));
    for bad in [&b"{}"[..], br#"{"reason": "  "}"#, br#"{"reason": "a\nb"}"#, b"x", b""] {
        assert_eq!(lab.of_person("POST", "states/net/unlock", bad).await.code, 400);
    }
    let removed = lab.of_person("POST", "states/net/unlock", br#"{"reason": "its node burned down"}"#).await;
    assert_eq!((removed.code, &removed.json()["removed"]["run"]), (200, &json!("net")));
    assert_eq!(lab.put("state?lock=a", &state(1, 0)).await.reason(), LOCKED);
    let note = lab.of_person("GET", "states/net", b"").await.json()["notes"][0].clone();
    assert_eq!((&note["by"], &note["reason"]), (&json!("ada"), &json!("its node burned down")));
}
