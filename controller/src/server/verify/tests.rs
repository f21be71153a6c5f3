//! Every row of the forges' table with real requests, and known authentication flaws of other receivers. Other flaws
//! are tested in `body` and `receiver`.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue};
use k8s_openapi::ByteString;

use super::*;
use crate::testing::t0;

const SECRET: &str = "It's a Secret to Everybody";
const PREVIOUS: &str = "the one before";
const BODY: &[u8] = br#"{"ref":"refs/heads/main","clone_url":"http://169.254.169.254/"}"#;

fn keys() -> Keys {
    let entry = |text: &str| ByteString(text.as_bytes().to_vec());
    Keys::of(&BTreeMap::from([
        ("secret".into(), entry(SECRET)),
        ("previous".into(), entry(PREVIOUS)),
    ]))
    .unwrap()
}

fn tag(secret: &str, body: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body)
        .as_ref()
        .to_vec()
}

fn hex_of(secret: &str, body: &[u8]) -> String {
    hex::encode(tag(secret, body))
}

fn headers(of: &[(&str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&str, &str)| {
        (
            HeaderName::try_from(*name).unwrap(),
            HeaderValue::try_from(*value).unwrap(),
        )
    };
    let mut headers = HeaderMap::new();
    for (name, value) in of.iter().map(pair) {
        headers.append(name, value);
    }
    headers
}

fn verify(of: &[(&str, &str)], body: &[u8]) -> Result<Signed, Refusal> {
    verify_with(of, body, &keys())
}

fn verify_with(of: &[(&str, &str)], body: &[u8], keys: &Keys) -> Result<Signed, Refusal> {
    let mut check = Check::begin(&headers(of), keys)?;
    // In chunks, as it arrives.
    for piece in body.chunks(7) {
        check.update(piece);
    }
    check.end()
}

/// A signature of Standard Webhooks.
fn standard(secret: &[u8], id: &str, time: i64, body: &[u8]) -> String {
    let text = [format!("{id}.{time}.").as_bytes(), body].concat();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &text);
    format!("v1,{}", STANDARD.encode(tag.as_ref()))
}

/// Asserts that a delivery was accepted that may move refs. `wanted`: forge, event and ID, `-` where there is none.
#[track_caller]
fn accepted(signed: &Result<Signed, Refusal>, wanted: [&str; 3]) {
    let signed = signed.as_ref().unwrap();
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    assert_eq!(
        [
            signed.forge.to_owned(),
            or_none(&signed.event),
            or_none(&signed.id)
        ],
        wanted
    );
    assert!(signed.moves, "{signed:?}");
}

#[test]
fn github_signs_the_body() {
    let signature = format!("sha256={}", hex_of(SECRET, BODY));
    let sent = [
        ("x-github-event", "push"),
        ("x-github-delivery", "d-1"),
        ("x-hub-signature-256", &*signature),
    ];
    accepted(&verify(&sent, BODY), ["GitHub", "push", "d-1"]);
    assert_eq!(
        verify(&sent, b"{}"),
        Err(Refusal::WrongProof),
        "of another body"
    );
    let bare = hex_of(SECRET, BODY);
    let no_prefix = [sent[0], sent[1], ("x-hub-signature-256", &*bare)];
    assert_eq!(verify(&no_prefix, BODY), Err(Refusal::WrongProof));
    // SHA-1 signatures are not accepted.
    let old = [sent[0], sent[1], ("x-hub-signature", "sha1=00")];
    assert_eq!(verify(&old, BODY), Err(Refusal::NoProof));
    let ping = [("x-github-event", "ping"), sent[1], sent[2]];
    assert!(!verify(&ping, BODY).unwrap().moves);
    // The example in GitHub's documentation.
    let known = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let example = [sent[0], sent[1], ("x-hub-signature-256", known)];
    accepted(
        &verify(&example, b"Hello, World!"),
        ["GitHub", "push", "d-1"],
    );
}

