//! How much memory a large object takes: a figure, printed; not among the tests that run each time.

use std::time::Instant;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use sha2::{Digest as _, Sha256};

use crds::datastore::{HEADER_DIGEST, HEADER_NONCE, attempt_path, hex_digest};

use super::{Lab, NONCE, noise};

const PIECE: usize = 64 << 10;
const PIECES: usize = 16 << 10;

/// Of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a figure: 1 GiB up and down"]
async fn a_gibibyte_does_not_show() {
    let lab = Lab::new();
    let piece = Bytes::from(noise(PIECE, 1));
    let mut digest = Sha256::new();
    (0..PIECES).for_each(|_| digest.update(&piece));
    let (said, before) = (hex_digest(&digest.finalize()), resident());
    let path = format!("{}/objects/bundle", attempt_path("team", "net", 1));
    let headers = [("authorization", "Bearer pod-1"), (HEADER_NONCE, NONCE), (HEADER_DIGEST, said.as_str())];
    let begun = Instant::now();
    let sent = piece.clone();
    let body = Body::from_stream(futures::stream::iter((0..PIECES).map(move |_| Ok::<_, std::io::Error>(sent.clone()))));
    assert_eq!(lab.send("PUT", &path, &headers, body).await.code, 201);
    let (up, after_up, begun) = (begun.elapsed(), resident(), Instant::now());
    let mut request = axum::http::Request::builder().uri(&path);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let mut stream = super::answer(&lab.service, request.body(Body::empty()).unwrap(), None).await.into_body().into_data_stream();
    let mut read = 0;
    while let Some(piece) = stream.next().await {
        read += piece.unwrap().len();
    }
    assert_eq!(read, PIECE * PIECES);
    let (down, after) = (begun.elapsed(), resident());
    eprintln!(
        "1 GiB up in {up:.1?}, down in {down:.1?}; at most {after} KiB resident, {before} KiB before, {after_up} KiB between"
    );
    assert!(after < before + (64 << 10), "it shows");
}
