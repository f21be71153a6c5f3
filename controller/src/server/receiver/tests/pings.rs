//! Tests of the connection that prove nothing.

use super::*;

/// Bitbucket Data Center sends its test of the connection without a signature.
#[tokio::test]
async fn unsigned_ping_is_answered_and_sets_off_nothing() {
    let lab = Lab::new(Api::Answers);
    let ping = [("x-event-key", "diagnostics:ping"), ("x-request-id", "1")];
    let github = [("x-github-event", "ping"), ("x-github-delivery", "1")];
    for headers in [ping, github] {
        let (code, answer) = lab.post(UID, &headers, Body::from(BODY)).await;
        assert_eq!(
            (code, answer["verdict"].as_str(), lab.wanted()),
            (200, Some("ping"), 0)
        );
    }
    let wrong = [ping[0], ("x-hub-signature", "sha256=00")];
    assert_eq!(
        lab.post(UID, &wrong, Body::from(BODY)).await.0,
        401,
        "a wrong signature is final"
    );
    let push = [("x-event-key", "repo:push"), ("x-request-id", "2")];
    assert_eq!(lab.post(UID, &push, Body::from(BODY)).await.0, 401);
    assert_eq!(lab.post("unknown", &ping, Body::from(BODY)).await.0, 404);
    let text = lab.receiver.metrics.exposition().1;
    assert!(
        text.contains(r#"pawl_server_pings_total{forge="Bitbucket"} 1"#),
        "{text}"
    );
    assert!(!text.contains(r#"reason="noProof"} 3"#), "{text}");
}
