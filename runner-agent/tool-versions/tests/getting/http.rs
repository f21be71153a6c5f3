//! One request: statuses, lengths, types, deadlines, waits and redirects.

use std::time::{Duration, Instant, UNIX_EPOCH};

use reqwest::{Url, header::HeaderMap};
use tokio::fs::File;
use tool_versions::{
    Kind,
    releases::http::{
        Answer, Auth, Client, Rules, redirect,
        waiting::{asked_for, backoff},
    },
};

use super::{
    ask, client, get, get_by, rules,
    server::{Act, Server, answer, ok, redirect},
    short,
};
use crate::{fails, table};

/// A whole answer, or a head without a body. `~` is the end of a line.
fn raw(text: &str) -> Vec<Act> {
    let whole = if text.contains("~~") {
        text.to_owned()
    } else {
        format!("HTTP/1.1 {text}~Content-Length: 0~Connection: close~~")
    };
    vec![Act::Send(whole.replace('~', "\r\n").into_bytes())]
}

#[tokio::test]
async fn body_and_etag_are_returned() {
    let server = Server::start(|_, _| ok("ETag: \"a\"", b"all of it")).await;
    let got = client()
        .get(ask(&server.url("/x?y=1"), &Auth::None), None)
        .await
        .unwrap();
    assert_eq!(
        got,
        Answer::Body {
            bytes: b"all of it".to_vec(),
            etag: Some("\"a\"".into())
        }
    );
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].path.as_str()), (1, "/x?y=1"));
    assert!(
        seen[0]
            .header("user-agent")
            .unwrap()
            .starts_with("pawl-tool-versions/")
    );
    assert_eq!(seen[0].header("accept-encoding"), Some("identity"));
}

#[tokio::test]
async fn etag_makes_the_request_conditional() {
    let server = Server::start(|request, _| match request.header("if-none-match") {
        Some("\"a\"") => answer("304 Not Modified", b""),
        _ => ok("", b"new"),
    })
    .await;
    let url = server.url("/");
    // A tag that no header can hold, from a cache that another program wrote, is not sent.
    for (tag, changed) in [("\"a\"", false), ("\"b\"", true), ("\"a\"\r\nX: y", true)] {
        let got = client()
            .get(ask(&url, &Auth::None), Some(tag))
            .await
            .unwrap();
        assert_eq!(matches!(got, Answer::Body { .. }), changed, "{tag}");
    }
    assert!(server.seen()[2].header("x").is_none());
}

/// An answer, the kind of the error, the number of requests, and a part of the message.
const REFUSED: &str = "
    404 Not Found | Configuration | 1 | there is no OpenTofu 1.99.0 at http://127.0.0.1
    410 Gone | Configuration | 1 | there is no OpenTofu 1.99.0
    401 Unauthorized | Configuration | 1 | credentials of the mirror
    403 Forbidden | Configuration | 1 | credentials of the mirror
    407 Proxy Authentication Required | Configuration | 1 | HTTPS_PROXY
    418 I'm a teapot | Configuration | 1 | 418
    204 No Content | Integrity | 1 | no file
    206 Partial Content | Integrity | 1 | 206
    300 Multiple Choices | Integrity | 1 | 300
    302 Found | Integrity | 1 | 302
    304 Not Modified | Integrity | 1 | 304
    799 What | Integrity | 1 | 799
    408 Request Timeout | Unavailable | 3 | tried 3 times
    425 Too Early | Unavailable | 3 | tried 3 times
    429 Too Many Requests | Unavailable | 3 | tried 3 times
    500 Internal Server Error | Unavailable | 3 | tried 3 times
    504 Gateway Timeout | Unavailable | 3 | tried 3 times
    # A wait that is too long is not waited for.
    503 Busy~Retry-After: 3600 | Unavailable | 1 | which is too late
    503 Busy~Retry-After: 99999999999999999999999 | Unavailable | 1 | which is too late
    503 Busy~Retry-After: Fri, 31 Dec 2117 23:59:59 GMT | Unavailable | 1 | which is too late
    403 limit~X-RateLimit-Remaining: 0~X-RateLimit-Reset: 4102444800 | Unavailable | 1 | which is too late
    # Lengths.
    HTTP/1.1 200 OK~Content-Length: 100~~only this | Unavailable | 3 | after 9 bytes of 100
    HTTP/1.1 200 OK~Transfer-Encoding: chunked~~5~hello~ | Unavailable | 3 | after 5 bytes
    HTTP/1.1 200 OK~Transfer-Encoding: chunked~~zz~hello~ | Unavailable | 3 | tried 3 times
    HTTP/1.1 200 OK~Content-Length: 4~Content-Length: 9~~good and more | Unavailable | 3 | tried 3 times
    HTTP/1.1 200 OK~Content-Length: 1048577~~few | Integrity | 1 | more than 1048576 bytes
    HTTP/1.1 200 OK~Content-Length: 99999999999999~~few | Integrity | 1 | more than 1048576 bytes
    # Types and encodings.
    200 OK~Content-Type: text/html | Unavailable | 1 | page of HTML for OpenTofu 1.99.0
    200 OK~Content-Type: Text/HTML; charset=utf-8 | Unavailable | 1 | page of HTML
    200 OK~Content-Type: application/xhtml+xml | Unavailable | 1 | page of HTML
    200 OK~Content-Encoding: gzip | Integrity | 1 | encoded as gzip
    # No HTTP.
    HTTP/9.9 200 OK~~ | Unavailable | 3 | tried 3 times
    HTTP/1.1 20 OK~~ | Unavailable | 3 | tried 3 times
    SSH-2.0-OpenSSH_9.6~~ | Unavailable | 3 | tried 3 times
    \0\0\0\0~~ | Unavailable | 3 | tried 3 times
    HTTP/1.1 200 OK~No colon~~ | Unavailable | 3 | tried 3 times
    # Redirects.
    302 Found~Location: /?token=secret | Unavailable | 1 | a loop
    302 Found~Location: ?token=secret#again | Unavailable | 1 | a loop
    302 Found~Location: http://localhost:9/?token=secret | Integrity | 1 | which is not https
    302 Found~Location: ftp://127.0.0.1/ | Integrity | 1 | which is not https
    302 Found~Location: file:///etc/passwd | Integrity | 1 |
    302 Found~Location: data:text/plain,x | Integrity | 1 |
    302 Found~Location: https://[::1 | Integrity | 1 |
    302 Found~Location: https://u:p@b:99999/ | Integrity | 1 |
