//! Managed states and their locks.

use serde_json::json;

use crds::datastore::{
    FORBIDDEN, FORMER_NAMESPACE, HEADER_DIGEST, HEADER_NONCE, LOCKED, NOT_FOUND, REPLACED, StateId, WRONG_DIGEST, attempt_path,
};
use serving::auth::Identity;

use super::{Lab, NONCE, digest, noise, pod, view};
use crate::{auth::caller::tests::claim, cluster::RunView, names::StateKey, testing::NAMESPACE_UID};

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
async fn state_write_needs_the_lock() {
    let lab = Lab::claimed();
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
async fn state_of_100_mib_round_trips() {
    let lab = Lab::claimed();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    let body = state(1, 100 << 20);
    assert_eq!(lab.put("state?lock=a", &body).await.code, 200);
    assert!(lab.get("state").await.body.as_deref() == Some(body.as_slice()));
    assert_eq!(lab.put("state?lock=a", &state(2, 10)).await.code, 200);
    let old = lab.of_person("GET", "states/net/download?version=1", b"").await;
    assert!(old.body.as_deref() == Some(body.as_slice()), "an older version of that size is read as well");
}

#[tokio::test]
async fn concurrent_lock_requests_have_one_winner() {
    let lab = Lab::new();
    let key = StateKey::new("team", StateId { stack: "net".into(), workspace: "default".into() }).unwrap();
    let run = view(1, true);
    let lockers = (0..12).map(|n| {
        // Each in a separate replica.
        let (service, key, run) = (super::service(lab.folder.path(), lab.keys.path(), &lab.cluster), key.clone(), run.clone());
        tokio::spawn(async move {
            let pod_uid = format!("pod-{n}");
            let holder = crate::state::lock::Holder { run: &run, attempt: 1, pod_uid: &pod_uid };
            let id = format!("lock-{n}");
            service.0.states.lock(&key, &holder, NAMESPACE_UID, &lock(&id), &service.0.lookup).await.map(|()| id)
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
async fn late_state_write_of_a_replaced_attempt_is_rejected() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    lab.cluster.set(view(2, true));
    assert_eq!(lab.of_pod("pod-2", "PUT", 2, "lock", &lock("b")).await.code, 200, "its holder can write no more");
    lab.cluster.set(RunView { claim: Some(claim(2)), ..view(2, true) });
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

/// The datastore admits a write while its run holds the lock. The body arrives after the lock has changed hands.
#[tokio::test]
async fn body_in_flight_is_rejected_after_its_lock_is_removed() {
    let lab = Lab::claimed();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
    let body = axum::body::Body::from_stream(futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    }));
    let path = format!("{}/state?lock=a", attempt_path("team", "net", 1));
    let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE)];
    let late = async {
        // The channel has room for one chunk. So when the second is sent, the service reads the first, and has admitted the write.
        let body = state(1, 0);
        for piece in body.chunks(body.len().div_ceil(2)) {
            sender.send(Ok(piece.to_vec().into())).await.unwrap();
        }
        let removed = lab.of_person("POST", "states/net/unlock", br#"{"reason": "its node burned down"}"#).await;
        assert_eq!(removed.code, 200);
        let next = RunView { name: "next".into(), uid: "33333333-3333".into(), ..view(1, true) };
        let holder = crate::state::lock::Holder { run: &next, attempt: 1, pod_uid: "x" };
        let key = StateKey::new("team", next.state.clone()).unwrap();
        lab.service.states.lock(&key, &holder, NAMESPACE_UID, &lock("b"), &lab.service.lookup).await.unwrap();
        drop(sender);
    };
    let (answer, ()) = tokio::join!(lab.send("PUT", &path, &headers, body), late);
    let problem = answer.problem();
    assert_eq!((problem.reason.as_str(), problem.holder.unwrap()["ID"].as_str()), (LOCKED, Some("b")));
    assert_eq!(lab.get("state").await.code, 204);
}

#[tokio::test]
async fn claimed_lock_is_not_taken_over_and_its_holder_still_writes() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    lab.cluster.set(RunView { claim: Some(claim(1)), terminal: true, ..view(1, false) });
    let next = RunView { name: "next".into(), uid: "33333333-3333".into(), ..view(1, true) };
    let holder = crate::state::lock::Holder { run: &next, attempt: 1, pod_uid: "x" };
    let key = StateKey::new("team", next.state.clone()).unwrap();
    let refused = lab.service.states.lock(&key, &holder, NAMESPACE_UID, &lock("b"), &lab.service.lookup).await.unwrap_err();
    assert_eq!(refused.reason, LOCKED);
    assert_eq!(lab.put("state?lock=a", &state(5, 0)).await.code, 200);
    assert_eq!(lab.put("lock", &lock("c")).await.reason(), REPLACED, "but takes no further lock");
    assert_eq!(lab.of_pod("pod-1", "DELETE", 1, "lock?lock=a", b"").await.code, 200);
    assert!(lab.service.states.lock(&key, &holder, NAMESPACE_UID, &lock("b"), &lab.service.lookup).await.is_ok());
    assert_eq!(lab.put("state?lock=a", &state(6, 0)).await.reason(), LOCKED);
}

#[tokio::test]
async fn controller_releases_a_left_lock_and_fences_its_writer() {
    let lab = Lab::new();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    // The first request of a run's pod records the run's name.
    assert!(lab.put("log/setup?offset=0", b"x").await.code < 300);
    assert_eq!(lab.of_controller("DELETE", "/lock").await.reason(), FORBIDDEN, "its attempt could take the lock again");
    let mut closed = RunView { claim: Some(claim(1)), terminal: true, ..view(1, false) };
    lab.cluster.set(closed.clone());
    assert_eq!(lab.put("state?lock=a", &state(1, 0)).await.code, 200, "after the claim");
    assert_eq!(lab.of_controller("DELETE", "/lock").await.code, 200);
    assert_eq!(lab.put("state?lock=a", &state(2, 0)).await.reason(), LOCKED, "late");
    assert_eq!(lab.put("lock", &lock("a")).await.reason(), REPLACED);
    let next = RunView { name: "next".into(), uid: "33333333-3333".into(), ..view(1, true) };
    let holder = crate::state::lock::Holder { run: &next, attempt: 1, pod_uid: "x" };
    let key = StateKey::new("team", next.state.clone()).unwrap();
    assert!(lab.service.states.lock(&key, &holder, NAMESPACE_UID, &lock("b"), &lab.service.lookup).await.is_ok());
    assert_eq!(lab.of_controller("DELETE", "/lock").await.code, 200, "again");
    assert_eq!(lab.service.states.holder(&key).await.unwrap().unwrap().id, "b", "another run's lock stays");
    closed.uid = "44444444-4444".into();
    lab.cluster.set(closed);
    assert_eq!(lab.of_controller("DELETE", "/lock").await.code, 404, "another run of the name");
    let notes = lab.of_person("GET", "states/net", b"").await.json()["notes"].clone();
    assert!(notes.to_string().contains("has ended or was abandoned"), "{notes}");
}

#[tokio::test]
async fn other_stack_or_workspace_has_another_state() {
    let lab = Lab::claimed();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    assert_eq!(lab.put("state?lock=a", &state(1, 0)).await.code, 200);
    for (stack, workspace) in [("other", "default"), ("net", "b")] {
        let state_id = StateId { stack: stack.into(), workspace: workspace.into() };
        lab.cluster.set(RunView { state: state_id, claim: Some(claim(1)), ..view(1, true) });
        assert_eq!(lab.get("state").await.code, 204, "{stack} {workspace}");
        assert_eq!(lab.put("state?lock=a", &state(1, 0)).await.reason(), LOCKED);
    }
}

#[tokio::test]
async fn state_with_a_wrong_digest_is_rejected() {
    let lab = Lab::claimed();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    let path = format!("{}/state?lock=a", attempt_path("team", "net", 1));
    let said = digest(b"x");
    let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE), (HEADER_DIGEST, said.as_str())];
    assert_eq!(lab.send("PUT", &path, &headers, state(1, 300_000)).await.reason(), WRONG_DIGEST);
    assert_eq!(lab.get("state").await.code, 204);
    assert!(!lab.files().iter().any(|path| path.to_string_lossy().contains("/blobs/")));
}

