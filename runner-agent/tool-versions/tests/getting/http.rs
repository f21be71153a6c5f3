//! One request: statuses, lengths, types, deadlines, waits and redirects.

use std::time::{Duration, Instant, UNIX_EPOCH};

use reqwest::{Url, header::HeaderMap};
use tool_versions::{
    Kind,
    releases::http::{
        Answer, Auth, Client, Rules, redirect,
        waiting::{asked_for, backoff},
    },
};

use super::{
    SILENCE, ask, client, fails, get, get_by, rules,
    server::{Act, Server, answer, ok, redirect},
    short,
};

fn raw(bytes: &[u8]) -> Vec<Act> {
    vec![Act::Send(bytes.to_vec())]
}

#[tokio::test]
async fn body_and_etag_are_returned() {
    let server = Server::start(|_, _| ok("ETag: \"a\"", b"all of it")).await;
    let got = client().get(ask(&server.url("/x?y=1"), &Auth::None), None).await.unwrap();
    assert_eq!(got, Answer::Body { bytes: b"all of it".to_vec(), etag: Some("\"a\"".into()) });
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].path.as_str()), (1, "/x?y=1"));
    assert!(seen[0].header("user-agent").unwrap().starts_with("pawl-tool-versions/"));
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
        let got = client().get(ask(&url, &Auth::None), Some(tag)).await.unwrap();
        assert_eq!(matches!(got, Answer::Body { .. }), changed, "{tag}");
    }
    assert!(server.seen()[2].header("x").is_none());
}

