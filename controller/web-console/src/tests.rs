use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use serde_json::{Value, json};
use serving::connections::Peer;
use tower::ServiceExt as _;

use super::*;
use crate::{person::Person, session::Session, testing::console};

const URL: &str = "https://pawl.example/base";
/// As a browser sends a change of a page of ours through the proxy.
const CHANGE: [(&str, &str); 5] = [
    ("host", "pawl.example"),
    ("origin", "https://pawl.example"),
    ("sec-fetch-site", "same-origin"),
    ("pawl-request", "1"),
    ("x-forwarded-proto", "https"),
];

struct Sent<'a> {
    method: Method,
    path: &'a str,
    headers: Vec<(&'a str, String)>,
    peer: &'a str,
    body: Value,
}

fn post(path: &str, body: Value) -> Sent<'_> {
    let headers = CHANGE.map(|(name, value)| (name, value.to_owned()));
    Sent {
        method: Method::POST,
        path,
        headers: headers.into(),
        peer: "10.1.2.3",
        body,
    }
}

fn get(path: &str) -> Sent<'_> {
    Sent {
        method: Method::GET,
        ..post(path, Value::Null)
    }
}

impl<'a> Sent<'a> {
    fn with(mut self, name: &'a str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(found, _)| *found != name);
        self
    }

    fn replaced(self, name: &'a str, value: &str) -> Self {
        self.without(name).with(name, value)
    }

    async fn to(self, console: &Arc<Console>) -> (StatusCode, HeaderMap, Value) {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let peer = Peer(self.peer.parse().unwrap());
        let request = request
            .extension(peer)
            .body(Body::from(self.body.to_string()))
            .unwrap();
        parts(router(console.clone()).oneshot(request).await.unwrap()).await
    }

    async fn reason(self, console: &Arc<Console>) -> String {
        let (_, _, body) = self.to(console).await;
        body["reason"].as_str().unwrap_or("-").to_owned()
    }
}

async fn parts(response: Response) -> (StatusCode, HeaderMap, Value) {
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    (
        parts.status,
        parts.headers,
        serde_json::from_slice(&body).unwrap_or_default(),
    )
}

fn cookies(headers: &HeaderMap) -> String {
    testing::sent_back(headers.get_all(header::SET_COOKIE))
}

async fn logged_in(console: &Arc<Console>, token: &str) -> String {
    let (status, headers, me) = log_in(token).to(console).await;
    assert_eq!(status, StatusCode::OK, "{me}");
    cookies(&headers)
}

fn log_in(token: &str) -> Sent<'static> {
    post("/api/v1/login/token", json!({"token": token}))
}

#[tokio::test]
async fn session_larger_than_the_proxy_passes_on_is_refused() {
    let console = console(URL);
    let earlier = logged_in(&console, "ada.1").await;
    let large = format!("ada.{}", "~".repeat(2600));
    let through = log_in(&large).with("cookie", &earlier);
    let (status, headers, problem) = through.to(&console).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{problem}");
    assert!(!headers.contains_key(header::SET_COOKIE));
    let words = problem["detail"].as_str().unwrap();
    assert!(words.contains("server.proxyBufferSize: 16384"), "{words}");
    let (status, ..) = get("/base/api/v1/me")
        .with("cookie", &earlier)
        .to(&console)
        .await;
    assert_eq!(status, StatusCode::OK, "the earlier session goes on");
    // Without a proxy nothing is in the way.
    let local = crate::testing::console("http://127.0.0.1:8444");
    let direct = log_in(&large)
        .replaced("host", "127.0.0.1")
        .replaced("origin", "http://127.0.0.1:8444")
        .without("x-forwarded-proto");
    assert_eq!(direct.to(&local).await.0, StatusCode::OK);
}

#[tokio::test]
async fn token_becomes_a_session_of_the_person() {
    let console = console(URL);
    let cookie = logged_in(&console, "ada.1\n").await;
    let (status, headers, me) = get("/base/api/v1/me")
        .with("cookie", &cookie)
        .to(&console)
        .await;
    assert_eq!(
        (status, &me["user"], &me["method"]),
        (StatusCode::OK, &json!("ada"), &json!("Token"))
    );
    assert_eq!(me["url"], URL);
    assert_eq!(headers[header::CACHE_CONTROL], "no-store");
    let bearer = get("/api/v1/me")
        .with("authorization", "Bearer bob")
        .to(&console)
        .await;
    assert_eq!(
        (bearer.0, &bearer.2["method"]),
        (StatusCode::OK, &json!("Bearer"))
    );
    assert_eq!(get("/api/v1/me").reason(&console).await, "Unauthenticated");
}