";

#[tokio::test]
async fn bad_answers_are_classified() {
    let large = answer("200 OK", &vec![b'x'; 1_048_577]);
    let header = answer(&format!("200 OK\nX: {}", "x".repeat(1 << 20)), b"");
    let more = [
        (large, ["Integrity", "1", "more than 1048576 bytes"]),
        (header, ["Unavailable", "3", "tried 3 times"]),
        (vec![], ["Unavailable", "3", "tried 3 times"]),
    ];
    let rows =
        table(REFUSED).map(|[text, kind, requests, says]| (raw(text), [kind, requests, says]));
    for (acts, [kind, requests, says]) in rows.chain(more) {
        let shown = format!("{:.200}", format!("{acts:?}"));
        let server = Server::start(move |_, _| acts.clone()).await;
        let error = get(&server.url("/?token=secret")).await.expect_err(&shown);
        let found = (format!("{:?}", error.kind), server.seen().len().to_string());
        assert_eq!(
            (found.0.as_str(), found.1.as_str()),
            (kind, requests),
            "{shown}: {error}"
        );
        assert!(
            error.text.contains(says) && !error.text.contains("secret"),
            "{shown}: {error}"
        );
    }
}

#[tokio::test]
async fn odd_answers_have_their_body() {
    let odd = |head: &[u8]| {
        let whole = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n",
            head,
            b"\r\n\r\ngood and more",
        ]
        .concat();
        vec![Act::Send(whole)]
    };
    let full = vec![b'g'; 1 << 20];
    let heads: [&[u8]; 8] = [
        b"X: y",
        b"ETag: \xff\xfe",
        b"Content-Type: \xff",
        b"Content-Range: bytes 9-1/0",
        b"Retry-After: -7",
        b"ETag: ",
        b"X-RateLimit-Remaining: \xff",
        b"X-RateLimit-Remaining: 0",
    ];
    let rows = heads.map(|head| (odd(head), &b"good"[..]));
    for (acts, body) in rows
        .into_iter()
        .chain([(answer("200 OK", &full), &full[..]), (ok("", &full), &full)])
    {
        let shown = format!("{:.200}", format!("{acts:?}"));
        let server = Server::start(move |_, _| acts.clone()).await;
        assert!(
            get(&server.url("/")).await.expect(&shown) == body,
            "{shown}"
        );
    }
    // HTML where it is expected.
    let server = Server::start(|_, _| ok("Content-Type: text/html", b"<html>")).await;
    let url = server.url("/");
    let mut request = ask(&url, &Auth::None);
    request.html = true;
    assert!(client().get(request, None).await.is_ok());
}

#[tokio::test]
async fn transient_failures_are_retried() {
    for (bad, least) in [
        ("503 Service Unavailable", 0),
        ("HTTP/1.1 200 OK~Content-Length: 10~~cut", 0),
        ("garbage~~", 0),
        ("429 Too Many Requests~Retry-After: 1", 1),
        // GitHub's secondary rate limit.
        ("403 limit~Retry-After: 1~X-RateLimit-Remaining: 4000", 1),
    ] {
        let server = Server::start(move |_, count| {
            if count == 0 {
                raw(bad)
            } else {
                ok("", b"good")
            }
        })
        .await;
        let begun = Instant::now();
        assert_eq!(get(&server.url("/")).await.unwrap(), b"good");
        assert_eq!(server.seen().len(), 2);
        assert!(begun.elapsed() >= Duration::from_secs(least));
    }
}

