use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::testing::{console_of, name, sent_back, settings};

/// Eight tokens wait for an API server that does not answer, which is as many as may.
#[tokio::test]
async fn code_waits_for_no_token() {
    let mut console = console_of(
        "http://127.0.0.1:8444",
        crate::testing::api_server(|_, _, token, _| name(token)),
    );
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let issuer = format!("https://{}", gone.local_addr().unwrap());
    drop(gone);
    console.provider = Provider::new(&crate::settings::Settings {
        oidc_issuer: Some(issuer),
        oidc_client_id: Some("pawl".into()),
        ..settings("http://127.0.0.1:8444")
    })
    .unwrap();
    let from = |number: u8| IpAddr::V4(Ipv4Addr::new(192, 0, 2, number));
    let mut held = Vec::new();
    for number in 0..8 {
        held.push(console.strangers.turn(from(number / 4)).await.unwrap());
    }
    let attempt = Attempt {
        state: "s".into(),
        nonce: "n".into(),
        verifier: "v".repeat(43),
        next: "/".into(),
        is_again: false,
        until: Attempt::until(),
    };
    let cookie = sent_back(&attempt.cookies(&console.sessions).unwrap());
    let headers = HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())]);
    let uri = "/login/oidc/callback?state=s&code=c".parse().unwrap();
    let from = Sender(from(9));
    let ended = ended(&console, None, &from, &headers, &uri);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(20), ended).await;
    let problem = ended.expect("it waits for the tokens").err().unwrap();
    assert_eq!(problem.reason, "ProviderUnavailable");
}

#[test]
fn only_a_path_of_ours_survives_the_login() {
    for next in ["/", "/runs/a/b?q=a%20b", "/a//b"] {
        assert!(is_path(next), "{next}");
    }
    for next in [
        "",
        "runs",
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/a\r\nSet-Cookie: a",
        "/ü",
        "javascript:alert(1)",
        "@evil.example",
    ] {
        assert!(!is_path(next), "{next}");
    }
    assert!(!is_path(&format!("/{}", "a".repeat(1000))));
}