#[tokio::test]
async fn last_versions_are_retained_and_can_be_restored() {
    let lab = Lab::claimed();
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
async fn person_unlocks_with_a_reason() {
    let lab = Lab::claimed();
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

/// Deletes and recreates the namespace `team`, with a run of the same name; its pod has the token `new`.
fn made_again(lab: &Lab, namespace_uid: &str, run_uid: &str) {
    lab.cluster.namespaces.lock().unwrap().insert("team".into(), namespace_uid.into());
    let mut run = RunView { uid: run_uid.into(), ..view(1, true) };
    let own = pod(&run, 1);
    run.attempt = Some((1, own.name.clone(), true));
    if let Some(adopted) = &mut run.adopted {
        adopted.pod_uid.clone_from(&own.uid);
    }
    lab.cluster.token("new", Identity { user: "system:serviceaccount:team:net-1".into(), pod: Some(own), ..Identity::default() });
    lab.cluster.set(run);
}

#[tokio::test]
async fn recreated_namespace_does_not_get_the_former_state() {
    let lab = Lab::claimed();
    assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
    assert_eq!(lab.put("state?lock=a", &state(1, 0)).await.code, 200);
    assert_eq!(lab.of_pod("pod-1", "DELETE", 1, "lock?lock=a", b"").await.code, 200);
    assert_eq!(lab.of_person("GET", "states", b"").await.json()["items"][0]["namespaceUid"], NAMESPACE_UID);
    made_again(&lab, "66666666-6666", "77777777-7777");
    for (method, rest, body) in [("GET", "state", vec![]), ("PUT", "lock", lock("b"))] {
        let refused = lab.of_pod("new", method, 1, rest, &body).await;
        assert_eq!((refused.code, refused.reason().as_str()), (403, FORMER_NAMESPACE), "{method} {rest}");
        assert!(refused.problem().message.contains("states/net/handover"), "{refused:?}");
    }
    assert_eq!(lab.of_pod("new", "PUT", 1, "state?lock=b", &state(2, 0)).await.reason(), FORBIDDEN, "nothing without a claim");
    assert_eq!(lab.of_person("GET", "states/net", b"").await.json()["versionCount"], 1, "nothing was changed");

    let over = |body: &'static [u8]| lab.of_person("POST", "states/net/handover", body);
    assert_eq!(over(b"{}").await.code, 400, "no reason");
    assert_eq!(lab.of_person("POST", "states/none/handover", br#"{"reason": "x"}"#).await.code, 404);
    let answer = over(br#"{"reason": "the team moved"}"#).await;
    assert_eq!((answer.code, &answer.json()["items"][0]["handedOver"]), (200, &json!(true)));
    assert_eq!(over(br#"{"reason": "again"}"#).await.json()["items"][0]["handedOver"], false);
    assert_eq!(lab.of_pod("new", "GET", 1, "state", b"").await.json()["serial"], 1);
    assert_eq!(lab.of_pod("new", "PUT", 1, "lock", &lock("b")).await.code, 200);
    let notes = lab.of_person("GET", "states/net", b"").await.json()["notes"].clone();
    assert_eq!(
        (&notes[0]["by"], &notes[0]["reason"], notes.as_array().unwrap().len()),
        (&json!("ada"), &json!("the team moved"), 1)
    );
}

#[tokio::test]
async fn all_states_of_a_namespace_are_handed_over_at_once() {
    let lab = Lab::new();
    for (n, stack) in ["net", "dns"].into_iter().enumerate() {
        let state_id = StateId { stack: stack.into(), workspace: "a".into() };
        lab.cluster.set(RunView { state: state_id, claim: Some(claim(1)), ..view(1, true) });
        assert_eq!(lab.put("lock", &lock("a")).await.code, 200);
        assert_eq!(lab.put("state?lock=a", &state(n as u64, 0)).await.code, 200);
    }
    made_again(&lab, "66666666-6666", "77777777-7777");
    assert_eq!(lab.of_person("POST", "states/-/handover", br#"{"workspace": "a", "reason": "x"}"#).await.code, 400);
    let items = lab.of_person("POST", "states/-/handover", br#"{"reason": "the team moved"}"#).await.json()["items"].clone();
    let of = |n: usize| (items[n]["stack"].as_str().unwrap(), items[n]["handedOver"].as_bool().unwrap());
    assert_eq!((of(0), of(1)), (("dns", true), ("net", true)));
    let shown = lab.of_person("GET", "states", b"").await.json();
    assert!(shown["items"].as_array().unwrap().iter().all(|item| item["namespaceUid"] == "66666666-6666"), "{shown}");
}