#[tokio::test]
async fn refused_login_leaves_the_earlier_session() {
    let console = console(URL);
    let cookie = logged_in(&console, "ada").await;
    for token in ["bad", "", "two words", &"a".repeat(20_000)] {
        let (status, headers, problem) = log_in(token).with("cookie", &cookie).to(&console).await;
        assert_eq!(
            (status, &problem["reason"]),
            (StatusCode::FORBIDDEN, &json!("InvalidToken"))
        );
        assert!(!headers.contains_key(header::SET_COOKIE));
    }
    assert_eq!(
        log_in(&"~".repeat(9000)).reason(&console).await,
        "TokenTooLarge"
    );
    assert_eq!(
        get("/api/v1/me")
            .with("cookie", &cookie)
            .reason(&console)
            .await,
        "-"
    );
}

#[tokio::test]
async fn login_ends_the_earlier_session() {
    let console = console(URL);
    let earlier = logged_in(&console, "eve").await;
    let (_, headers, _) = log_in("ada").with("cookie", &earlier).to(&console).await;
    assert_ne!(cookies(&headers), earlier);
    let of = async |cookie: &str| get("/api/v1/me").with("cookie", cookie).to(&console).await;
    assert_eq!(of(&earlier).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(of(&cookies(&headers)).await.2["user"], "ada");
}

#[tokio::test]
async fn session_is_refused_after_logout() {
    let console = console(URL);
    let cookie = logged_in(&console, "ada").await;
    let (status, headers, _) = post("/api/v1/logout", Value::Null)
        .with("cookie", &cookie)
        .to(&console)
        .await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let removed = headers.get_all(header::SET_COOKIE).iter();
    assert!(
        removed
            .filter(|cookie| cookie.to_str().unwrap().contains("Max-Age=0"))
            .count()
            == 3
    );
    assert_eq!(
        get("/api/v1/me")
            .with("cookie", &cookie)
            .reason(&console)
            .await,
        "Unauthenticated"
    );
}

#[tokio::test]
async fn code_logs_in_once() {
    let console = console(URL);
    let make = || {
        post("/api/v1/codes", Value::Null)
            .without("origin")
            .without("sec-fetch-site")
            .without("pawl-request")
    };
    let (status, _, made) = make()
        .with("authorization", "Bearer ada")
        .to(&console)
        .await;
    assert_eq!(status, StatusCode::CREATED);
    let code = made["code"].as_str().unwrap();
    assert_eq!(made["link"], format!("{URL}/#code={code}"));
    let log_in = |code: &str| post("/api/v1/login/code", json!({"code": code}));
    assert_eq!(log_in(&code[1..]).reason(&console).await, "InvalidCode");
    assert_eq!(log_in(code).to(&console).await.2["user"], "ada");
    assert_eq!(log_in(code).reason(&console).await, "InvalidCode");
    let cookie = logged_in(&console, "ada").await;
    let by_session = post("/api/v1/codes", Value::Null).with("cookie", &cookie);
    assert_eq!(by_session.reason(&console).await, "BearerRequired");
    for _ in 0..8 {
        assert_eq!(
            make()
                .with("authorization", "Bearer ada")
                .to(&console)
                .await
                .0,
            StatusCode::CREATED
        );
    }
    assert_eq!(
        make()
            .with("authorization", "Bearer ada")
            .reason(&console)
            .await,
        "TooManyCodes"
    );
    assert_eq!(
        make()
            .with("authorization", "Bearer bob")
            .to(&console)
            .await
            .0,
        StatusCode::CREATED
    );
}

#[tokio::test(start_paused = true)]
async fn code_expires() {
    let console = console(URL);
    let made = post("/api/v1/codes", Value::Null)
        .with("authorization", "Bearer ada")
        .to(&console)
        .await
        .2;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let late = post("/api/v1/login/code", json!({"code": made["code"]}));
    assert_eq!(late.reason(&console).await, "InvalidCode");
}

#[tokio::test(start_paused = true)]
async fn flood_of_forged_tokens_makes_no_one_wait() {
    let console = console(URL);
    let forged = async |number: usize, peer| {
        let bearer = format!("Bearer bad-slow-{number}");
        let sent = Sent {
            peer,
            ..get("/api/v1/me")
        };
        sent.with("authorization", &bearer).reason(&console).await
    };
    // Of another replica, so unknown to this one but for its cookie.
    let session = Session::new(testing::token("ada"), person::Method::Token).unwrap();
    let cookie = testing::sent_back(&console.sessions.cookies(&session).unwrap());
    let begun = tokio::time::Instant::now();
    let flood = futures::future::join_all((0..1000).map(|number| forged(number, "192.0.2.1")));
    let others = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let person = get("/api/v1/me").with("cookie", &cookie).to(&console).await;
        let newcomer = log_in("bob").to(&console).await;
        let seen = get("/api/v1/me")
            .with("authorization", "Bearer eve")
            .with("x-forwarded-for", "192.0.2.1, 198.51.100.7");
        let through_the_proxy = seen.to(&console).await;
        for (status, _, me) in [person, newcomer, through_the_proxy] {
            assert_eq!(status, StatusCode::OK, "{me}");
        }
        begun.elapsed()
    };
    let (reasons, waited) = tokio::join!(flood, others);
    assert!(waited < testing::SLOW, "{waited:?}");
    let refused = |reason: &str| reasons.iter().filter(|it| **it == reason).count();
    assert_eq!(
        (refused("TooManyTokens"), refused("Unauthenticated")),
        (990, 10)
    );
    // The same through a proxy, where the flood has an address of its own.
    let flood = (0..20).map(async |number| {
        let bearer = format!("Bearer bad-{number}");
        let sent = get("/api/v1/me").with("x-forwarded-for", "203.0.113.9");
        sent.with("authorization", &bearer).reason(&console).await
    });
    let reasons = futures::future::join_all(flood).await;
    assert_eq!(
        reasons.iter().filter(|it| **it == "TooManyTokens").count(),
        10
    );
    assert_eq!(log_in("zoe").to(&console).await.0, StatusCode::OK);
}