#[test]
fn gitea_is_matched_before_github() {
    let (bare, prefixed) = (
        hex_of(SECRET, BODY),
        format!("sha256={}", hex_of(SECRET, BODY)),
    );
    let sent = |gitea: &str, hub: &str| {
        let pairs = [
            ("x-gitea-event", "push"),
            ("x-gitea-delivery", "g-1"),
            ("x-gitea-signature", gitea),
            ("x-github-event", "ping"),
            ("x-github-delivery", "h-1"),
            ("x-hub-signature-256", hub),
            ("x-gogs-event", "push"),
        ];
        verify(&pairs, BODY)
    };
    accepted(&sent(&bare, &prefixed), ["Gitea", "push", "g-1"]);
    accepted(&sent(&bare, "sha256=00"), ["Gitea", "push", "g-1"]);
    assert_eq!(
        sent("00", &prefixed),
        Err(Refusal::WrongProof),
        "what is right in another forge's header makes nothing good"
    );
    let without = [
        ("x-gitea-event", "push"),
        ("x-hub-signature-256", &*prefixed),
    ];
    assert_eq!(verify(&without, BODY), Err(Refusal::NoProof));
}

#[test]
fn gitlab_sends_its_token_or_signs() {
    let event = ("x-gitlab-event", "Push Hook");
    let token = [
        event,
        ("x-gitlab-event-uuid", "u-1"),
        ("x-gitlab-token", SECRET),
    ];
    accepted(&verify(&token, BODY), ["GitLab", "Push Hook", "u-1"]);
    let keyed = [
        event,
        ("x-gitlab-event-uuid", "u-1"),
        ("idempotency-key", "i-1"),
        ("x-gitlab-token", SECRET),
    ];
    accepted(&verify(&keyed, BODY), ["GitLab", "Push Hook", "i-1"]);
    assert_eq!(
        verify(&[event, ("x-gitlab-token", "wrong")], BODY),
        Err(Refusal::WrongProof)
    );
    let merge = [("x-gitlab-event", "Merge Request Hook"), token[2]];
    assert!(!verify(&merge, BODY).unwrap().moves);

    let (key, now) = (b"thirty-two bytes of a secret key", t0().as_second());
    let entry = ByteString(format!("whsec_{}", STANDARD.encode(key)).into_bytes());
    let keys = Keys::of(&BTreeMap::from([("secret".into(), entry)])).unwrap();
    let sign = |time: i64, signature: &str| {
        let time = time.to_string();
        let sent = [
            event,
            ("idempotency-key", "w-1"),
            ("webhook-id", "w-1"),
            ("webhook-timestamp", &*time),
            ("webhook-signature", signature),
        ];
        verify_with(&sent, BODY, &keys)
    };
    let good = standard(key, "w-1", now, BODY);
    accepted(&sign(now, &good), ["GitLab", "Push Hook", "w-1"]);
    accepted(
        &sign(now, &format!("v1,AAAA v1a,x {good}")),
        ["GitLab", "Push Hook", "w-1"],
    );
    assert_eq!(
        sign(now + 1, &good),
        Err(Refusal::WrongProof),
        "the time is covered"
    );
    assert_eq!(
        sign(now, &standard(key, "w-2", now, BODY)),
        Err(Refusal::WrongProof),
        "and the id"
    );
    assert_eq!(
        sign(now, &standard(key, "w-1", now, b"{}")),
        Err(Refusal::WrongProof),
        "and the body"
    );
    assert_eq!(
        sign(now, &good.replace("v1,", "v2,")),
        Err(Refusal::WrongProof)
    );
    let old = now - 86_400;
    accepted(
        &sign(old, &standard(key, "w-1", old, BODY)),
        ["GitLab", "Push Hook", "w-1"],
    );
    // A correct token does not compensate for a wrong signature.
    let both = [
        event,
        ("webhook-id", "w-1"),
        ("webhook-timestamp", "0"),
        ("webhook-signature", "v1,AAAA"),
        ("x-gitlab-token", SECRET),
    ];
    assert_eq!(verify(&both, BODY), Err(Refusal::WrongProof));
}