/// An answer, the error for it, and the number of requests.
#[tokio::test]
async fn bad_answers_are_classified() {
    use Kind::{Configuration, Integrity, Unavailable};
    let empty = |head: &str| answer(&format!("{head}\nContent-Length: 0"), b"");
    let html = |kind: &str| ok(&format!("Content-Type: {kind}"), b"<html>");
    let rows = [
        (empty("404 Not Found"), Configuration, "there is no OpenTofu 1.99.0 at http://127.0.0.1", 1),
        (empty("410 Gone"), Configuration, "there is no OpenTofu 1.99.0", 1),
        (empty("401 Unauthorized"), Configuration, "credentials of the mirror", 1),
        (empty("403 Forbidden"), Configuration, "credentials of the mirror", 1),
        (empty("407 Proxy Authentication Required"), Configuration, "HTTPS_PROXY", 1),
        (empty("418 I'm a teapot"), Configuration, "418", 1),
        (empty("204 No Content"), Integrity, "no file", 1),
        (empty("206 Partial Content"), Integrity, "206", 1),
        (empty("300 Multiple Choices"), Integrity, "300", 1),
        (empty("302 Found"), Integrity, "302", 1),
        (empty("304 Not Modified"), Integrity, "304", 1),
        (empty("799 What"), Integrity, "799", 1),
        (empty("408 Request Timeout"), Unavailable, "tried 3 times", 3),
        (empty("425 Too Early"), Unavailable, "tried 3 times", 3),
        (empty("429 Too Many Requests"), Unavailable, "tried 3 times", 3),
        (empty("500 Internal Server Error"), Unavailable, "tried 3 times", 3),
        (empty("504 Gateway Timeout"), Unavailable, "tried 3 times", 3),
        // A wait that is too long is not waited for.
        (empty("503 Busy\nRetry-After: 3600"), Unavailable, "which is too late", 1),
        (empty("503 Busy\nRetry-After: 99999999999999999999999"), Unavailable, "which is too late", 1),
        (empty("503 Busy\nRetry-After: Fri, 31 Dec 2117 23:59:59 GMT"), Unavailable, "which is too late", 1),
        (empty("403 limit\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 4102444800"), Unavailable, "which is too late", 1),
        // Lengths.
        (answer("200 OK\nContent-Length: 100", b"only this"), Unavailable, "after 9 bytes of 100", 3),
        (answer("200 OK\nTransfer-Encoding: chunked", b"5\r\nhello\r\n"), Unavailable, "after 5 bytes", 3),
        (answer("200 OK\nTransfer-Encoding: chunked", b"zz\r\nhello\r\n"), Unavailable, "tried 3 times", 3),
        (answer("200 OK\nContent-Length: 4\nContent-Length: 9", b"good and more"), Unavailable, "tried 3 times", 3),
        (answer("200 OK\nContent-Length: 1048577", b"few"), Integrity, "more than 1048576 bytes", 1),
        (answer("200 OK\nContent-Length: 99999999999999", b"few"), Integrity, "more than 1048576 bytes", 1),
        (answer("200 OK", &vec![b'x'; 1_048_577]), Integrity, "more than 1048576 bytes", 1),
        // Types and encodings.
        (html("text/html"), Unavailable, "page of HTML for OpenTofu 1.99.0", 1),
        (html("Text/HTML; charset=utf-8"), Unavailable, "page of HTML", 1),
        (html("application/xhtml+xml"), Unavailable, "page of HTML", 1),
        (ok("Content-Encoding: gzip", b"\x1f\x8b"), Integrity, "encoded as gzip", 1),
        // No HTTP.
        (vec![], Unavailable, "tried 3 times", 3),
        (raw(b"HTTP/9.9 200 OK\r\n\r\n"), Unavailable, "tried 3 times", 3),
        (raw(b"\0\0\0\0"), Unavailable, "tried 3 times", 3),
        (raw(b"HTTP/1.1 20 OK\r\n\r\n"), Unavailable, "tried 3 times", 3),
        (raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), Unavailable, "tried 3 times", 3),
        (raw(b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n"), Unavailable, "tried 3 times", 3),
        (answer(&format!("200 OK\nX: {}", "x".repeat(1 << 20)), b""), Unavailable, "tried 3 times", 3),
        // Redirects.
        (redirect("/?token=secret"), Unavailable, "a loop", 1),
        (redirect("?token=secret#again"), Unavailable, "a loop", 1),
        (redirect("http://localhost:9/?token=secret"), Integrity, "which is not https", 1),
        (redirect("ftp://127.0.0.1/"), Integrity, "which is not https", 1),
        (redirect("file:///etc/passwd"), Integrity, "", 1),
        (redirect("data:text/plain,x"), Integrity, "", 1),
        (redirect("https://[::1"), Integrity, "", 1),
        (redirect("https://u:p@b:99999/"), Integrity, "", 1),
    ];
    for (acts, kind, says, requests) in rows {
        let shown = format!("{:.200}", format!("{acts:?}"));
        let server = Server::start(move |_, _| acts.clone()).await;
        let error = get(&server.url("/?token=secret")).await.expect_err(&shown);
        assert!(error.kind == kind && error.text.contains(says), "{shown}: {:?} {error}", error.kind);
        assert!(!error.text.contains("secret"), "{shown}: {error}");
        assert_eq!(server.seen().len(), requests, "{shown}");
    }
}

#[tokio::test]
async fn odd_answers_have_their_body() {
    let odd = |head: &[u8]| raw(&[b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n", head, b"\r\n\r\ngood"].concat());
    let full = vec![b'g'; 1 << 20];
    let rows = [
        (odd(b"ETag: \xff\xfe"), &b"good"[..]),
        (odd(b"Content-Type: \xff"), b"good"),
        (odd(b"Content-Range: bytes 9-1/0"), b"good"),
        (odd(b"Retry-After: -7"), b"good"),
        (odd(b"ETag: "), b"good"),
        (odd(b"X-RateLimit-Remaining: \xff"), b"good"),
        (odd(b"X-RateLimit-Remaining: 0"), b"good"),
        (answer("200 OK\nContent-Length: 4", b"good and more"), b"good"),
        (answer("200 OK", &full), &full),
        (ok("", &full), &full),
    ];
    for (acts, body) in rows {
        let shown = format!("{:.200}", format!("{acts:?}"));
        let server = Server::start(move |_, _| acts.clone()).await;
        assert!(get(&server.url("/")).await.expect(&shown) == body, "{shown}");
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
        (answer("503 Service Unavailable\nContent-Length: 0", b""), 0),
        (answer("200 OK\nContent-Length: 10", b"cut"), 0),
        (raw(b"garbage\r\n\r\n"), 0),
        (vec![], 0),
        (answer("429 Too Many Requests\nContent-Length: 0\nRetry-After: 1", b""), 1),
        // GitHub's secondary rate limit.
        (answer("403 limit\nContent-Length: 0\nRetry-After: 1\nX-RateLimit-Remaining: 4000", b""), 1),
    ] {
        let server = Server::start(move |_, count| if count == 0 { bad.clone() } else { ok("", b"good") }).await;
        let begun = Instant::now();
        assert_eq!(get(&server.url("/")).await.unwrap(), b"good");
        assert_eq!(server.seen().len(), 2);
        assert!(begun.elapsed() >= Duration::from_secs(least));
    }
}

#[tokio::test]
async fn silence_and_slow_bodies_time_out() {
    // Before the head, in the body, and before TLS.
    let server = Server::start(|_, _| vec![Act::Hang]).await;
    fails(get_by(short(), &server.url("/")).await, Kind::Unavailable, "tried 3 times");
    let hang = || [answer("200 OK\nContent-Length: 100", b"some"), vec![Act::Hang]].concat();
    let stalled = Server::start(move |_, _| hang()).await;
    let once = Rules { silence: SILENCE, tries: 1, ..rules() };
    fails(get_by(once, &stalled.url("/")).await, Kind::Unavailable, "after 4 bytes of 100");
    let patient = Rules { silence: Duration::from_secs(9), ..short() };
    let url = server.url("/").replace("http:", "https:");
    fails(get_by(patient, &url).await, Kind::Unavailable, "tried 3 times");
    // Neither silent nor cut: only the deadline of the whole ends it.
    let drip = || {
        let mut acts = answer("200 OK\nContent-Length: 100000", b"");
        (0..800).for_each(|_| acts.extend([Act::Wait(Duration::from_millis(50)), Act::Send(b"x".to_vec())]));
        acts
    };
    let server = Server::start(move |_, _| drip()).await;
    let result = get_by(Rules { small: Duration::from_secs(5), ..rules() }, &server.url("/")).await;
    fails(result, Kind::Unavailable, "did not give OpenTofu 1.99.0 within 5 s");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn settings_are_checked_before_a_request() {
    for (url, says) in [
        ("ftp://example.org/x", "neither https nor http"),
        ("file:///etc/passwd", "neither https nor http"),
        ("example.org/x", "no address"),
        ("https://me:secret@example.org/x", "has a name or a password"),
        ("https://token@example.org/x", "has a name or a password"),
    ] {
        let error = fails(get(url).await, Kind::Configuration, says);
        assert!(!error.text.contains("secret") && !error.text.contains("token"), "{error}");
    }
    for pem in ["", "no PEM", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----"] {
        fails(Client::new(rules(), Some(pem)), Kind::Configuration, "certificate authorities");
    }
    let token = Auth::Bearer("two\nlines".into());
    let error = fails(client().get(ask("http://127.0.0.1:9/", &token), None).await, Kind::Configuration, "cannot be requested");
    assert!(!error.text.contains("lines"), "{error}");
}

#[tokio::test]
async fn five_redirects_are_followed() {
    let server = Server::start(|request, _| {
        let at: u32 = request.path.trim_start_matches('/').parse().unwrap();
        if at == 0 { ok("", b"there") } else { redirect(&format!("/{}", at - 1)) }
    })
    .await;
    assert_eq!(get(&server.url("/5")).await.unwrap(), b"there");
    assert_eq!(server.seen().len(), 6);
    fails(get(&server.url("/6")).await, Kind::Unavailable, "more than 5 times");
    assert_eq!(server.seen().len(), 12);
}

/// Another port of the same host is another server. It redirects back, and still no credentials are sent.
#[tokio::test]
async fn credentials_stay_with_the_server_they_are_for() {
    for auth in [Auth::Basic { user: "me".into(), password: "secret".into() }, Auth::Bearer("secret".into())] {
        assert!(!format!("{auth:?}").contains("secret"));
        let other = Server::start(|request, _| redirect(request.path.trim_start_matches("/to="))).await;
        let away = other.url("/to=");
        let first = Server::start(move |request, _| match request.path.as_str() {
            "/" => redirect("/again"),
            "/again" => redirect(&format!("{away}http://evil:word@{}/back", request.header("host").unwrap())),
            _ => ok("", b"there"),
        })
        .await;
        client().get(ask(&first.url("/"), &auth), None).await.unwrap();
        let sent: Vec<_> = first.seen().iter().map(|request| request.header("authorization").map(str::to_owned)).collect();
        let ours = if matches!(auth, Auth::Basic { .. }) { "Basic bWU6c2VjcmV0" } else { "Bearer secret" };
        assert_eq!(sent, [Some(ours.to_owned()), Some(ours.to_owned()), None]);
        assert_eq!(other.seen().len(), 1);
        for name in ["authorization", "referer", "cookie"] {
            assert_eq!(other.seen()[0].header(name), None);
        }
    }
}

#[test]
fn redirect_targets_are_checked() {
    // First, last, target, and the error.
    let rows = [
        ("https://a/x", "https://a/x", "https://a/y", None),
        ("https://a/x", "https://a/x/", "https://a/x/y?z=1#part", None),
        ("https://a/x", "https://a/x", "https://b/y", None),
        ("https://a/x", "https://a/x", "https://u:p@b/y", None),
        ("http://a/x", "http://a/x", "https://a/x", None),
        ("http://a/x", "http://a/x", "http://a:81/y", None),
        ("http://a/x", "https://b/x", "http://a/z", None),
        ("https://a/x", "https://a/x", "http://a/y", Some("not https")),
        ("http://a/x", "http://a/x", "http://b/y", Some("not https")),
        ("https://a/x", "https://a/x", "ftp://a/y", Some("not https")),
        ("https://a/x", "https://a/x", "file:///etc/passwd", Some("not https")),
        ("https://a/x", "https://a/x", "data:text/plain,x", Some("not https")),
        ("https://a/x", "https://a/x", "javascript:alert(1)", Some("not https")),
        ("https://a/x", "https://a/x", "https://a/x#part", Some("a loop")),
    ];
    for (first, last, to, wanted) in rows {
        let asked: [Url; 2] = [first.parse().unwrap(), last.parse().unwrap()];
        match (redirect::check(&asked, &to.parse().unwrap()), wanted) {
            (Ok(()), None) => {}
            (Err(error), Some(says)) => assert!(error.text.contains(says), "{to}: {error}"),
            (got, _) => panic!("{last} to {to}: {got:?}"),
        }
    }
    assert!(redirect::check(&[], &"https://a/".parse().unwrap()).is_err());
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
fn backoff_grows_with_jitter() {
    let base = Duration::from_millis(100);
    for tries in [1, 2, 3, 7, 40] {
        let most = base * (1 << (tries - 1).min(6));
        let waits: Vec<_> = (0..50).map(|_| backoff(base, tries)).collect();
        assert!(waits.iter().all(|wait| *wait >= most / 2 && *wait <= most), "{tries}");
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }
}
