//! Rejected requests.

use std::sync::atomic::Ordering;

use axum::body::Body;

use crds::{
    Claim, Operation,
    datastore::{
        ALREADY_CLAIMED, FORBIDDEN, HEADER_NONCE, INVALID, NOT_FOUND, REPLACED, TOO_LARGE, UNAUTHENTICATED, UNAVAILABLE,
        attempt_path,
    },
};
use serving::auth::{Identity, PodIdentity};

use super::{CONTROLLER, Lab, NONCE, noise, pod, view};
use crate::{auth::caller::tests::claim, cluster::RunView};

#[tokio::test]
async fn invalid_token_is_rejected_and_reviewed_once() {
    let lab = Lab::new();
    let path = format!("{}/objects/plan", attempt_path("team", "net", 1));
    for value in ["Bearer expired", "Bearer of-another-audience", "Basic abc", "Bearer ", "bearer pod-1", ""] {
        let answer = lab.send("GET", &path, &[("authorization", value), (HEADER_NONCE, NONCE)], Body::empty()).await;
        assert_eq!((answer.code, answer.reason().as_str()), (401, UNAUTHENTICATED), "{value}");
    }
    let twice = [("authorization", "Bearer pod-1"), ("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE)];
    assert_eq!(lab.send("GET", &path, &twice, Body::empty()).await.code, 401);
    assert_eq!(lab.send("GET", &path, &[], Body::empty()).await.code, 401);
    let before = lab.cluster.reviewed.lock().unwrap().len();
    for _ in 0..5 {
        assert_eq!(lab.send("GET", &path, &[("authorization", "Bearer expired")], Body::empty()).await.code, 401);
        assert_eq!(lab.get("objects/plan").await.code, 404);
    }
    assert_eq!(lab.cluster.reviewed.lock().unwrap().len(), before + 1);
}

/// Burrito 11.22: any runner's token could read and overwrite any tenant's plan.
#[tokio::test]
async fn objects_of_another_run_are_forbidden() {
    let lab = Lab::new();
    assert_eq!(lab.put("objects/plan", b"mine").await.code, 201);
    let other = RunView { name: "other".into(), uid: "11111111-1111".into(), ..view(1, true) };
    let own = pod(&RunView { attempt: None, ..other.clone() }, 1);
    let mut other = other;
    other.attempt = Some((1, own.name.clone(), true));
    lab.cluster.token("other", Identity { user: "system:serviceaccount:team:x".into(), pod: Some(own), ..Identity::default() });
    lab.cluster.set(other);
    for (method, rest) in
        [("GET", "objects/plan"), ("PUT", "objects/plan"), ("GET", "state"), ("PUT", "log/plan?offset=0"), ("PUT", "claim")]
    {
        let answer = lab.of_pod("other", method, 1, rest, b"x").await;
        assert_eq!((answer.code, answer.reason().as_str()), (403, FORBIDDEN), "{method} {rest}");
    }
    // A pod of another namespace cannot probe which runs exist.
    let stranger = Identity {
        user: "system:serviceaccount:b:x".into(),
        pod: Some(PodIdentity { namespace: "b".into(), name: "p".into(), uid: "u".into() }),
        ..Identity::default()
    };
    lab.cluster.token("stranger", stranger);
    let path = format!("{}/claim", attempt_path("team", "no-such-run", 1));
    let answer = lab.send("PUT", &path, &[("authorization", "Bearer stranger")], Body::empty()).await;
    assert_eq!(answer.reason(), FORBIDDEN);
}

#[tokio::test]
async fn replaced_attempt_writes_nothing() {
    let lab = Lab::new();
    assert_eq!(lab.put("objects/bundle", b"of the first").await.code, 201);
    lab.cluster.set(view(2, true));
    for (method, rest) in [
        ("GET", "objects/plan"),
        ("PUT", "objects/plan"),
        ("PUT", "claim"),
        ("PUT", "lock"),
        ("PUT", "state?lock=1"),
        ("GET", "state"),
    ] {
        let answer = lab.of_pod("pod-1", method, 1, rest, b"{}").await;
        assert_eq!((answer.code, answer.reason().as_str()), (403, REPLACED), "{method} {rest}");
    }
    assert_eq!(lab.of_pod("pod-2", "GET", 1, "objects/bundle", b"").await.text(), "of the first", "the next one restores it");
    assert_eq!(lab.of_pod("pod-2", "PUT", 1, "objects/plan", b"x").await.reason(), FORBIDDEN);
}

#[tokio::test]
async fn log_append_is_rejected_a_second_after_the_replacement() {
    let lab = Lab::new();
    let second = std::time::Duration::from_secs(1);
    let mut length = 0;
    // Repeat until two appends happen within one second, as they do at once on an idle machine.
    loop {
        let begun = std::time::Instant::now();
        assert_eq!(lab.put(&format!("log/plan?offset={length}"), b"a").await.code, 200);
        let reads = lab.cluster.reads.load(Ordering::Relaxed);
        assert_eq!(lab.put(&format!("log/plan?offset={}", length + 1), b"b").await.code, 200);
        length += 2;
        let again = lab.cluster.reads.load(Ordering::Relaxed);
        if begun.elapsed() < second {
            assert_eq!(again, reads, "read a moment ago");
            break;
        }
        tokio::time::sleep(2 * second).await;
    }
    lab.cluster.set(view(2, true));
    assert_eq!(lab.of_pod("pod-2", "PUT", 2, "log/plan?offset=0", b"x").await.code, 200, "a refusal is decided on what is now");
    tokio::time::sleep(second + second / 10).await;
    assert_eq!(lab.put(&format!("log/plan?offset={length}"), b"c").await.reason(), REPLACED);
}

#[tokio::test]
async fn unreachable_api_server_authorizes_nothing() {
    let lab = Lab::new();
    lab.cluster.down.store(true, Ordering::Relaxed);
    let answer = lab.put("objects/plan", b"x").await;
    assert_eq!((answer.code, answer.reason().as_str()), (503, UNAVAILABLE));
    assert!(answer.headers.contains_key("retry-after"));
    lab.cluster.down.store(false, Ordering::Relaxed);
    assert_eq!(lab.put("objects/plan", b"x").await.code, 201);
    lab.cluster.down.store(true, Ordering::Relaxed);
    assert_eq!(lab.put("objects/plan", b"x").await.code, 503, "the token is known, the run has to be read");
}

#[tokio::test]
async fn intent_proves_that_a_claim_can_be_recorded() {
    let lab = Lab::new();
    assert_eq!(lab.put("intent", b"").await.code, 200);
    assert_eq!(lab.put("intent", b"").await.code, 200, "for an approval that was withdrawn and given again");
    assert_eq!(lab.of_controller("GET", "/claim").await.reason(), NOT_FOUND, "it is no claim");
    lab.cluster.set(RunView { claim: Some(claim(1)), ..view(1, true) });
    assert_eq!(lab.put("claim", &serde_json::to_vec(&claim(1)).unwrap()).await.code, 201);
    // The cluster is restored from before the claim; the datastore still has it.
    lab.cluster.set(view(1, true));
    let answer = lab.put("intent", b"").await;
    assert_eq!((answer.code, answer.reason().as_str()), (409, ALREADY_CLAIMED));
    lab.cluster.set(view(1, false));
    assert_eq!(lab.put("intent", b"").await.reason(), REPLACED, "a closed attempt claims nothing");
}

#[tokio::test]
async fn claim_is_recorded_once_and_only_if_it_is_in_the_status() {
    let lab = Lab::new();
    let body = serde_json::to_vec(&claim(1)).unwrap();
    assert_eq!(lab.put("claim", &body).await.reason(), FORBIDDEN, "the status has none");
    lab.cluster.set(RunView { claim: Some(claim(1)), ..view(1, true) });
    assert_eq!(lab.put("claim", b"{}").await.reason(), INVALID);
    assert_eq!(lab.put("claim", &noise(20_000, 1)).await.reason(), TOO_LARGE);
    assert_eq!(lab.of_controller("GET", "/claim").await.reason(), NOT_FOUND);
    assert_eq!(lab.put("claim", &body).await.code, 201);
    assert_eq!(lab.put("claim", &body).await.code, 200, "the same process, after a lost answer");
    assert_eq!(lab.of_controller("GET", "/claim").await.json(), serde_json::to_value(claim(1)).unwrap());
    let mut second = claim(1);
    second.checksum = format!("sha256:{}", "1".repeat(64));
    lab.cluster.set(RunView { claim: Some(second.clone()), ..view(1, true) });
    let answer = lab.put("claim", &serde_json::to_vec(&second).unwrap()).await;
    assert_eq!((answer.code, answer.reason().as_str()), (409, ALREADY_CLAIMED));
}

/// A plan takes the lock too, so the lock alone does not permit a write.
#[tokio::test]
async fn state_write_before_the_claim_is_forbidden() {
    let lab = Lab::new();
    let written = async || {
        let answer = lab.put("state?lock=a", br#"{"serial": 1}"#).await;
        assert!(!answer.body.is_some_and(|body| body.windows(3).any(|bytes| bytes == b"who")), "the lock's holder was named");
        answer.code
    };
    assert_eq!(lab.put("lock", br#"{"ID": "a", "Who": "who"}"#).await.code, 200);
    assert_eq!(written().await, 403, "before the claim");
    let foreign = Claim { nonce: "f".repeat(32), ..claim(1) };
    for claim in [foreign, claim(2)] {
        lab.cluster.set(RunView { claim: Some(claim), ..view(1, true) });
        assert_eq!(written().await, 403, "another's claim");
    }
    lab.cluster.set(RunView { claim: Some(claim(1)), operation: Operation::Plan, ..view(1, true) });
    assert_eq!(written().await, 403, "a plan writes nothing, whatever it has claimed");
    assert_eq!(lab.get("state").await.code, 204, "nothing was written");
    // A cached read of the run does not decide.
    assert_eq!(lab.put("log/plan?offset=0", b"x").await.code, 200);
    lab.cluster.set(RunView { claim: Some(claim(1)), ..view(1, true) });
    assert_eq!(written().await, 200, "behind the claim, at once");
    assert_eq!(lab.get("state").await.code, 200);
}

#[tokio::test]
async fn controller_and_pods_cannot_use_each_others_paths() {
    let lab = Lab::new();
    let path = format!("/v1/namespaces/team/uids/{}", view(1, true).uid);
    for (method, rest) in [("GET", "/claim"), ("GET", "/attempts/1/objects/result"), ("DELETE", ""), ("DELETE", "?only=bundle")] {
        let answer = lab.send(method, &format!("{path}{rest}"), &[("authorization", "Bearer pod-1")], Body::empty()).await;
        assert_eq!(answer.reason(), FORBIDDEN, "{method} {rest}");
    }
    assert_eq!(lab.of_pod("controller", "GET", 1, "objects/plan", b"").await.reason(), FORBIDDEN);
    assert_eq!(lab.put("objects/result", b"done").await.code, 201);
    assert_eq!(lab.of_controller("GET", "/attempts/1/objects/result").await.text(), "done");
    assert_ne!(CONTROLLER, "");
}

#[tokio::test]
async fn late_evidence_is_accepted_only_from_the_claim_holder() {
    let lab = Lab::new();
    let closed = RunView { terminal: true, ..view(1, false) };
    lab.cluster.set(closed.clone());
    assert_eq!(lab.put("objects/result", b"x").await.reason(), REPLACED);
    lab.cluster.set(RunView { claim: Some(claim(1)), ..closed });
    assert_eq!(lab.put("objects/result", b"x").await.code, 201);
    assert_eq!(lab.put("log/apply?offset=0&end=true", b"x").await.code, 200);
    assert_eq!(lab.put("log/plan?offset=0", b"x").await.reason(), REPLACED);
    assert_eq!(lab.put("objects/bundle", b"x").await.reason(), REPLACED);
}

#[tokio::test]
async fn one_pod_cannot_use_all_request_places() {
    let lab = Lab::new();
    let held: Vec<_> = (0..8).map(|_| lab.service.admit("pod-1").unwrap()).collect();
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
            let answer = lab.send(method, path, &[("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE)], Body::empty()).await;
            assert!(matches!(answer.code, 400 | 404), "{method} {path}: {}", answer.code);
        }
    }
    assert!(lab.files().is_empty(), "{:?}", lab.files());
}