#[test]
fn bitbucket_signs_the_body() {
    let signature = format!("sha256={}", hex_of(SECRET, BODY));
    let cloud = [
        ("x-event-key", "repo:push"),
        ("x-request-uuid", "b-1"),
        ("x-hub-signature", &*signature),
    ];
    accepted(&verify(&cloud, BODY), ["Bitbucket", "repo:push", "b-1"]);
    let own = [
        ("x-event-key", "repo:refs_changed"),
        ("x-request-id", "b-2"),
        ("x-hub-signature", &*signature),
    ];
    accepted(
        &verify(&own, BODY),
        ["Bitbucket", "repo:refs_changed", "b-2"],
    );
    assert_eq!(verify(&cloud, b"{}"), Err(Refusal::WrongProof));
    let test = [("x-event-key", "diagnostics:ping"), ("x-request-id", "b-3")];
    assert_eq!(
        verify(&test, b"{}"),
        Err(Refusal::NoProof),
        "its test of a connection is not signed"
    );
}

#[test]
fn azure_devops_uses_a_password_and_the_event_in_its_body() {
    let basic = format!("Basic {}", STANDARD.encode(format!("anybody:{SECRET}")));
    let known = ("x-vss-activityid", "a");
    let body = br#"{"id":"a-1","eventType":"git.push","resource":{"repository":{"remoteUrl":"http://evil"}}}"#;
    accepted(
        &verify(&[known, ("authorization", &basic)], body),
        ["AzureDevOps", "git.push", "a-1"],
    );
    accepted(
        &verify(&[known, ("x-pawl-token", SECRET)], body),
        ["AzureDevOps", "git.push", "a-1"],
    );
    let other = br#"{"id":"a-2","eventType":"git.pullrequest.created"}"#;
    assert!(
        !verify(&[known, ("authorization", &basic)], other)
            .unwrap()
            .moves
    );
    let wrong = format!("Basic {}", STANDARD.encode("anybody:wrong"));
    assert_eq!(
        verify(&[known, ("authorization", &wrong)], body),
        Err(Refusal::WrongProof)
    );
    assert_eq!(verify(&[known], body), Err(Refusal::NoProof));
}

#[test]
fn generic_sender_signs_or_sends_the_secret() {
    let bearer = format!("Bearer {SECRET}");
    accepted(
        &verify(&[("authorization", &bearer)], b""),
        ["Generic", "-", "-"],
    );
    accepted(
        &verify(
            &[
                ("authorization", &bearer.replace("Bearer", "bearer")),
                ("x-request-id", "r"),
            ],
            b"",
        ),
        ["Generic", "-", "r"],
    );
    accepted(
        &verify(&[("x-pawl-token", SECRET)], b""),
        ["Generic", "-", "-"],
    );
    let signature = format!("sha256={}", hex_of(SECRET, BODY));
    accepted(
        &verify(&[("x-signature", &signature)], BODY),
        ["Generic", "-", "-"],
    );
    let time = t0().as_second();
    let (signature, time) = (
        standard(SECRET.as_bytes(), "n-1", time, BODY),
        time.to_string(),
    );
    let sent = [
        ("webhook-id", "n-1"),
        ("webhook-timestamp", &*time),
        ("webhook-signature", &*signature),
    ];
    accepted(&verify(&sent, BODY), ["Generic", "-", "n-1"]);
    for wrong in [
        "Bearer wrong",
        "Bearer",
        "Bearer ",
        "Digest x",
        "Basic !!",
        "Basic YQ==",
        "",
    ] {
        assert_eq!(
            verify(&[("authorization", wrong)], b""),
            Err(Refusal::WrongProof),
            "{wrong:?}"
        );
    }
    assert_eq!(verify(&[], BODY), Err(Refusal::NoProof));
}

