use axum::http::header;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};

use super::*;
use crate::testing::token;

const SECRET: [u8; 32] = [7; 32];
const URL: &str = "https://pawl.example";

fn sessions(secret: &[u8], url: &str) -> Sessions {
    Sessions::new(secret, &url.parse().unwrap()).unwrap()
}

/// The cookies as a browser sends them back.
fn sent(cookies: &[HeaderValue]) -> HeaderMap {
    let pairs = cookies
        .iter()
        .map(|cookie| cookie.to_str().unwrap().split(';').next().unwrap());
    let line = pairs.collect::<Vec<_>>().join("; ");
    HeaderMap::from_iter([(header::COOKIE, line.parse().unwrap())])
}

fn session(text: &str) -> Session {
    Session::new(token(text), Method::Token).unwrap()
}

fn expiring(seconds: i64) -> String {
    let expiry = Timestamp::now().as_second() + seconds;
    let claims = BASE64_URL_SAFE_NO_PAD.encode(format!(r#"{{"exp":{expiry}}}"#));
    format!("h.{claims}.s")
}

#[test]
fn session_is_valid_on_each_replica_with_the_key() {
    let session = session("ada");
    let cookies = sessions(&SECRET, URL).cookies(&session).unwrap();
    let attributes = cookies[0].to_str().unwrap();
    assert!(attributes.starts_with("__Host-pawl-"), "{attributes}");
    for attribute in [
        "; Path=/",
        "; HttpOnly",
        "; SameSite=Lax",
        "; Secure",
        "; Max-Age=900",
    ] {
        assert!(attributes.contains(attribute), "{attribute}: {attributes}");
    }
    assert!(!attributes.contains("Domain"));
    let read = sessions(&SECRET, URL).of(&sent(&cookies)).unwrap().unwrap();
    assert!(read.id == session.id && read.token == session.token && read.until == session.until);
}

#[test]
fn loopback_cookie_is_sent_over_plain_http() {
    let sessions = sessions(&SECRET, "http://127.0.0.1:8444");
    let cookies = sessions.cookies(&session("ada")).unwrap();
    let cookie = cookies[0].to_str().unwrap();
    assert!(
        cookie.starts_with("pawl-") && !cookie.contains("Secure"),
        "{cookie}"
    );
}

#[test]
fn installations_under_one_host_have_cookies_of_their_own() {
    let names = [
        sessions(&SECRET, "https://a.example/one").name,
        sessions(&SECRET, "https://a.example/two").name,
        sessions(&[8; 32], "https://a.example/one").name,
    ];
    assert!(names[0] != names[1] && names[0] != names[2]);
}

#[test]
fn cookie_of_another_key_or_url_is_no_session() {
    let ours = sessions(&SECRET, URL);
    for mut other in [
        sessions(&[8; 32], URL),
        sessions(&SECRET, "https://pawl.example/b"),
    ] {
        other.name.clone_from(&ours.name);
        let cookies = other.cookies(&session("ada")).unwrap();
        assert!(ours.of(&sent(&cookies)).unwrap().is_none());
    }
}

#[test]
fn damaged_cookie_is_no_session() {
    let ours = sessions(&SECRET, URL);
    let cookie = ours.cookies(&session("ada")).unwrap()[0]
        .to_str()
        .unwrap()
        .to_owned();
    let value = cookie.split(';').next().unwrap();
    let start = value.find('=').unwrap() + 1;
    let of = |value: &str| {
        let headers = HeaderMap::from_iter([(header::COOKIE, value.parse().unwrap())]);
        ours.of(&headers).unwrap().is_some()
    };
    assert!(of(value));
    for at in start..value.len() {
        assert!(!of(&value[..at]), "cut at {at}");
        let mut other = value.to_owned().into_bytes();
        other[at] = if other[at] == b'A' { b'B' } else { b'A' };
        // The last digit of base64 has unused bits; a change of these is refused as well.
        assert!(!of(std::str::from_utf8(&other).unwrap()), "changed at {at}");
    }
    for value in ["", "1", "0", "9x", "é"] {
        assert!(!of(&format!("{}={value}", ours.name)), "{value}");
    }
}

#[test]
fn session_of_an_unknown_version_is_none() {
    let key = sessions(&SECRET, URL).key;
    let of = |head: &[u8], rest: usize| {
        let content = [head, &vec![b'a'; rest]].concat();
        key.open(&key.encrypt(content).unwrap())
    };
    assert!(of(&[1, 0], 25).is_some());
    for (head, rest) in [
        ([2, 0], 25),
        ([3, 0], 25),
        ([0, 0], 25),
        ([1, 9], 25),
        ([1, 0], 24),
        ([1, 0], 0),
    ] {
        assert!(of(&head, rest).is_none(), "{head:?} {rest}");
    }
}

/// A token that is not packed: it is no base64url.
fn noise(size: usize) -> String {
    "~".repeat(size)
}

#[test]
fn large_token_is_split_and_a_larger_one_refused() {
    let ours = sessions(&SECRET, URL);
    for (size, count) in [(900, 1), (4000, 2), (5900, 3)] {
        let cookies = ours.cookies(&session(&noise(size))).unwrap();
        assert_eq!(cookies.len(), count, "{size}");
        assert!(cookies.iter().all(|cookie| cookie.len() < 4000));
        let read = ours.of(&sent(&cookies)).unwrap().unwrap();
        assert_eq!(read.token.secret().len(), size);
        // A piece that is missing leaves no session.
        assert!(count == 1 || ours.of(&sent(&cookies[1..])).unwrap().is_none());
        assert!(count == 1 || ours.of(&sent(&cookies[..count - 1])).unwrap().is_none());
    }
    let problem = ours.cookies(&session(&noise(6200))).unwrap_err();
    assert_eq!(problem.reason, "TokenTooLarge");
}

#[test]
fn token_of_many_groups_is_packed() {
    let ours = sessions(&SECRET, URL);
    let groups: Vec<String> = (0..150).map(|n| format!("Platform:team-{n:03}")).collect();
    let claims = serde_json::json!({"iss": "https://git.example", "groups": groups});
    let part = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    let token = format!(
        "{}.{}.c2ln",
        part(r#"{"alg":"RS256"}"#),
        part(&claims.to_string())
    );
    let cookies = ours.cookies(&session(&token)).unwrap();
    let sent_bytes: usize = cookies.iter().map(HeaderValue::len).sum();
    assert!(token.len() > 4000 && sent_bytes < 1200, "{sent_bytes}");
    let read = ours.of(&sent(&cookies)).unwrap().unwrap();
    assert_eq!(read.token.secret(), token);
}

#[test]
fn leftover_of_a_longer_session_is_not_read() {
    let ours = sessions(&SECRET, URL);
    let mut cookies = ours.cookies(&session("ada")).unwrap();
    cookies.extend_from_slice(&ours.cookies(&session(&noise(4000))).unwrap()[1..]);
    assert_eq!(
        ours.of(&sent(&cookies)).unwrap().unwrap().token.secret(),
        "ada"
    );
}

#[test]
fn duplicate_cookie_is_refused() {
    let ours = sessions(&SECRET, URL);
    let mut cookies = ours.cookies(&session("ada")).unwrap();
    cookies.extend(ours.cookies(&session("eve")).unwrap());
    let problem = ours.of(&sent(&cookies)).err().unwrap();
    assert_eq!(problem.reason, "DuplicateCookie");
}

#[test]
fn session_ends_with_its_token() {
    let ours = sessions(&SECRET, URL);
    let expired = session(&expiring(-1));
    assert!(
        ours.of(&sent(&ours.cookies(&expired).unwrap()))
            .unwrap()
            .is_none()
    );
    let short = session(&expiring(300));
    assert!(short.until <= Timestamp::now().as_second() + 300);
    assert!(short.renewed().is_none(), "its token ends");
}

#[test]
fn use_renews_an_old_session() {
    let mut session = session(&expiring(3600));
    assert!(session.renewed().is_none(), "it is new");
    session.until -= UNUSED - RENEWED + 1;
    let renewed = session.renewed().unwrap();
    assert!(renewed.until > session.until && renewed.id == session.id);
}

#[tokio::test]
async fn ended_session_is_not_read_and_ends_its_streams() {
    let ours = sessions(&SECRET, URL);
    let (session, other) = (session("ada"), session("bob"));
    let cookies = ours.cookies(&session).unwrap();
    let both = async { tokio::join!(ours.ended(session.id), async { ours.end(session.id) }) };
    both.await;
    assert!(ours.of(&sent(&cookies)).unwrap().is_none());
    assert!(
        ours.of(&sent(&ours.cookies(&other).unwrap()))
            .unwrap()
            .is_some()
    );
    for number in 0..=ENDED as u128 {
        ours.end(number.to_be_bytes());
    }
    assert_eq!(ours.ended.borrow().len(), ENDED);
}

#[test]
fn short_key_is_refused() {
    assert!(Sessions::new(&[7; 31], &URL.parse().unwrap()).is_err());
}
