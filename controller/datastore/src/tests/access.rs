//! Rejected requests.

use std::{sync::atomic::Ordering, time::Duration};

use axum::body::Body;

use crds::{
    Claim, Operation,
    datastore::{FORBIDDEN, HEADER_NONCE, NOT_FOUND, REPLACED, UNAVAILABLE, attempt_path},
};
use serving::auth::{Identity, PodIdentity};

use super::{Lab, NONCE, claim, noise, pod, view};
use crate::cluster::RunView;

fn of_claim() -> Vec<u8> {
    serde_json::to_vec(&claim(1)).unwrap()
}

#[tokio::test]
async fn invalid_token_is_rejected_and_reviewed_once() {
    let lab = Lab::new();
    let path = format!("{}/objects/plan", attempt_path("team", "net", 1));
    let sent = async |tokens: &[&str]| {
        let tokens = tokens.iter().map(|token| ("authorization", *token));
        let headers: Vec<_> = tokens.chain([(HEADER_NONCE, NONCE)]).collect();
        lab.send("GET", &path, &headers, Body::empty())
            .await
            .brief()
    };
    let invalid = [
        "Bearer expired",
        "Bearer of-another-audience",
        "Basic abc",
        "Bearer ",
        "bearer pod-1",
        "",
    ];
    for value in invalid {
        assert_eq!(sent(&[value]).await, "401 Unauthenticated", "{value}");
    }
    assert_eq!(
        sent(&["Bearer pod-1", "Bearer pod-1"]).await,
        "401 Unauthenticated"
    );
    assert_eq!(sent(&[]).await, "401 Unauthenticated");
    let before = lab.cluster.reviewed.lock().unwrap().len();
    for _ in 0..5 {
        assert_eq!(sent(&["Bearer expired"]).await, "401 Unauthenticated");
        assert_eq!(lab.get("objects/plan").await.code, 404);
    }
    assert_eq!(lab.cluster.reviewed.lock().unwrap().len(), before + 1);
}

/// Burrito 11.22: any runner's token could read and overwrite any tenant's plan.
#[tokio::test]
async fn objects_of_another_run_are_forbidden() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT objects/plan", b"mine", "201")])
        .await;
    let mut other = RunView {
        name: "other".into(),
        uid: "11111111-1111".into(),
        ..view(1, true)
    };
    let mut own = pod(&other, 1);
    own.uid = "pod-of-other".into();
    other.attempt = Some((1, Some(own.uid.clone()), true));
    let user = "system:serviceaccount:team:x".to_owned();
    lab.cluster.token(
        "other",
        Identity {
            user,
            pod: Some(own),
            ..Identity::default()
        },
    );
    lab.cluster.set(other);
    for request in [
        "GET objects/plan",
        "PUT objects/plan",
        "GET state",
        "PUT log/plan?offset=0",
        "PUT claim",
    ] {
        lab.asks("other", &[(request, b"x", "403 Forbidden")]).await;
    }
    // A pod of another namespace cannot probe which runs exist.
    let user = "system:serviceaccount:b:x".to_owned();
    let stranger = PodIdentity {
        namespace: "b".into(),
        name: "p".into(),
        uid: "u".into(),
    };
    lab.cluster.token(
        "stranger",
        Identity {
            user,
            pod: Some(stranger),
            ..Identity::default()
        },
    );
    let path = format!("{}/claim", attempt_path("team", "no-such-run", 1));
    let answer = lab
        .send(
            "PUT",
            &path,
            &[("authorization", "Bearer stranger")],
            Body::empty(),
        )
        .await;
    assert_eq!(answer.reason(), FORBIDDEN);
}

#[tokio::test]
async fn replaced_attempt_writes_nothing() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT objects/bundle", b"of the first", "201")])
        .await;
    lab.cluster.set(view(2, true));
    let requests = [
        "GET objects/plan",
        "PUT objects/plan",
        "PUT claim",
        "PUT lock",
        "PUT state?lock=1",
        "GET state",
    ];
    for request in requests {
        lab.asks("pod-1", &[(request, b"{}", "403 AttemptReplaced")])
            .await;
    }
    let restored = lab.of_pod("pod-2", "GET", 1, "objects/bundle", b"").await;
    assert_eq!(restored.text(), "of the first", "the next one restores it");
    assert_eq!(
        lab.of_pod("pod-2", "PUT", 1, "objects/plan", b"x")
            .await
            .reason(),
        FORBIDDEN
    );
}

