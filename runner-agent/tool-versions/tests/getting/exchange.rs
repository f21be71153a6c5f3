//! Statuses, lengths, kinds and deadlines.

use std::time::Duration;

use tool_versions::{
    Kind,
    releases::http::{Answer, Auth, Client, Rules},
};

use super::{
    SILENCE, ask, client, fails, get, get_by, rules,
    server::{Act, Server, answer, ok},
    short,
};

#[tokio::test]
async fn a_body_comes_as_it_is() {
    let server = Server::start(|_, _| ok("ETag: \"a\"", b"all of it")).await;
    let got = client().get(ask(&server.url("/x?y=1"), &Auth::None), None).await.unwrap();
    assert_eq!(got, Answer::Body { bytes: b"all of it".to_vec(), etag: Some("\"a\"".into()) });
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].path.as_str()), (1, "/x?y=1"));
    assert!(seen[0].header("user-agent").unwrap().starts_with("pawl-tool-versions/"));
    assert_eq!(seen[0].header("accept-encoding"), Some("identity"));
}

#[tokio::test]
async fn a_tag_is_sent_and_its_word_believed() {
    let server = Server::start(|request, _| match request.header("if-none-match") {
        Some("\"a\"") => answer("304 Not Modified", b""),
        _ => ok("", b"new"),
    })
    .await;
    let url = server.url("/");
    assert_eq!(client().get(ask(&url, &Auth::None), Some("\"a\"")).await.unwrap(), Answer::NotModified);
    assert!(matches!(client().get(ask(&url, &Auth::None), Some("\"b\"")).await.unwrap(), Answer::Body { .. }));
    // A tag that cannot be sent, of a cache that somebody else wrote, is not sent.
    assert!(matches!(client().get(ask(&url, &Auth::None), Some("\"a\"\r\nX: y")).await.unwrap(), Answer::Body { .. }));
    assert!(server.seen()[2].header("x").is_none());
}

#[tokio::test]
async fn not_modified_that_nobody_asked_for_is_no_answer() {
    let server = Server::start(|_, _| answer("304 Not Modified", b"")).await;
    fails(get(&server.url("/")).await, Kind::Integrity, "304");
}

#[tokio::test]
async fn statuses_are_sorted_by_whose_they_are() {
    let rows = [
        ("404 Not Found", Kind::Configuration, "there is no OpenTofu 1.99.0 at http://127.0.0.1", 1),
        ("410 Gone", Kind::Configuration, "there is no OpenTofu 1.99.0", 1),
        ("401 Unauthorized", Kind::Configuration, "credentials of the mirror", 1),
        ("403 Forbidden", Kind::Configuration, "credentials of the mirror", 1),
        ("407 Proxy Authentication Required", Kind::Configuration, "HTTPS_PROXY", 1),
        ("418 I'm a teapot", Kind::Configuration, "418", 1),
        ("204 No Content", Kind::Integrity, "no file", 1),
        ("206 Partial Content", Kind::Integrity, "206", 1),
        ("300 Multiple Choices", Kind::Integrity, "300", 1),
        ("302 Found", Kind::Integrity, "302", 1),
        ("799 What", Kind::Integrity, "799", 1),
        ("408 Request Timeout", Kind::Unavailable, "tried 3 times", 3),
        ("425 Too Early", Kind::Unavailable, "tried 3 times", 3),
        ("429 Too Many Requests", Kind::Unavailable, "tried 3 times", 3),
        ("500 Internal Server Error", Kind::Unavailable, "tried 3 times", 3),
        ("502 Bad Gateway", Kind::Unavailable, "tried 3 times", 3),
        ("503 Service Unavailable", Kind::Unavailable, "tried 3 times", 3),
        ("504 Gateway Timeout", Kind::Unavailable, "tried 3 times", 3),
    ];
    for (status, kind, says, tries) in rows {
        let server = Server::start(move |_, _| answer(&format!("{status}\nContent-Length: 0"), b"")).await;
        fails(get(&server.url("/")).await, kind, says);
        assert_eq!(server.seen().len(), tries, "{status}");
    }
}

#[tokio::test]
async fn what_fails_once_is_tried_again() {
    for bad in [
        answer("503 Service Unavailable\nContent-Length: 0", b""),
        answer("200 OK\nContent-Length: 10", b"cut"),
        vec![Act::Send(b"garbage\r\n\r\n".to_vec())],
        vec![],
    ] {
        let server = Server::start(move |_, count| if count == 0 { bad.clone() } else { ok("", b"good") }).await;
        assert_eq!(get(&server.url("/")).await.unwrap(), b"good");
        assert_eq!(server.seen().len(), 2);
    }
}

#[tokio::test]
async fn a_truncated_body_is_no_body() {
    let server = Server::start(|_, _| answer("200 OK\nContent-Length: 100", b"only this")).await;
    let error = fails(get(&server.url("/t?token=secret")).await, Kind::Unavailable, "after 9 bytes of 100");
    assert!(error.text.contains("tried 3 times") && !error.text.contains("secret"), "{error}");
    let server = Server::start(|_, _| answer("200 OK\nTransfer-Encoding: chunked", b"5\r\nhello\r\n")).await;
    fails(get(&server.url("/")).await, Kind::Unavailable, "after 5 bytes");
    let server = Server::start(|_, _| answer("200 OK\nTransfer-Encoding: chunked", b"zz\r\nhello\r\n")).await;
    fails(get(&server.url("/")).await, Kind::Unavailable, "tried 3 times");
}

