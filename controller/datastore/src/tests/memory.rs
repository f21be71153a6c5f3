//! Measures the memory for a large object in a separate process, because the memory of other tests in this program would count too.

use std::{process::Command, time::Instant};

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use sha2::{Digest as _, Sha256};

use crds::datastore::{HEADER_DIGEST, HEADER_NONCE, attempt_path, hex_digest};

use super::{Lab, NONCE, noise};

const PIECE: usize = 64 << 10;
/// Number of chunks of the object, for the measuring process.
const PIECES: &str = "PAWL_TEST_MEMORY_PIECES";
/// Maximum growth in KiB: only parts of the object are in memory, whatever its size.
const BOUND: u64 = 32 << 10;

/// Peak resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Set `PAWL_TEST_MEMORY_PIECES=16384` for one gibibyte.
#[test]
fn large_object_does_not_grow_memory() {
    let pieces = std::env::var(PIECES).unwrap_or_else(|_| "2048".to_owned());
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args([
            "--exact",
            "tests::memory::child_uploads_and_downloads",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PIECES, pieces);
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("MiB up in"),
        "{said}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    eprint!("{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test above, in a process of its own"]
async fn child_uploads_and_downloads() {
    let Some(pieces) = std::env::var(PIECES)
        .ok()
        .and_then(|pieces| pieces.parse::<usize>().ok())
    else {
        return;
    };
    let lab = Lab::new();
    let piece = Bytes::from(noise(PIECE, 1));
    let mut digest = Sha256::new();
    (0..pieces).for_each(|_| digest.update(&piece));
    let (said, before) = (hex_digest(&digest.finalize()), resident());
    let path = format!("{}/objects/bundle", attempt_path("team", "net", 1));
    let headers = [
        ("authorization", "Bearer pod-1"),
        (HEADER_NONCE, NONCE),
        (HEADER_DIGEST, said.as_str()),
    ];
    let begun = Instant::now();
    let sent = piece.clone();
    let body = Body::from_stream(futures::stream::iter(
        (0..pieces).map(move |_| Ok::<_, std::io::Error>(sent.clone())),
    ));
    assert_eq!(lab.send("PUT", &path, &headers, body).await.code, 201);
    let (up, after_up, begun) = (begun.elapsed(), resident(), Instant::now());
    let mut request = axum::http::Request::builder().uri(&path);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let mut stream = super::answer(&lab.service, request.body(Body::empty()).unwrap(), None)
        .await
        .into_body()
        .into_data_stream();
    let mut read = 0;
    while let Some(piece) = stream.next().await {
        read += piece.unwrap().len();
    }
    assert_eq!(read, PIECE * pieces);
    let (down, after) = (begun.elapsed(), resident());
    eprintln!(
        "{} MiB up in {up:.1?}, down in {down:.1?}; at most {after} KiB resident, {before} KiB before, {after_up} KiB between",
        (PIECE * pieces) >> 20
    );
    assert!(
        after < before + BOUND,
        "it shows: {after} KiB after {before} KiB"
    );
}