#[tokio::test]
async fn log_append_is_rejected_a_second_after_the_replacement() {
    let lab = Lab::new();
    let second = Duration::from_secs(1);
    let mut length = 0;
    // Repeat until two appends happen within one second, as they do at once on an idle machine.
    loop {
        let begun = std::time::Instant::now();
        assert_eq!(
            lab.put(&format!("log/plan?offset={length}"), b"a")
                .await
                .code,
            200
        );
        let reads = lab.cluster.reads.load(Ordering::Relaxed);
        assert_eq!(
            lab.put(&format!("log/plan?offset={}", length + 1), b"b")
                .await
                .code,
            200
        );
        length += 2;
        let again = lab.cluster.reads.load(Ordering::Relaxed);
        if begun.elapsed() < second {
            assert_eq!(again, reads, "read a moment ago");
            break;
        }
        tokio::time::sleep(2 * second).await;
    }
    lab.cluster.set(view(2, true));
    // A refusal is decided on a live read.
    lab.asks("pod-2", &[("PUT log/plan?offset=0", b"x", "200")])
        .await;
    tokio::time::sleep(second + second / 10).await;
    assert_eq!(
        lab.put(&format!("log/plan?offset={length}"), b"c")
            .await
            .reason(),
        REPLACED
    );
}

#[tokio::test]
async fn unreachable_api_server_authorizes_nothing() {
    let lab = Lab::new();
    // At last the token is known, and the run has to be read.
    for (down, expected) in [
        (true, "503 Unavailable"),
        (false, "201"),
        (true, "503 Unavailable"),
    ] {
        lab.cluster.down.store(down, Ordering::Relaxed);
        let answer = lab.put("objects/plan", b"x").await;
        assert_eq!(
            (
                answer.brief().as_str(),
                answer.headers.contains_key("retry-after")
            ),
            (expected, down)
        );
    }
}

#[tokio::test]
async fn intent_proves_that_a_claim_can_be_recorded() {
    let lab = Lab::new();
    // Twice for an approval that was withdrawn and given again.
    lab.asks(
        "pod-1",
        &[("PUT intent", b"", "200"), ("PUT intent", b"", "200")],
    )
    .await;
    assert_eq!(
        lab.of_controller("GET", "/claim").await.reason(),
        NOT_FOUND,
        "it is no claim"
    );
    lab.cluster.set(RunView {
        claim: Some(claim(1)),
        ..view(1, true)
    });
    lab.asks("pod-1", &[("PUT claim", &of_claim(), "201")])
        .await;
    // The cluster is restored from before the claim; the datastore still has it.
    lab.cluster.set(view(1, true));
    lab.asks("pod-1", &[("PUT intent", b"", "409 AlreadyClaimed")])
        .await;
    // A closed attempt claims nothing.
    lab.cluster.set(view(1, false));
    lab.asks("pod-1", &[("PUT intent", b"", "403 AttemptReplaced")])
        .await;
}

#[tokio::test]
async fn claim_is_recorded_once_and_only_if_it_is_in_the_status() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT claim", &of_claim(), "403 Forbidden")])
        .await;
    lab.cluster.set(RunView {
        claim: Some(claim(1)),
        ..view(1, true)
    });
    let invalid = [
        ("PUT claim", &b"{}"[..], "400 Invalid"),
        ("PUT claim", &noise(20_000, 1), "413 TooLarge"),
    ];
    lab.asks("pod-1", &invalid).await;
    assert_eq!(lab.of_controller("GET", "/claim").await.reason(), NOT_FOUND);
    // The second time after a lost answer.
    lab.asks(
        "pod-1",
        &[
            ("PUT claim", &of_claim(), "201"),
            ("PUT claim", &of_claim(), "200"),
        ],
    )
    .await;
    assert_eq!(
        lab.of_controller("GET", "/claim").await.json(),
        serde_json::to_value(claim(1)).unwrap()
    );
    let second = Claim {
        checksum: format!("sha256:{}", "1".repeat(64)),
        ..claim(1)
    };
    let body = serde_json::to_vec(&second).unwrap();
    lab.cluster.set(RunView {
        claim: Some(second),
        ..view(1, true)
    });
    lab.asks("pod-1", &[("PUT claim", &body, "409 AlreadyClaimed")])
        .await;
}

