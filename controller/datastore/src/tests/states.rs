//! Managed states and their locks.

use futures::FutureExt as _;
use serde_json::{Value, json};

use crds::datastore::{
    HEADER_DIGEST, HEADER_NONCE, LOCKED, ObjectKind, Problem, StateId, attempt_path,
};

use super::{Answer, Lab, NONCE, claim, digest, noise, view};
use crate::{cluster::RunView, names::StateKey, state::lock::Holder, testing::NAMESPACE_UID};

pub(super) fn lock(id: &str) -> Vec<u8> {
    json!({"ID": id, "Operation": "OperationTypeApply", "Who": "agent", "Version": "1.10.6", "Created": "2026-11-21T00:00:00Z"})
        .to_string()
        .into_bytes()
}

pub(super) fn state(serial: u64, more: usize) -> Vec<u8> {
    let filler: String = noise(more, serial)
        .iter()
        .map(|byte| char::from(b'a' + byte % 26))
        .collect();
    format!(
        r#"{{"version": 4, "serial": {serial}, "lineage": "3f8a", "outputs": {{"x": "{filler}"}}}}"#
    )
    .into_bytes()
}

fn key() -> StateKey {
    StateKey::new("team", view(1, true).state).unwrap()
}

impl Lab {
    /// A claimed run that holds the lock `a`.
    pub(super) async fn locked() -> Self {
        let lab = Self::claimed();
        lab.asks("pod-1", &[("PUT lock", &lock("a"), "200")]).await;
        lab
    }

    /// Another run of the stack requests the lock `b`.
    async fn next_locks(&self) -> Result<(), Problem> {
        let run = RunView {
            name: "next".into(),
            uid: "33333333-3333".into(),
            ..view(1, true)
        };
        let holder = Holder {
            run: &run,
            attempt: 1,
            pod_uid: "x",
        };
        self.service
            .states
            .lock(
                &key(),
                &holder,
                NAMESPACE_UID,
                &lock("b"),
                &self.service.lookup,
            )
            .await
    }

    pub(super) async fn shown(&self) -> Value {
        self.of_person("GET", "states/net", b"").await.json()
    }

    /// A person changes the state `net`; the code and the answer.
    pub(super) async fn change(&self, change: &str, body: &str) -> (u16, Value) {
        let answer = self
            .of_person("POST", &format!("states/net/{change}"), body.as_bytes())
            .await;
        (answer.code, answer.json())
    }
}

#[tokio::test]
async fn sensitive_outputs_of_a_state_are_counted_and_not_shown() {
    let lab = Lab::locked().await;
    let none = lab.of_person("GET", "states/net/outputs", b"").await;
    assert_eq!(none.code, 404);
    let outputs = json!({"id": {"value": "vpc-1", "type": "string"}, "zones": {"value": ["a"], "type": ["list", "string"]},
        "password": {"value": "hunter22", "type": "string", "sensitive": true}});
    let state = json!({"version": 4, "serial": 1, "lineage": "3f8a", "outputs": outputs});
    lab.asks(
        "pod-1",
        &[("PUT state?lock=a", state.to_string().as_bytes(), "200")],
    )
    .await;
    let shown = lab.of_person("GET", "states/net/outputs", b"").await;
    assert!(!shown.text().contains("hunter22"), "{}", shown.text());
    let shown = shown.json();
    assert_eq!(
        (&shown["outputs"], &shown["sensitive"], &shown["version"]),
        (
            &json!({"id": "vpc-1", "zones": ["a"]}),
            &json!(1),
            &json!(1)
        )
    );
    // Uploads take no places of its readers.
    let uploads = std::iter::from_fn(|| lab.service.transfer(ObjectKind::Plan).now_or_never());
    let held: Vec<_> = uploads.collect();
    assert!(!held.is_empty());
    assert_eq!(
        lab.of_person("GET", "states/net/outputs", b"").await.code,
        200
    );
    drop(held);
    // The tool encrypted it, so its content is not known.
    let state = json!({"encrypted_data": "x", "encryption_version": "v0", "serial": 2});
    lab.asks(
        "pod-1",
        &[("PUT state?lock=a", state.to_string().as_bytes(), "200")],
    )
    .await;
    let refused = lab.of_person("GET", "states/net/outputs", b"").await;
    assert!(refused.code >= 400, "{}", refused.text());
}

