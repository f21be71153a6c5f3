//! Managed states of a namespace that was deleted and created again.

use serde_json::{Value, json};

use crds::datastore::{FORMER_NAMESPACE, StateId};
use serving::auth::Identity;

use super::{
    Lab, claim, pod,
    states::{lock, state},
    view,
};
use crate::{cluster::RunView, testing::NAMESPACE_UID};

/// Deletes and recreates the namespace `team`, with a run of the same name; its pod has the token `new`.
fn recreate_namespace(lab: &Lab) {
    lab.cluster
        .namespaces
        .lock()
        .unwrap()
        .insert("team".into(), "66666666-6666".into());
    let run = RunView {
        uid: "77777777-7777".into(),
        ..view(1, true)
    };
    let own = pod(&run, 1);
    let user = "system:serviceaccount:team:net-1".into();
    lab.cluster.token(
        "new",
        Identity {
            user,
            pod: Some(own),
            ..Identity::default()
        },
    );
    lab.cluster.set(run);
}

#[tokio::test]
async fn recreated_namespace_does_not_get_the_former_state() {
    let lab = Lab::locked().await;
    let requests = [
        ("PUT state?lock=a", &state(1, 0)[..], "200"),
        ("DELETE lock?lock=a", b"", "200"),
    ];
    lab.asks("pod-1", &requests).await;
    let listed = lab.of_person("GET", "states", b"").await.json();
    assert_eq!(listed["items"][0]["namespaceUid"], NAMESPACE_UID);
    recreate_namespace(&lab);
    for (method, rest, body) in [("GET", "state", vec![]), ("PUT", "lock", lock("b"))] {
        let refused = lab.of_pod("new", method, 1, rest, &body).await;
        assert_eq!(
            (refused.code, refused.reason().as_str()),
            (403, FORMER_NAMESPACE),
            "{rest}"
        );
        assert!(
            refused.problem().message.contains("states/net/handover"),
            "{refused:?}"
        );
    }
    lab.asks(
        "new",
        &[("PUT state?lock=b", &state(2, 0), "403 Forbidden")],
    )
    .await;
    assert_eq!(lab.shown().await["versionCount"], 1, "nothing was changed");

    assert_eq!(lab.change("handover", "{}").await.0, 400, "no reason");
    let none = lab
        .of_person("POST", "states/none/handover", br#"{"reason": "x"}"#)
        .await;
    assert_eq!(none.code, 404);
    for (reason, handed_over) in [("the team moved", true), ("again", false)] {
        let (code, answer) = lab
            .change("handover", &json!({"reason": reason}).to_string())
            .await;
        assert_eq!(
            (code, &answer["items"][0]["handedOver"]),
            (200, &json!(handed_over))
        );
    }
    assert_eq!(
        lab.of_pod("new", "GET", 1, "state", b"").await.json()["serial"],
        1
    );
    lab.asks("new", &[("PUT lock", &lock("b"), "200")]).await;
    let notes = lab.shown().await["notes"].as_array().unwrap().clone();
    assert_eq!(
        (notes.len(), &notes[0]["by"], &notes[0]["reason"]),
        (1, &json!("ada"), &json!("the team moved"))
    );
}

#[tokio::test]
async fn all_states_of_a_namespace_are_handed_over_at_once() {
    let lab = Lab::new();
    for (n, stack) in ["net", "dns"].into_iter().enumerate() {
        let state_id = StateId {
            stack: stack.into(),
            workspace: "a".into(),
        };
        lab.cluster.set(RunView {
            state: state_id,
            claim: Some(claim(1)),
            ..view(1, true)
        });
        let requests = [
            ("PUT lock", &lock("a")[..], "200"),
            ("PUT state?lock=a", &state(n as u64, 0), "200"),
        ];
        lab.asks("pod-1", &requests).await;
    }
    recreate_namespace(&lab);
    let over = async |body: &str| {
        lab.of_person("POST", "states/-/handover", body.as_bytes())
            .await
    };
    assert_eq!(over(r#"{"workspace": "a", "reason": "x"}"#).await.code, 400);
    let items = over(r#"{"reason": "the team moved"}"#).await.json()["items"].clone();
    let of = |n: usize| {
        (
            items[n]["stack"].as_str().unwrap(),
            items[n]["handedOver"].as_bool().unwrap(),
        )
    };
    assert_eq!((of(0), of(1)), (("dns", true), ("net", true)));
    let shown = lab.of_person("GET", "states", b"").await.json();
    let moved = |item: &Value| item["namespaceUid"] == "66666666-6666";
    assert!(
        shown["items"].as_array().unwrap().iter().all(moved),
        "{shown}"
    );
}