/// The file has other, longer content before; the first try breaks off.
#[tokio::test]
async fn download_replaces_the_file_in_each_try() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("archive");
    std::fs::write(&path, [b'!'; 3000]).unwrap();
    let good = |count| {
        if count == 0 {
            raw("HTTP/1.1 200 OK~Content-Length: 4~~xyz")
        } else {
            ok("", b"good")
        }
    };
    let server = Server::start(move |_, count| good(count)).await;
    let (url, mut told) = (server.url("/"), Vec::new());
    let ask = ask(&url, &Auth::None);
    let mut file = File::options().write(true).open(&path).await.unwrap();
    let length = client()
        .download(ask, &mut file, &mut |got, whole| told.push((got, whole)))
        .await;
    assert_eq!(
        (length.unwrap(), std::fs::read(&path).unwrap()),
        (4, b"good".to_vec())
    );
    assert_eq!(told, [(3, Some(4)), (4, Some(4))]);
    let mut file = File::open(&path).await.unwrap();
    let result = client().download(ask, &mut file, &mut |_, _| {}).await;
    fails(result, Kind::Storage, "the file for OpenTofu 1.99.0");
}

#[tokio::test]
async fn silence_and_slow_bodies_time_out() {
    // Before the head, in the body, and before TLS.
    let server = Server::start(|_, _| vec![Act::Hang]).await;
    fails(
        get_by(short(), &server.url("/")).await,
        Kind::Unavailable,
        "tried 3 times",
    );
    let hang = || {
        [
            answer("200 OK\nContent-Length: 100", b"some"),
            vec![Act::Hang],
        ]
        .concat()
    };
    let stalled = Server::start(move |_, _| hang()).await;
    let once = Rules {
        silence: Duration::from_secs(4),
        tries: 1,
        ..rules()
    };
    fails(
        get_by(once, &stalled.url("/")).await,
        Kind::Unavailable,
        "after 4 bytes of 100",
    );
    let patient = Rules {
        silence: Duration::from_secs(9),
        ..short()
    };
    let url = server.url("/").replace("http:", "https:");
    fails(
        get_by(patient, &url).await,
        Kind::Unavailable,
        "tried 3 times",
    );
    // Neither silent nor cut: only the deadline of the whole ends it.
    let drip = || {
        let mut acts = answer("200 OK\nContent-Length: 100000", b"");
        (0..800).for_each(|_| {
            acts.extend([
                Act::Wait(Duration::from_millis(50)),
                Act::Send(b"x".to_vec()),
            ]);
        });
        acts
    };
    let server = Server::start(move |_, _| drip()).await;
    let result = get_by(
        Rules {
            small: Duration::from_secs(5),
            ..rules()
        },
        &server.url("/"),
    )
    .await;
    fails(
        result,
        Kind::Unavailable,
        "did not give OpenTofu 1.99.0 within 5 s",
    );
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn settings_are_checked_before_a_request() {
    fails(
        get("file:///etc/passwd").await,
        Kind::Configuration,
        "neither https nor http",
    );
    for pem in [
        "",
        "no PEM",
        "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----",
    ] {
        fails(
            Client::new(rules(), Some(pem)),
            Kind::Configuration,
            "certificate authorities",
        );
    }
    let token = Auth::Bearer("two\nlines".into());
    let error = fails(
        client().get(ask("http://127.0.0.1:9/", &token), None).await,
        Kind::Configuration,
        "cannot be requested",
    );
    assert!(!error.text.contains("lines"), "{error}");
}

#[tokio::test]
async fn five_redirects_are_followed() {
    let server = Server::start(|request, _| {
        let at: u32 = request.path.trim_start_matches('/').parse().unwrap();
        if at == 0 {
            ok("", b"there")
        } else {
            redirect(&format!("/{}", at - 1))
        }
    })
    .await;
    assert_eq!(get(&server.url("/5")).await.unwrap(), b"there");
    assert_eq!(server.seen().len(), 6);
    fails(
        get(&server.url("/6")).await,
        Kind::Unavailable,
        "more than 5 times",
    );
    assert_eq!(server.seen().len(), 12);
}

/// Another port of the same host is another server. It redirects back, and still no credentials are sent.
#[tokio::test]
async fn credentials_stay_with_the_server_they_are_for() {
    for auth in [
        Auth::Basic {
            user: "me".into(),
            password: "secret".into(),
        },
        Auth::Bearer("secret".into()),
    ] {
        assert!(!format!("{auth:?}").contains("secret"));
        let other =
            Server::start(|request, _| redirect(request.path.trim_start_matches("/to="))).await;
        let away = other.url("/to=");
        let first = Server::start(move |request, _| match request.path.as_str() {
            "/" => redirect("/again"),
            "/again" => redirect(&format!(
                "{away}http://evil:word@{}/back",
                request.header("host").unwrap()
            )),
            _ => ok("", b"there"),
        })
        .await;
        client()
            .get(ask(&first.url("/"), &auth), None)
            .await
            .unwrap();
        let sent: Vec<_> = first
            .seen()
            .iter()
            .map(|request| request.header("authorization").map(str::to_owned))
            .collect();
        let ours = if matches!(auth, Auth::Basic { .. }) {
            "Basic bWU6c2VjcmV0"
        } else {
            "Bearer secret"
        };
        assert_eq!(sent, [Some(ours.to_owned()), Some(ours.to_owned()), None]);
        assert_eq!(other.seen().len(), 1);
        for name in ["authorization", "referer", "cookie"] {
            assert_eq!(other.seen()[0].header(name), None);
        }
    }
}

/// First and last address, the target, and a part of the error; empty when it is followed.
const REDIRECTS: &str = "
    https://a/x | https://a/x | https://a/y |
    https://a/x | https://a/x/ | https://a/x/y?z=1#part |
    https://a/x | https://a/x | https://b/y |
    https://a/x | https://a/x | https://u:p@b/y |
    http://a/x | http://a/x | https://a/x |
    http://a/x | http://a/x | http://a:81/y |
    http://a/x | https://b/x | http://a/z |
    https://a/x | https://a/x | http://a/y | not https
    http://a/x | http://a/x | http://b/y | not https
    https://a/x | https://a/x | ftp://a/y | not https
    https://a/x | https://a/x | file:///etc/passwd | not https
    https://a/x | https://a/x | data:text/plain,x | not https
    https://a/x | https://a/x | javascript:alert(1) | not https
    https://a/x | https://a/x | https://a/x#part | a loop
";

#[test]
fn redirect_targets_are_checked() {
    for [first, last, to, says] in table(REDIRECTS) {
        let asked: [Url; 2] = [first.parse().unwrap(), last.parse().unwrap()];
        let text = redirect::check(&asked, &to.parse().unwrap())
            .map_or_else(|error| error.text, |()| String::new());
        assert!(
            text.contains(says) && text.is_empty() == says.is_empty(),
            "{last} to {to}: {text}"
        );
    }
    assert!(redirect::check(&[], &"https://a/".parse().unwrap()).is_err());
}

/// `Retry-After`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, and the wait in seconds.
const WAITS: &str = "
    - | - | - | -
    0 | - | - | 0
    17 | - | - | 17
    99999999999999999999999 | - | - | 18446744073709551615
    -1 | - | - | -
    soon | - | - | -
    1.5 | - | - | -
    Sun, 06 Nov 1994 08:50:07 GMT | - | - | 30
    Sun, 06 Nov 1994 08:49:37 GMT | - | - | 0
    Sun, 06 Nov 1994 08:00:00 GMT | - | - | 0
    Sun, 99 Nov 1994 08:49:37 GMT | - | - | -
    - | 0 | 784111800 | 23
    - | 0 | 1 | 0
    - | 0 | -1 | 0
    - | 0 | x | -
    - | 5 | 784111800 | -
    3 | 0 | 784111800 | 3
";

#[test]
fn waits_are_read_from_headers() {
    // Sunday, 06 November 1994 08:49:37 GMT, the example of RFC 9110.
    let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
    for row @ [after, left, reset, wanted] in table(WAITS) {
        let mut map = HeaderMap::new();
        for (name, value) in [
            ("retry-after", after),
            ("x-ratelimit-remaining", left),
            ("x-ratelimit-reset", reset),
        ] {
            if value != "-" {
                map.insert(name, value.parse().unwrap());
            }
        }
        assert_eq!(
            asked_for(&map, now),
            wanted.parse().ok().map(Duration::from_secs),
            "{row:?}"
        );
    }
    for (value, wanted) in [("", None), (" 17 ", Some(Duration::from_secs(17)))] {
        let map = [(reqwest::header::RETRY_AFTER, value.parse().unwrap())]
            .into_iter()
            .collect();
        assert_eq!(asked_for(&map, now), wanted);
    }
}

#[test]
fn backoff_grows_with_jitter() {
    let base = Duration::from_millis(100);
    for tries in [1, 2, 3, 7, 40] {
        let most = base * (1 << (tries - 1).min(6));
        let waits: Vec<_> = (0..50).map(|_| backoff(base, tries)).collect();
        assert!(
            waits.iter().all(|wait| *wait >= most / 2 && *wait <= most),
            "{tries}"
        );
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }
}