#[tokio::test]
async fn state_write_needs_the_lock() {
    let lab = Lab::claimed();
    let refused = lab.put("state?lock=a", &state(1, 0)).await;
    assert_eq!(
        (refused.brief().as_str(), refused.problem().holder),
        ("423 Locked", None)
    );
    // The second request follows a lost answer.
    let locks = [
        ("GET state", &b""[..], "204"),
        ("PUT lock", &lock("a"), "200"),
        ("PUT lock", &lock("a"), "200"),
    ];
    lab.asks("pod-1", &locks).await;
    let other = lab.put("lock", &lock("b")).await;
    assert_eq!(
        (other.code, &other.problem().holder.unwrap()["ID"]),
        (423, &json!("a"))
    );
    lab.asks("pod-1", &[("PUT state?lock=b", &state(1, 0), "423 Locked")])
        .await;
    for (serial, size) in [(1, 0), (2, 400_000), (3, 10)] {
        let body = state(serial, size);
        lab.asks("pod-1", &[("PUT state?lock=a", &body, "200")])
            .await;
        let read = lab.get("state").await;
        assert!(read.body.as_deref() == Some(body.as_slice()));
        assert_eq!(read.headers[HEADER_DIGEST], digest(&body).as_str());
    }
    let requests = [
        // Repeated after a lost answer, as is the second release.
        ("PUT state?lock=a", &state(3, 10)[..], "200"),
        ("DELETE lock?lock=b", b"", "423 Locked"),
        ("DELETE lock?lock=a", b"", "200"),
        ("DELETE lock?lock=a", b"", "200"),
        ("PUT state?lock=a", &state(4, 0), "423 Locked"),
    ];
    lab.asks("pod-1", &requests).await;
    let versions = lab.shown().await["versions"].as_array().unwrap().clone();
    assert_eq!(
        versions
            .iter()
            .map(|v| v["serial"].clone())
            .collect::<Vec<_>>(),
        [3, 2, 1]
    );
}

#[tokio::test]
async fn a_state_of_a_hundred_mebibytes() {
    let (lab, body) = (Lab::locked().await, state(1, 100 << 20));
    lab.asks("pod-1", &[("PUT state?lock=a", &body, "200")])
        .await;
    assert!(lab.get("state").await.body.as_deref() == Some(body.as_slice()));
    lab.asks("pod-1", &[("PUT state?lock=a", &state(2, 10), "200")])
        .await;
    let old = lab
        .of_person("GET", "states/net/download?version=1", b"")
        .await;
    assert!(
        old.body.as_deref() == Some(body.as_slice()),
        "an older version"
    );
}

#[tokio::test]
async fn late_state_write_of_a_replaced_attempt_is_rejected() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT lock", &lock("a"), "200")]).await;
    lab.cluster.set(view(2, true));
    // The holder can write no more.
    lab.asks("pod-2", &[("PUT lock", &lock("b"), "200")]).await;
    lab.cluster.set(RunView {
        claim: Some(claim(2)),
        ..view(2, true)
    });
    lab.asks("pod-2", &[("PUT state?lock=b", &state(2, 0), "200")])
        .await;
    for rest in ["PUT state?lock=a", "PUT state?lock=b", "DELETE lock?lock=b"] {
        lab.asks("pod-1", &[(rest, &state(9, 0), "403 AttemptReplaced")])
            .await;
        let (method, path) = rest.split_once(' ').unwrap();
        let answer = lab.of_pod("pod-1", method, 2, path, &state(9, 0)).await;
        assert_eq!(
            answer.brief(),
            "403 AttemptReplaced",
            "{rest} with the number of the newest"
        );
    }
    assert_eq!(
        lab.of_pod("pod-2", "GET", 2, "state", b"").await.json()["serial"],
        2
    );
    let notes = lab.shown().await["notes"].clone();
    assert!(
        notes[0]["what"].as_str().unwrap().contains("taken over"),
        "{notes}"
    );
}