#[tokio::test]
async fn change_of_another_page_is_refused() {
    let console = console(URL);
    let change = || log_in("ada");
    for (name, value, reason) in [
        ("origin", "https://evil.example", "OtherOrigin"),
        ("origin", "https://pawl.example:8443", "OtherOrigin"),
        ("origin", "http://pawl.example", "OtherOrigin"),
        ("origin", "null", "OtherOrigin"),
        ("sec-fetch-site", "same-site", "OtherOrigin"),
        ("sec-fetch-site", "cross-site", "OtherOrigin"),
        ("sec-fetch-site", "none", "OtherOrigin"),
        ("pawl-request", "0", "NotAsked"),
    ] {
        assert_eq!(
            change().replaced(name, value).reason(&console).await,
            reason,
            "{name}: {value}"
        );
    }
    assert_eq!(
        change().without("pawl-request").reason(&console).await,
        "NotAsked"
    );
    let neither = change().without("origin").without("sec-fetch-site");
    assert_eq!(neither.reason(&console).await, "OtherOrigin");
    // A browser sends these by itself.
    let basic = change()
        .without("pawl-request")
        .with("authorization", "Basic YTpi");
    assert_eq!(basic.reason(&console).await, "NotAsked");
    for one in ["origin", "sec-fetch-site"] {
        assert_eq!(change().without(one).to(&console).await.0, StatusCode::OK);
    }
    let preflight = Sent {
        method: Method::OPTIONS,
        ..change()
    };
    let (_, headers, _) = preflight.to(&console).await;
    assert!(
        !headers
            .keys()
            .any(|name| name.as_str().starts_with("access-control"))
    );
}