/// With two secrets, the first try must not consume the body (Burrito 11.14).
#[test]
fn either_of_two_secrets_is_accepted_and_no_third() {
    for (secret, right) in [
        (SECRET, true),
        (PREVIOUS, true),
        ("another", false),
        ("", false),
    ] {
        let signature = hex_of(secret, BODY);
        let sent = [
            ("x-gitea-event", "push"),
            ("x-gitea-signature", &*signature),
        ];
        assert_eq!(verify(&sent, BODY).is_ok(), right, "{secret}");
        assert_eq!(
            verify(
                &[("x-gitlab-event", "Push Hook"), ("x-gitlab-token", secret)],
                BODY
            )
            .is_ok(),
            right,
            "{secret}"
        );
    }
}

/// No payload is parsed before authentication, and little after it (CVE-2025-59538: receivers that crashed).
#[test]
fn hostile_payloads_and_headers_do_not_panic() {
    let deep = "[".repeat(1 << 19);
    let long = format!(
        r#"{{"eventType":"git.push","x":"{}"}}"#,
        "x".repeat(2 << 20)
    );
    let control = r#"{"eventType":"git.push\u001b[31m\n","id":"\u202eabc"}"#;
    let bearer = format!("Bearer {SECRET}");
    let known = [("x-vss-activityid", "a"), ("authorization", &*bearer)];
    for body in [
        "",
        "{",
        "null",
        "[]",
        r#"{"eventType":7}"#,
        r#"{"id":{"a":[]}}"#,
        "\u{0}",
        &deep,
        &long,
    ] {
        let signed = verify(&known, body.as_bytes()).unwrap();
        assert!(signed.moves, "what nobody understood may have moved a ref");
        assert!(signed.event.is_none());
    }
    let signed = verify(&known, control.as_bytes()).unwrap();
    assert_eq!(
        (signed.event.as_deref(), signed.id.as_deref()),
        (Some("git.push[31m"), Some("abc")),
        "people read it on a terminal"
    );
    for forge in super::super::forges::FORGES {
        for proof in forge.proofs {
            for value in [
                "",
                " ",
                "sha256=",
                "sha256=zz",
                "v1,",
                "v1,!",
                "=",
                ",",
                ":",
                "\u{ff}",
                "sha256=00",
                &"a".repeat(10_000),
            ] {
                let mut sent = headers(&[
                    ("webhook-id", "1"),
                    ("webhook-timestamp", "9223372036854775807"),
                ]);
                let event = forge.event.unwrap_or("x-vss-activityid");
                sent.insert(
                    HeaderName::try_from(event).unwrap(),
                    HeaderValue::from_static("push"),
                );
                sent.insert(
                    HeaderName::try_from(proof.header()).unwrap(),
                    HeaderValue::from_bytes(value.as_bytes()).unwrap(),
                );
                let begun = Check::begin(&sent, &keys()).and_then(Check::end);
                assert!(begun.is_err(), "{} {proof:?} {value}", forge.name);
            }
        }
    }
    for (missing, present) in [
        ("webhook-id", "webhook-timestamp"),
        ("webhook-timestamp", "webhook-id"),
    ] {
        let sent = [(present, "1"), ("webhook-signature", "v1,AAAA")];
        assert_eq!(
            verify(&sent, BODY),
            Err(Refusal::Malformed),
            "without {missing}"
        );
    }
}

#[test]
fn duplicated_header_is_malformed() {
    let signature = hex_of(SECRET, BODY);
    let right = [
        ("x-gitea-event", "push"),
        ("x-gitea-delivery", "1"),
        ("x-gitea-signature", &*signature),
    ];
    assert!(verify(&right, BODY).is_ok());
    for twice in [
        ("x-gitea-event", "issues"),
        ("x-gitea-delivery", "2"),
        ("x-gitea-signature", "00"),
    ] {
        assert_eq!(
            verify(&[&right[..], &[twice]].concat(), BODY),
            Err(Refusal::Malformed),
            "{twice:?}"
        );
    }
}