/// The datastore admits a write while its run holds the lock. The body arrives after the lock has changed hands.
#[tokio::test]
async fn body_in_flight_is_rejected_after_its_lock_is_removed() {
    let lab = Lab::locked().await;
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
    let body = axum::body::Body::from_stream(futures::stream::unfold(
        receiver,
        |mut receiver| async move { receiver.recv().await.map(|piece| (piece, receiver)) },
    ));
    let path = format!("{}/state?lock=a", attempt_path("team", "net", 1));
    let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE)];
    let late = async {
        // The channel has room for one chunk. So when the second is sent, the service reads the first, and has admitted the write.
        let body = state(1, 0);
        for piece in body.chunks(body.len().div_ceil(2)) {
            sender.send(Ok(piece.to_vec().into())).await.unwrap();
        }
        assert_eq!(
            lab.change("unlock", r#"{"reason": "its node burned down"}"#)
                .await
                .0,
            200
        );
        lab.next_locks().await.unwrap();
        drop(sender);
    };
    let (answer, ()) = tokio::join!(lab.send("PUT", &path, &headers, body), late);
    let problem = answer.problem();
    assert_eq!(
        (problem.reason.as_str(), &problem.holder.unwrap()["ID"]),
        (LOCKED, &json!("b"))
    );
    assert_eq!(lab.get("state").await.code, 204);
}

#[tokio::test]
async fn claimed_lock_is_not_taken_over_and_its_holder_still_writes() {
    let lab = Lab::locked().await;
    lab.cluster.set(RunView {
        claim: Some(claim(1)),
        terminal: true,
        ..view(1, false)
    });
    assert_eq!(lab.next_locks().await.unwrap_err().reason, LOCKED);
    let requests = [
        ("PUT state?lock=a", &state(5, 0)[..], "200"),
        ("PUT lock", &lock("c"), "403 AttemptReplaced"),
        ("DELETE lock?lock=a", b"", "200"),
    ];
    lab.asks("pod-1", &requests).await;
    lab.next_locks().await.unwrap();
    lab.asks("pod-1", &[("PUT state?lock=a", &state(6, 0), "423 Locked")])
        .await;
}

#[tokio::test]
async fn controller_releases_a_left_lock_and_fences_its_writer() {
    let lab = Lab::new();
    // The first request of a run's pod records the run's name.
    lab.asks(
        "pod-1",
        &[
            ("PUT lock", &lock("a"), "200"),
            ("PUT log/setup?offset=0", b"x", "200"),
        ],
    )
    .await;
    let release = async || lab.of_controller("DELETE", "/lock").await.brief();
    assert_eq!(
        release().await,
        "403 Forbidden",
        "its attempt could take the lock again"
    );
    let mut closed = RunView {
        claim: Some(claim(1)),
        terminal: true,
        ..view(1, false)
    };
    lab.cluster.set(closed.clone());
    lab.asks("pod-1", &[("PUT state?lock=a", &state(1, 0), "200")])
        .await;
    assert_eq!(release().await, "200");
    let late = [
        ("PUT state?lock=a", &state(2, 0)[..], "423 Locked"),
        ("PUT lock", &lock("a"), "403 AttemptReplaced"),
    ];
    lab.asks("pod-1", &late).await;
    lab.next_locks().await.unwrap();
    assert_eq!(release().await, "200", "again");
    let held = lab.service.states.holder(&key()).await.unwrap().unwrap();
    assert_eq!(held.id, "b", "another run's lock stays");
    closed.uid = "44444444-4444".into();
    lab.cluster.set(closed);
    assert_eq!(release().await, "404 NotFound", "another run of the name");
    let notes = lab.shown().await["notes"].to_string();
    assert!(notes.contains("has ended or was abandoned"), "{notes}");
}