/// A plan takes the lock too, so the lock alone does not permit a write.
#[tokio::test]
async fn state_write_before_the_claim_is_forbidden() {
    let lab = Lab::new();
    lab.asks(
        "pod-1",
        &[("PUT lock", br#"{"ID": "a", "Who": "who"}"#, "200")],
    )
    .await;
    let foreign = Claim {
        nonce: "f".repeat(32),
        ..claim(1)
    };
    let rows = [
        (None, Operation::Apply),
        (Some(foreign), Operation::Apply),
        (Some(claim(2)), Operation::Apply),
        // A plan writes nothing, whatever it has claimed.
        (Some(claim(1)), Operation::Plan),
    ];
    for (claim, operation) in rows {
        lab.cluster.set(RunView {
            claim,
            operation,
            ..view(1, true)
        });
        let answer = lab.put("state?lock=a", br#"{"serial": 1}"#).await;
        assert_eq!(answer.code, 403);
        assert!(
            !answer.text().contains("who"),
            "the lock's holder was named"
        );
    }
    // A cached read of the run does not decide.
    lab.asks(
        "pod-1",
        &[
            ("GET state", b"", "204"),
            ("PUT log/plan?offset=0", b"x", "200"),
        ],
    )
    .await;
    lab.cluster.set(RunView {
        claim: Some(claim(1)),
        ..view(1, true)
    });
    lab.asks(
        "pod-1",
        &[
            ("PUT state?lock=a", br#"{"serial": 1}"#, "200"),
            ("GET state", b"", "200"),
        ],
    )
    .await;
}

#[tokio::test]
async fn controller_and_pods_cannot_use_each_others_paths() {
    let lab = Lab::new();
    let path = format!("/v1/namespaces/team/uids/{}", view(1, true).uid);
    let requests = [
        ("GET", "/claim"),
        ("GET", "/attempts/1/objects/result"),
        ("DELETE", ""),
        ("DELETE", "?only=bundle"),
    ];
    for (method, rest) in requests {
        let headers = [("authorization", "Bearer pod-1")];
        let answer = lab
            .send(method, &format!("{path}{rest}"), &headers, Body::empty())
            .await;
        assert_eq!(answer.reason(), FORBIDDEN, "{method} {rest}");
    }
    lab.asks("controller", &[("GET objects/plan", b"", "403 Forbidden")])
        .await;
    lab.asks("pod-1", &[("PUT objects/result", b"done", "201")])
        .await;
    assert_eq!(
        lab.of_controller("GET", "/attempts/1/objects/result")
            .await
            .text(),
        "done"
    );
}

#[tokio::test]
async fn late_evidence_is_accepted_only_from_the_claim_holder() {
    let lab = Lab::new();
    let closed = RunView {
        terminal: true,
        ..view(1, false)
    };
    lab.cluster.set(closed.clone());
    lab.asks(
        "pod-1",
        &[("PUT objects/result", b"x", "403 AttemptReplaced")],
    )
    .await;
    lab.cluster.set(RunView {
        claim: Some(claim(1)),
        ..closed
    });
    let requests = [
        ("PUT objects/result", &b"x"[..], "201"),
        ("PUT log/apply?offset=0&end=true", b"x", "200"),
        ("PUT log/plan?offset=0", b"x", "403 AttemptReplaced"),
        ("PUT objects/bundle", b"x", "403 AttemptReplaced"),
    ];
    lab.asks("pod-1", &requests).await;
}

#[tokio::test]
async fn one_pod_cannot_use_all_request_places() {
    let lab = Lab::new();
    let held: Vec<_> = (0..8)
        .map(|_| lab.service.admit("pod-1").unwrap())
        .collect();
    assert_eq!(lab.get("objects/plan").await.reason(), UNAVAILABLE);
    drop(held);
    assert_eq!(lab.get("objects/plan").await.reason(), NOT_FOUND);
}

#[tokio::test]
async fn malicious_requests_reach_nothing() {
    let lab = Lab::new();
    for path in [
        "/v1/namespaces/team/runs/net/attempts/1/objects/..%2f..%2fkeys",
        "/v1/namespaces/..%2f..%2fkeys/runs/net/attempts/1/objects/plan",
        "/v1/namespaces/team/runs/net/attempts/1/objects/plan/../bundle",
        "/v1/namespaces/team/runs/net/attempts/1/objects/bundle%00",
        "/v1/namespaces/team/runs/net/attempts/99999999999/objects/bundle",
        "/v1/namespaces/team/uids/..%2f..%2f",
        "/../../etc/passwd",
        "/metrics",
        "/v1",
    ] {
        for method in ["GET", "PUT", "DELETE", "POST"] {
            let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE)];
            let answer = lab.send(method, path, &headers, Body::empty()).await;
            assert!(
                matches!(answer.code, 400 | 404),
                "{method} {path}: {}",
                answer.code
            );
        }
    }
    assert!(lab.files().is_empty(), "{:?}", lab.files());
}
