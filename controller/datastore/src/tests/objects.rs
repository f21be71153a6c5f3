//! Objects: written once, complete, within their limits, and read unchanged.

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;

use crds::datastore::{
    ALREADY_EXISTS, HEADER_DIGEST, HEADER_NONCE, INVALID, NOT_FOUND, Stored, TOO_LARGE, WRONG_DIGEST, attempt_path,
};

use super::{Lab, NONCE, digest, noise};

#[tokio::test]
async fn objects_of_any_size_round_trip() {
    let lab = Lab::new();
    // Sizes: inside the record, at its bound, just above, at the bounds of segments and parts, and several parts.
    for (attempt, size) in [(1, 0), (2, 1), (3, 128 << 10)] {
        lab.cluster.set(super::view(attempt, true));
        let (token, body) = (format!("pod-{attempt}"), noise(size, attempt.into()));
        assert_eq!(lab.of_pod(&token, "PUT", attempt, "objects/plan", &body).await.code, 201);
        let read = lab.of_pod(&token, "GET", attempt, "objects/plan", b"").await;
        assert!(read.body.as_deref() == Some(body.as_slice()), "{size}");
        assert_eq!(read.headers[HEADER_DIGEST], digest(&body).as_str());
        for (kind, more) in [("bundle", (128 << 10) + 1), ("planjson", (3 << 20) - 5 * 16 + size)] {
            let body = noise(more + size, 9);
            assert_eq!(lab.of_pod(&token, "PUT", attempt, &format!("objects/{kind}"), &body).await.code, 201);
            let read = lab.of_pod(&token, "GET", attempt, &format!("objects/{kind}"), b"").await;
            assert!(read.body.as_deref() == Some(body.as_slice()), "{kind} of {}", body.len());
            let verified = lab.of_pod(&token, "GET", attempt, &format!("objects/{kind}/digest"), b"").await;
            assert_eq!(verified.json(), serde_json::to_value(Stored { digest: digest(&body), size: body.len() as u64 }).unwrap());
        }
    }
}

#[tokio::test]
async fn object_is_written_once() {
    let lab = Lab::new();
    let body = noise(300_000, 1);
    assert_eq!(lab.get("objects/bundle").await.reason(), NOT_FOUND);
    assert_eq!(lab.put("objects/bundle", &body).await.code, 201);
    let files = lab.files().len();
    assert_eq!(lab.put("objects/bundle", &body).await.code, 200, "the same, after a lost answer");
    assert_eq!(lab.put("objects/bundle", b"other").await.reason(), ALREADY_EXISTS);
    assert!(lab.get("objects/bundle").await.body.as_deref() == Some(body.as_slice()));
    assert_eq!(lab.files().len(), files);
}

#[tokio::test]
async fn concurrent_writers_create_one_object() {
    let lab = Lab::new();
    let (a, b) = (noise(400_000, 1), noise(400_000, 2));
    let (one, two) = tokio::join!(lab.put("objects/bundle", &a), lab.put("objects/bundle", &b));
    let mut codes = [one.code, two.code];
    codes.sort_unstable();
    assert_eq!(codes, [201, 409]);
    let read = lab.get("objects/bundle").await.body.unwrap();
    assert!(read == if one.code == 201 { a } else { b });
    assert_eq!(lab.files().iter().filter(|path| path.to_string_lossy().contains("/blobs/")).count(), 1, "the loser's is gone");
}

#[tokio::test]
async fn wrong_digest_stores_nothing() {
    let lab = Lab::new();
    let path = format!("{}/objects/bundle", attempt_path("team", "net", 1));
    let send = async |said: &str, body: Vec<u8>| {
        let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE), (HEADER_DIGEST, said)];
        lab.send("PUT", &path, &headers, body).await.reason()
    };
    for size in [10, 300_000, 2 << 20] {
        assert_eq!(send(&digest(b"something else"), noise(size, 3)).await, WRONG_DIGEST);
        assert_eq!(send("sha256:abc", noise(size, 3)).await, INVALID);
        assert_eq!(send(&digest(b"").to_uppercase(), noise(size, 3)).await, INVALID);
    }
    let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE)];
    assert_eq!(lab.send("PUT", &path, &headers, noise(10, 3)).await.reason(), INVALID, "none said");
    assert!(lab.files().iter().all(|path| path.ends_with("run")), "{:?}", lab.files());
    assert_eq!(lab.get("objects/bundle").await.reason(), NOT_FOUND);
}

#[tokio::test]
async fn oversized_body_stores_nothing() {
    let lab = Lab::new();
    assert_eq!(lab.put("objects/result", &noise((64 << 10) + 1, 4)).await.reason(), TOO_LARGE);
    assert_eq!(lab.put("objects/result", &noise(64 << 10, 4)).await.code, 201);
    assert_eq!(lab.put("log/plan?offset=0", &noise((1 << 20) + 1, 4)).await.reason(), TOO_LARGE);
    assert_eq!(lab.put("lock", &noise(17 << 10, 4)).await.reason(), TOO_LARGE);
}

#[tokio::test]
async fn truncated_body_stores_nothing() {
    let lab = Lab::new();
    let path = format!("{}/objects/bundle", attempt_path("team", "net", 1));
    let pieces = futures::stream::iter((0..40).map(|n| Ok(Bytes::from(noise(64 << 10, n)))));
    let body = Body::from_stream(pieces.chain(futures::stream::iter([Err(std::io::Error::other("gone"))])));
    let said = digest(b"x");
    let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE), (HEADER_DIGEST, said.as_str())];
    assert_eq!(lab.send("PUT", &path, &headers, body).await.reason(), INVALID);
    assert!(lab.files().iter().all(|path| path.ends_with("run")), "{:?}", lab.files());
}