#[tokio::test]
async fn other_stack_or_workspace_has_another_state() {
    let lab = Lab::locked().await;
    lab.asks("pod-1", &[("PUT state?lock=a", &state(1, 0), "200")])
        .await;
    for (stack, workspace) in [("other", "default"), ("net", "b")] {
        let state_id = StateId {
            stack: stack.into(),
            workspace: workspace.into(),
        };
        lab.cluster.set(RunView {
            state: state_id,
            claim: Some(claim(1)),
            ..view(1, true)
        });
        let requests = [
            ("GET state", &b""[..], "204"),
            ("PUT state?lock=a", &state(1, 0), "423 Locked"),
        ];
        lab.asks("pod-1", &requests).await;
    }
}

#[tokio::test]
async fn state_with_a_wrong_digest_is_rejected() {
    let lab = Lab::locked().await;
    let (path, said) = (
        format!("{}/state?lock=a", attempt_path("team", "net", 1)),
        digest(b"x"),
    );
    let headers = [
        ("authorization", "Bearer pod-1"),
        (HEADER_NONCE, NONCE),
        (HEADER_DIGEST, said.as_str()),
    ];
    let answer = lab.send("PUT", &path, &headers, state(1, 300_000)).await;
    assert_eq!(
        (answer.brief().as_str(), lab.get("state").await.code),
        ("422 WrongDigest", 204)
    );
    assert!(
        !lab.files()
            .iter()
            .any(|path| path.to_string_lossy().contains("/blobs/"))
    );
}

