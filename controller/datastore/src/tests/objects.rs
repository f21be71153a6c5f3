//! Objects: written once, complete, within their limits, and read unchanged.

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;

use crds::datastore::{
    HEADER_DIGEST, HEADER_NONCE, INVALID, NOT_FOUND, Stored, WRONG_DIGEST, attempt_path,
};

use super::{Lab, NONCE, digest, noise};

#[tokio::test]
async fn objects_of_any_size_round_trip() {
    let lab = Lab::new();
    // Sizes: inside the record, at its bound, just above, at the bounds of segments and parts, and several parts.
    for (attempt, size) in [(1, 0), (2, 1), (3, 128 << 10)] {
        lab.cluster.set(super::view(attempt, true));
        let token = format!("pod-{attempt}");
        for (kind, more) in [
            ("plan", 0),
            ("bundle", (128 << 10) + 1),
            ("planjson", (3 << 20) - 5 * 16 + size),
        ] {
            let (path, body) = (format!("objects/{kind}"), noise(more + size, 9));
            lab.asks(&token, &[(&format!("PUT {path}"), &body, "201")])
                .await;
            let read = lab.of_pod(&token, "GET", attempt, &path, b"").await;
            assert!(
                read.body.as_deref() == Some(body.as_slice()),
                "{kind} of {}",
                body.len()
            );
            assert_eq!(read.headers[HEADER_DIGEST], digest(&body).as_str());
            let verified = lab
                .of_pod(&token, "GET", attempt, &format!("{path}/digest"), b"")
                .await;
            let stored = Stored {
                digest: digest(&body),
                size: body.len() as u64,
            };
            assert_eq!(verified.json(), serde_json::to_value(stored).unwrap());
        }
    }
}

#[tokio::test]
async fn object_is_written_once() {
    let lab = Lab::new();
    let body = noise(300_000, 1);
    lab.asks(
        "pod-1",
        &[
            ("GET objects/bundle", b"", "404 NotFound"),
            ("PUT objects/bundle", &body, "201"),
        ],
    )
    .await;
    let files = lab.files().len();
    // The same content after a lost answer, and other content.
    let again = [
        ("PUT objects/bundle", &body[..], "200"),
        ("PUT objects/bundle", b"other", "409 AlreadyExists"),
    ];
    lab.asks("pod-1", &again).await;
    assert!(lab.get("objects/bundle").await.body.as_deref() == Some(body.as_slice()));
    assert_eq!(lab.files().len(), files);
}

#[tokio::test]
async fn wrong_digest_stores_nothing() {
    let lab = Lab::new();
    let path = format!("{}/objects/bundle", attempt_path("team", "net", 1));
    let send = async |said: &str, body: Vec<u8>| {
        let headers = [
            ("authorization", "Bearer pod-1"),
            (HEADER_NONCE, NONCE),
            (HEADER_DIGEST, said),
        ];
        lab.send("PUT", &path, &headers, body).await.reason()
    };
    for size in [10, 300_000, 2 << 20] {
        assert_eq!(
            send(&digest(b"something else"), noise(size, 3)).await,
            WRONG_DIGEST
        );
        assert_eq!(send("sha256:abc", noise(size, 3)).await, INVALID);
        assert_eq!(
            send(&digest(b"").to_uppercase(), noise(size, 3)).await,
            INVALID
        );
    }
    let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE)];
    assert_eq!(
        lab.send("PUT", &path, &headers, noise(10, 3))
            .await
            .reason(),
        INVALID,
        "none said"
    );
    assert!(
        lab.files().iter().all(|path| path.ends_with("run")),
        "{:?}",
        lab.files()
    );
    assert_eq!(lab.get("objects/bundle").await.reason(), NOT_FOUND);
}

#[tokio::test]
async fn oversized_body_stores_nothing() {
    let lab = Lab::new();
    let requests = [
        (
            "PUT objects/result",
            &noise((64 << 10) + 1, 4)[..],
            "413 TooLarge",
        ),
        ("PUT objects/result", &noise(64 << 10, 4), "201"),
        (
            "PUT log/plan?offset=0",
            &noise((1 << 20) + 1, 4),
            "413 TooLarge",
        ),
        ("PUT lock", &noise(17 << 10, 4), "413 TooLarge"),
    ];
    lab.asks("pod-1", &requests).await;
}

#[tokio::test]
async fn truncated_body_stores_nothing() {
    let lab = Lab::new();
    let path = format!("{}/objects/bundle", attempt_path("team", "net", 1));
    let pieces = futures::stream::iter((0..40).map(|n| Ok(Bytes::from(noise(64 << 10, n)))));
    let body = Body::from_stream(
        pieces.chain(futures::stream::iter([Err(std::io::Error::other("gone"))])),
    );
    let said = digest(b"x");
    let headers = [
        ("authorization", "Bearer pod-1"),
        (HEADER_NONCE, NONCE),
        (HEADER_DIGEST, said.as_str()),
    ];
    assert_eq!(
        lab.send("PUT", &path, &headers, body).await.reason(),
        INVALID
    );
    assert!(
        lab.files().iter().all(|path| path.ends_with("run")),
        "{:?}",
        lab.files()
    );
}
