//! Where redirects may lead, and with what.

use tool_versions::{
    Kind,
    releases::http::{Auth, redirect},
};

use super::{
    ask, client, fails, get,
    server::{Server, ok, redirect},
};

#[tokio::test]
async fn redirects_are_followed_up_to_five() {
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

#[tokio::test]
async fn a_loop_is_found() {
    let server = Server::start(|request, _| redirect(if request.path == "/a" { "/b" } else { "/a" })).await;
    fails(get(&server.url("/a")).await, Kind::Unavailable, "a loop");
    assert_eq!(server.seen().len(), 2);
    let server = Server::start(|_, _| redirect("")).await;
    fails(get(&server.url("/a")).await, Kind::Integrity, "no address");
    let server = Server::start(|_, _| redirect("#again")).await;
    fails(get(&server.url("/a")).await, Kind::Unavailable, "a loop");
}

#[tokio::test]
async fn http_leads_to_no_other_host_by_http() {
    let server = Server::start(|_, _| ok("", b"of the other one")).await;
    let elsewhere = server.other_host("/x?signature=secret");
    let first = Server::start(move |_, _| redirect(&elsewhere)).await;
    let error = fails(get(&first.url("/")).await, Kind::Integrity, "which is not https");
    assert!(!error.text.contains("secret"), "{error}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn credentials_stay_with_the_server_they_are_for() {
    for auth in [Auth::Basic { user: "me".into(), password: "secret".into() }, Auth::Bearer("secret".into())] {
        assert!(!format!("{auth:?}").contains("secret"));
        // Another port of the same host is another server.
        let other = Server::start(|_, _| ok("", b"there")).await;
        let to = other.url("/there");
        let first = Server::start(move |request, _| redirect(if request.path == "/" { "/again" } else { &to })).await;
        client().get(ask(&first.url("/"), &auth), None).await.unwrap();
        let seen = first.seen();
        assert_eq!(seen.len(), 2);
        for request in &seen {
            let sent = request.header("authorization").unwrap();
            assert!(sent == "Basic bWU6c2VjcmV0" || sent == "Bearer secret", "{sent}");
        }
        assert_eq!(other.seen().len(), 1);
        assert_eq!(other.seen()[0].header("authorization"), None);
        assert!(other.seen()[0].header("referer").is_none() && other.seen()[0].header("cookie").is_none());
    }
}

#[tokio::test]
async fn an_answer_does_not_say_what_we_log_in_with() {
    let server = Server::start(|request, _| {
        let host = request.header("host").unwrap();
        if request.path == "/" { redirect(&format!("http://evil:word@{host}/x")) } else { ok("", b"there") }
    })
    .await;
    get(&server.url("/")).await.unwrap();
    assert_eq!(server.seen()[1].header("authorization"), None);
}

#[tokio::test]
async fn a_token_that_cannot_be_sent_is_an_error_without_it() {
    let server = Server::start(|_, _| ok("", b"")).await;
    let auth = Auth::Bearer("two\nlines".into());
    let error = fails(client().get(ask(&server.url("/"), &auth), None).await, Kind::Configuration, "cannot be asked");
    assert!(!error.text.contains("lines"), "{error}");
}

#[test]
fn next_is_decided_by_the_first_address_and_the_last() {
    let rows = [
        // First, last, where it leads, where that is, or what is said.
        ("https://a/x", "https://a/x", "/y", Ok("https://a/y")),
        ("https://a/x", "https://a/x/", "y?z=1#part", Ok("https://a/x/y?z=1")),
        ("https://a/x", "https://a/x", "https://b/y", Ok("https://b/y")),
        ("https://a/x", "https://a/x", "//b/y", Ok("https://b/y")),
        ("https://a/x", "https://a/x", "http://a/y", Err("not https")),
        ("http://a/x", "http://a/x", "https://a/x", Ok("https://a/x")),
        ("http://a/x", "http://a/x", "http://a:81/y", Ok("http://a:81/y")),
        ("http://a/x", "http://a/x", "http://b/y", Err("not https")),
        ("http://a/x", "https://b/x", "http://a/z", Ok("http://a/z")),
        ("https://a/x", "https://a/x", "ftp://a/y", Err("not https")),
        ("https://a/x", "https://a/x", "file:///etc/passwd", Err("not https")),
        ("https://a/x", "https://a/x", "data:text/plain,x", Err("not https")),
        ("https://a/x", "https://a/x", "javascript:alert(1)", Err("not https")),
        ("https://a/x", "https://a/x", "https://u:p@b/y", Ok("https://b/y")),
        ("https://a/x", "https://a/x", "https://u:p@b:99999/", Err("no address")),
        ("https://a/x", "https://a/x", "https://[::1", Err("no address")),
        ("https://a/x", "https://a/x", "  ", Err("no address")),
        ("https://a/x", "https://a/x", "https://a/x", Err("a loop")),
    ];
    for (first, last, location, wanted) in rows {
        let asked = [first.parse().unwrap(), last.parse().unwrap()];
        match (redirect::next(&asked, location.as_bytes()), wanted) {
            (Ok(url), Ok(wanted)) => assert_eq!(url.as_str(), wanted),
            (Err(error), Err(says)) => assert!(error.text.contains(says), "{location}: {error}"),
            (got, _) => panic!("{last} to {location}: {got:?}"),
        }
    }
    assert!(redirect::next(&["https://a/".parse().unwrap()], b"\xff").is_err());
    assert!(redirect::next(&[], b"https://a/").is_err());
}