#[tokio::test]
async fn the_last_versions_are_kept_and_old_ones_restored() {
    let lab = Lab::locked().await;
    let size = |serial: u64| {
        if serial.is_multiple_of(7) {
            300_000
        } else {
            10
        }
    };
    for serial in 1..=70 {
        lab.asks(
            "pod-1",
            &[("PUT state?lock=a", &state(serial, size(serial)), "200")],
        )
        .await;
    }
    let restore = async |version: u64| {
        lab.change(
            "restore",
            &format!(r#"{{"version": {version}, "reason": "the last one broke"}}"#),
        )
        .await
    };
    let (code, locked) = restore(68).await;
    assert_eq!((code, &locked["reason"]), (409, &json!("Conflict")));
    lab.asks("pod-1", &[("DELETE lock?lock=a", b"", "200")])
        .await;
    for incomplete in [r#"{"version": 68}"#, r#"{"reason": "the last one broke"}"#] {
        assert_eq!(
            lab.change("restore", incomplete).await.0,
            400,
            "{incomplete}"
        );
    }
    assert_eq!(restore(6).await.0, 404);
    for (from, to) in [(7, 71), (68, 72)] {
        let (code, made) = restore(from).await;
        assert_eq!(
            (code, &made["number"], &made["serial"]),
            (201, &json!(to), &json!(to)),
            "{made}"
        );
        let newest = lab.get("state").await.json();
        let old: Value = serde_json::from_slice(&state(from, size(from))).unwrap();
        assert_eq!(
            (&newest["serial"], &newest["outputs"]),
            (&json!(to), &old["outputs"])
        );
    }
    let shown = lab
        .of_person("GET", "states/net?workspace=default", b"")
        .await
        .json();
    let versions = shown["versions"].as_array().unwrap();
    let numbers: Vec<u64> = versions
        .iter()
        .map(|v| v["number"].as_u64().unwrap())
        .collect();
    assert_eq!((numbers.len(), numbers[0], numbers[63]), (64, 72, 9));
    assert_eq!(
        (&versions[0]["by"], &versions[0]["reason"]),
        (&json!("ada"), &json!("the last one broke"))
    );
    for number in numbers {
        let read = lab
            .of_person("GET", &format!("states/net/download?version={number}"), b"")
            .await;
        assert_eq!(
            read.headers[HEADER_DIGEST],
            digest(&read.body.unwrap()).as_str(),
            "{number}"
        );
    }
}

#[tokio::test]
async fn person_unlocks_with_a_reason() {
    let lab = Lab::claimed();
    assert_eq!(lab.change("unlock", r#"{"reason": "x"}"#).await.0, 404);
    lab.asks("pod-1", &[("PUT lock", &lock("a"), "200")]).await;
    let item = lab.of_person("GET", "states", b"").await.json()["items"][0].clone();
    assert_eq!(
        (&item["lock"]["id"], &item["stack"]),
        (&json!("a"), &json!("net"))
    );
    for bad in [
        "{}",
        r#"{"reason": "  "}"#,
        r#"{"reason": "a\nb"}"#,
        "x",
        "",
    ] {
        assert_eq!(lab.change("unlock", bad).await.0, 400, "{bad}");
    }
    let (code, removed) = lab
        .change("unlock", r#"{"reason": "its node burned down"}"#)
        .await;
    assert_eq!((code, &removed["removed"]["run"]), (200, &json!("net")));
    lab.asks("pod-1", &[("PUT state?lock=a", &state(1, 0), "423 Locked")])
        .await;
    let note = lab.shown().await["notes"][0].clone();
    assert_eq!(
        (&note["by"], &note["reason"]),
        (&json!("ada"), &json!("its node burned down"))
    );
}

/// The record of the last apply, as the run's pod reads it.
async fn last(lab: &Lab) -> Value {
    let answer = lab.get("laststate").await;
    match answer.code {
        204 => Value::Null,
        _ => answer.json(),
    }
}

#[tokio::test]
async fn last_state_is_that_of_the_last_apply_wherever_it_is() {
    let lab = Lab::new();
    let elsewhere = |lineage: &str| json!({"backend": "s3", "key": "sha256:1", "lineage": lineage, "serial": 7});
    let body = |lineage| elsewhere(lineage).to_string().into_bytes();
    assert_eq!(last(&lab).await, Value::Null);
    lab.asks("pod-1", &[("PUT laststate", &body("a"), "403 Forbidden")])
        .await;
    lab.cluster.set(RunView {
        claim: Some(claim(1)),
        ..view(1, true)
    });
    lab.asks("pod-1", &[("PUT laststate", &body("a"), "200")])
        .await;
    assert_eq!(last(&lab).await, elsewhere("a"));
    let states = lab.of_person("GET", "states", b"").await.json();
    assert_eq!(
        states["items"],
        json!([]),
        "it is no state of the datastore"
    );
    // Nor does it take a place in the list.
    let id = StateId {
        stack: "zone".into(),
        ..key().id().clone()
    };
    let kept = RunView {
        state: id,
        ..view(1, true)
    };
    let holder = Holder {
        run: &kept,
        attempt: 1,
        pod_uid: "x",
    };
    let of_kept = StateKey::new("team", kept.state.clone()).unwrap();
    let locks = &lab.service.states;
    let asked = lock("z");
    let locked = locks.lock(
        &of_kept,
        &holder,
        NAMESPACE_UID,
        &asked,
        &lab.service.lookup,
    );
    locked.await.unwrap();
    let one = crate::http::read::states::list(&lab.service, "team", 1).await;
    let one = Answer::of(one.unwrap()).await.json();
    assert_eq!(one["items"][0]["stack"], "zone", "{one}");
    // An apply that keeps its state here is the last one.
    let requests = [
        ("PUT lock", &lock("a")[..], "200"),
        ("PUT state?lock=a", &state(3, 0), "200"),
    ];
    lab.asks("pod-1", &requests).await;
    let managed = last(&lab).await;
    assert_eq!(
        (&managed["backend"], &managed["lineage"], &managed["serial"]),
        (&json!("managed"), &json!("3f8a"), &json!(3))
    );
    lab.asks("pod-1", &[("PUT laststate", &body("b"), "200")])
        .await;
    assert_eq!(last(&lab).await, elsewhere("b"));
    // A namespace of the same name has other stacks.
    let other = lab
        .service
        .states
        .last(&key(), "33333333-3333-3333")
        .await
        .unwrap();
    assert_eq!(other, None);
}