#[tokio::test]
async fn silence_ends_by_itself() {
    // Before the head, and in the body.
    let server = Server::start(|_, _| vec![Act::Hang]).await;
    fails(get_by(short(), &server.url("/")).await, Kind::Unavailable, "did not answer within 0.6 s; tried 3 times");
    let hang = || [answer("200 OK\nContent-Length: 100", b"some"), vec![Act::Hang]].concat();
    let server = Server::start(move |_, _| hang()).await;
    let once = Rules { silence: SILENCE, tries: 1, ..rules() };
    fails(get_by(once, &server.url("/")).await, Kind::Unavailable, "was silent for 4 s after 4 bytes of 100");
    // A connection that is taken, and no more: TLS never begins.
    let server = Server::start(|_, _| vec![Act::Hang]).await;
    let url = server.url("/").replace("http:", "https:");
    let patient = Rules { silence: Duration::from_secs(9), ..short() };
    fails(get_by(patient, &url).await, Kind::Unavailable, "tried 3 times");
}

#[tokio::test]
async fn a_slow_body_ends_with_the_whole_deadline() {
    let drip = || {
        let mut acts = answer("200 OK\nContent-Length: 100000", b"");
        (0..800).for_each(|_| acts.extend([Act::Wait(Duration::from_millis(50)), Act::Send(b"x".to_vec())]));
        acts
    };
    let server = Server::start(move |_, _| drip()).await;
    // Neither silent nor cut, so that nothing else ends it.
    let result = get_by(Rules { small: Duration::from_secs(5), ..rules() }, &server.url("/")).await;
    fails(result, Kind::Unavailable, "did not give OpenTofu 1.99.0 within 5 s");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn more_than_the_cap_is_refused() {
    let auth = Auth::None;
    for (head, tries) in [("200 OK\nContent-Length: 11", 1), ("200 OK", 1), ("200 OK\nContent-Length: 99999999999999", 1)] {
        // Of the huge one nothing has to come to know it.
        let body: &[u8] = if head.contains("9999") { b"few" } else { b"eleven byte" };
        let server = Server::start(move |_, _| answer(head, body)).await;
        let url = server.url("/");
        let mut request = ask(&url, &auth);
        request.cap = 10;
        fails(client().get(request, None).await, Kind::Integrity, "more than 10 bytes");
        assert_eq!(server.seen().len(), tries, "{head}");
        request.cap = 11;
        if !head.contains("9999") {
            assert!(client().get(request, None).await.is_ok(), "{head}");
        }
    }
}

#[tokio::test]
async fn what_follows_the_announced_length_is_no_part() {
    let server = Server::start(|_, _| answer("200 OK\nContent-Length: 4", b"good and more")).await;
    assert_eq!(get(&server.url("/")).await.unwrap(), b"good");
    // Two lengths that contradict each other.
    let server = Server::start(|_, _| answer("200 OK\nContent-Length: 4\nContent-Length: 9", b"good and more")).await;
    fails(get(&server.url("/")).await, Kind::Unavailable, "tried 3 times");
}

#[tokio::test]
async fn a_page_of_html_is_no_release() {
    let page = b"<html><body>Please log in</body></html>";
    for kind in ["text/html", "Text/HTML; charset=utf-8", "application/xhtml+xml"] {
        let server = Server::start(move |_, _| ok(&format!("Content-Type: {kind}"), page)).await;
        let url = server.url("/");
        fails(get(&url).await, Kind::Unavailable, "page of HTML for OpenTofu 1.99.0");
        assert_eq!(server.seen().len(), 1);
        let mut request = ask(&url, &Auth::None);
        request.html = true;
        assert!(client().get(request, None).await.is_ok());
    }
}

#[tokio::test]
async fn what_was_packed_on_the_way_is_refused() {
    let server = Server::start(|_, _| ok("Content-Encoding: gzip", b"\x1f\x8b")).await;
    fails(get(&server.url("/")).await, Kind::Integrity, "packed as gzip");
}

#[tokio::test]
async fn odd_heads_end_in_an_error_or_a_body() {
    let odd = |head: &[u8]| vec![Act::Send([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", head, b"\r\n\r\nok"].concat())];
    for head in [
        &b"ETag: \xff\xfe"[..],
        b"Content-Type: \xff",
        b"Content-Range: bytes 9-1/0",
        b"Retry-After: -7",
        b"ETag: ",
        b"X-RateLimit-Remaining: \xff",
    ] {
        let server = Server::start(move |_, _| odd(head)).await;
        assert_eq!(get(&server.url("/")).await.unwrap(), b"ok", "{}", String::from_utf8_lossy(head));
    }
    for bytes in [
        &b"HTTP/9.9 200 OK\r\n\r\n"[..],
        b"\0\0\0\0",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
    ] {
        let server = Server::start(move |_, _| vec![Act::Send(bytes.to_vec())]).await;
        fails(get(&server.url("/")).await, Kind::Unavailable, "tried 3 times");
    }
    // A head without an end.
    let server = Server::start(|_, _| answer(&format!("200 OK\nX: {}", "x".repeat(1 << 20)), b"")).await;
    fails(get(&server.url("/")).await, Kind::Unavailable, "tried 3 times");
}

#[tokio::test]
async fn nobody_at_home_is_unavailable() {
    let address = Server::start(|_, _| vec![]).await.address;
    let error = fails(get(&format!("http://{address}/?token=secret")).await, Kind::Unavailable, "tried 3 times");
    assert!(!error.text.contains("secret"), "{error}");
}

#[tokio::test]
async fn addresses_are_judged_before_anything_is_sent() {
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
}

#[test]
fn an_authority_has_to_be_one() {
    for pem in ["", "no PEM", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----"] {
        fails(Client::new(rules(), Some(pem)), Kind::Configuration, "certificate authorities");
    }
}