#[tokio::test]
async fn login_over_plain_http_is_refused() {
    let remote = console(URL);
    assert_eq!(
        log_in("ada")
            .without("x-forwarded-proto")
            .reason(&remote)
            .await,
        "PlainHttp"
    );
    for proto in ["http", "https, http", "HTTPS://", ""] {
        assert_eq!(
            log_in("ada")
                .replaced("x-forwarded-proto", proto)
                .reason(&remote)
                .await,
            "PlainHttp",
            "{proto}"
        );
    }
    let forged = Sent {
        peer: "192.0.2.1",
        ..log_in("ada")
    };
    assert_eq!(forged.reason(&remote).await, "PlainHttp");
    let local = log_in("ada").replaced("host", "localhost");
    assert_eq!(
        local.without("x-forwarded-proto").reason(&remote).await,
        "PlainHttp"
    );

    let loopback = console("http://127.0.0.1:8444");
    let forwarded = |host: &str| {
        let sent = log_in("ada")
            .replaced("host", host)
            .replaced("origin", "http://localhost:9000");
        sent.without("x-forwarded-proto")
    };
    assert_eq!(
        forwarded("localhost:9000").to(&loopback).await.0,
        StatusCode::OK
    );
    assert_eq!(
        forwarded("pawl.example").reason(&loopback).await,
        "PlainHttp"
    );
    let code = post("/api/v1/login/code", json!({"code": "x"})).without("x-forwarded-proto");
    assert_eq!(code.reason(&remote).await, "PlainHttp");
}

#[tokio::test]
async fn ambiguous_request_is_refused() {
    let console = console(URL);
    let cookie = logged_in(&console, "ada").await;
    let me = || get("/api/v1/me");
    let both = me()
        .with("cookie", &cookie)
        .with("authorization", "Bearer bob");
    assert_eq!(both.reason(&console).await, "TwoIdentities");
    for (name, value) in [
        ("authorization", "Bearer bob"),
        ("cookie", &cookie),
        ("origin", URL),
        ("host", "pawl.example"),
    ] {
        let twice = me().replaced(name, value).with(name, value);
        assert_eq!(twice.reason(&console).await, "DuplicateHeader", "{name}");
    }
    let twice = me().with("cookie", &format!("{cookie}; {cookie}"));
    assert_eq!(twice.reason(&console).await, "DuplicateCookie");
    assert_eq!(
        me().with("cookie", "__Host-pawl-00000000=1x")
            .reason(&console)
            .await,
        "Unauthenticated"
    );
}

#[tokio::test]
async fn body_has_bounds() {
    let console = console(URL);
    assert_eq!(
        log_in(&"a".repeat(65 << 10)).reason(&console).await,
        "TooLarge"
    );
    assert_eq!(
        post("/api/v1/login/token", json!([]))
            .reason(&console)
            .await,
        "Invalid"
    );
}

#[tokio::test(start_paused = true)]
async fn slow_body_is_refused() {
    let mut request = Request::post("/api/v1/login/token");
    for (name, value) in CHANGE {
        request = request.header(name, value);
    }
    let body = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    let request = request.body(Body::from_stream(body)).unwrap();
    let response = router(console(URL)).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn each_response_limits_the_browser() {
    let console = console(URL);
    for path in ["/api/v1/me", "/base/api/v1/me", "/nowhere"] {
        let (_, headers, _) = get(path).to(&console).await;
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains("frame-ancestors 'none'") && policy.contains("default-src 'none'"));
        assert_eq!(
            headers[header::X_FRAME_OPTIONS],
            HeaderValue::from_static("DENY"),
            "{path}"
        );
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    }
}

#[tokio::test]
async fn person_ends_with_logout() {
    let console = console(URL);
    let session = Session::new(testing::token("ada"), person::Method::Token).unwrap();
    let cookies = console.sessions.cookies(&session).unwrap();
    let mut person = Person::of_token(&console.api_server, session.token)
        .await
        .unwrap();
    person.session = Some(session.id);
    assert!(!cookies.is_empty());
    let ends = person::ends(&person, &console);
    tokio::join!(ends, async { console.sessions.end(session.id) });
}

#[test]
fn base_path_is_stripped_if_it_is_there() {
    for (base, path, rest) in [
        ("", "/runs?a=b", "/runs?a=b"),
        ("/pawl", "/pawl/runs?a=b", "/runs?a=b"),
        ("/pawl", "/runs", "/runs"),
        ("/pawl", "/pawl", "/"),
        ("/pawl", "/pawl/", "/"),
        ("/pawl", "/pawl?a", "/?a"),
        ("/pawl", "/pawls/a", "/pawls/a"),
    ] {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        assert_eq!(without_base(base, request).uri(), rest, "{base} {path}");
    }
}
