//! Deliveries that are sent again.

use super::*;

/// A signed body is sent again with the headers of other forges, with other ids, and in upper case.
#[tokio::test]
async fn replay_by_any_header_costs_checks_at_a_bounded_rate() {
    let lab = Lab::new(Api::Answers);
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let hex = hex::encode(hmac::sign(&key, BODY.as_bytes()).as_ref());
    let (with, upper) = (format!("sha256={hex}"), hex.to_uppercase());
    let with_upper = format!("sha256={upper}");
    let forms: [&[(&str, &str)]; 6] = [
        &[("x-github-event", "push"), ("x-hub-signature-256", &with)],
        &[
            ("x-github-event", "push"),
            ("x-hub-signature-256", &with_upper),
        ],
        &[("x-signature", &with)],
        &[("x-signature", &with), ("x-request-id", "1")],
        &[("x-gitea-event", "push"), ("x-gitea-signature", &upper)],
        &[("x-event-key", "repo:push"), ("x-hub-signature", &with)],
    ];
    let (now, mut sent) = (Instant::now(), 0);
    for _ in 0..20 {
        for headers in forms {
            let (code, answer) = lab.post(UID, headers, Body::from(BODY)).await;
            assert_eq!((code, &answer["verdict"]), (202, &json!("accepted")));
            let standing = |_: &str| crate::server::pending::Standing::Free;
            let (due, _) = lab.receiver.pending().due(now, 99, standing);
            // Each request is answered at once.
            sent += due.len();
            for uid in &due {
                lab.receiver.pending().sent(uid, now);
            }
        }
    }
    assert_eq!(sent, 10, "of 120 deliveries");
}
