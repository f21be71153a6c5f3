//! Waiting for servers that ask for it.

use std::time::{Duration, Instant, UNIX_EPOCH};

use reqwest::header::HeaderMap;
use tool_versions::{
    Kind,
    releases::http::waiting::{asked_for, backoff},
};

use super::{
    fails, get,
    server::{Server, answer, ok},
};

#[tokio::test]
async fn retry_after_is_obeyed() {
    let busy = "429 Too Many Requests\nContent-Length: 0\nRetry-After: 1";
    let server = Server::start(move |_, count| if count == 0 { answer(busy, b"") } else { ok("", b"good") }).await;
    let begun = Instant::now();
    assert_eq!(get(&server.url("/")).await.unwrap(), b"good");
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_not_waited() {
    for after in ["3600", "99999999999999999999999", "Fri, 31 Dec 2117 23:59:59 GMT"] {
        let server = Server::start(move |_, _| answer(&format!("503 Busy\nContent-Length: 0\nRetry-After: {after}"), b"")).await;
        fails(get(&server.url("/")).await, Kind::Unavailable, "which is too late");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_limit_that_is_used_up_is_no_refusal() {
    let limit = "403 rate limit exceeded\nContent-Length: 0\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 4102444800";
    let server = Server::start(move |_, _| answer(limit, b"")).await;
    fails(get(&server.url("/")).await, Kind::Unavailable, "which is too late");
    // GitHub's second limit.
    let limit = "403 secondary rate limit\nContent-Length: 0\nRetry-After: 1\nX-RateLimit-Remaining: 4000";
    let server = Server::start(move |_, count| if count == 0 { answer(limit, b"") } else { ok("", b"good") }).await;
    assert_eq!(get(&server.url("/")).await.unwrap(), b"good");
    // The last answer that the limit allows is an answer.
    let server = Server::start(|_, _| ok("X-RateLimit-Remaining: 0", b"good")).await;
    assert_eq!(get(&server.url("/")).await.unwrap(), b"good");
}

#[test]
fn waits_are_read_from_headers() {
    type Row<'a> = (&'a [(&'static str, &'a str)], Option<u64>);
    // Sunday, 06 November 1994 08:49:37 GMT, the example of RFC 9110.
    let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
    let rows: &[Row<'_>] = &[
        (&[], None),
        (&[("retry-after", "0")], Some(0)),
        (&[("retry-after", " 17 ")], Some(17)),
        (&[("retry-after", "99999999999999999999999")], Some(u64::MAX)),
        (&[("retry-after", "-1")], None),
        (&[("retry-after", "soon")], None),
        (&[("retry-after", "")], None),
        (&[("retry-after", "1.5")], None),
        (&[("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")], Some(30)),
        (&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")], Some(0)),
        (&[("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")], Some(0)),
        (&[("retry-after", "Sun, 99 Nov 1994 08:49:37 GMT")], None),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "784111800")], Some(23)),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")], Some(0)),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "-1")], Some(0)),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "x")], None),
        (&[("x-ratelimit-remaining", "5"), ("x-ratelimit-reset", "784111800")], None),
        (&[("retry-after", "3"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "784111800")], Some(3)),
    ];
    for (headers, wanted) in rows {
        let mut map = HeaderMap::new();
        for (name, value) in *headers {
            map.insert(*name, value.parse().unwrap());
        }
        assert_eq!(asked_for(&map, now), wanted.map(Duration::from_secs), "{headers:?}");
    }
}

#[test]
fn waits_grow_and_differ() {
    let base = Duration::from_millis(100);
    for tries in [1, 2, 3, 7, 40] {
        let most = base * (1 << (tries - 1).min(6));
        let waits: Vec<_> = (0..50).map(|_| backoff(base, tries)).collect();
        assert!(waits.iter().all(|wait| *wait >= most / 2 && *wait <= most), "{tries}");
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }
}
