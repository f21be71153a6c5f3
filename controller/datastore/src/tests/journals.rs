//! Journals: appended like logs, compared for the controller, read by the run whose spec references them.

use serde_json::{Value, json};

use crds::{
    apply_log::{Action, Head, Line, Operation},
    datastore::StateId,
};

use super::{Lab, view};
use crate::{
    cluster::RunView,
    names::{LogKey, RunKey},
    testing::claim,
};

fn lines(managed: bool) -> Vec<u8> {
    let operation = |address: &str, id: Option<&str>| Operation {
        action: Action::Create,
        address: address.into(),
        kind: "t".into(),
        provider: String::new(),
        id: id.map(Into::into),
        at: String::new(),
    };
    let lines = [
        Line::Begin(Head {
            managed,
            state: String::new(),
        }),
        Line::Start(operation("t.a", None)),
        Line::Complete(operation("t.a", Some("1"))),
        Line::Start(operation("t.b", None)),
        Line::Complete(operation("t.b", Some("2"))),
        Line::Start(operation("t.c", None)),
    ];
    lines.iter().flat_map(Line::to_bytes).collect()
}

async fn with_state(lab: &Lab) {
    let state = json!({"version": 4, "serial": 4, "lineage": "x", "resources": [
        {"mode": "managed", "type": "t", "name": "a", "instances": [{"attributes": {"id": "1"}}]}]});
    state_is(lab, &state).await;
}

async fn state_is(lab: &Lab, state: &Value) {
    let state = state.to_string();
    let requests = [
        ("PUT lock", &br#"{"ID":"l"}"#[..], "200"),
        ("PUT state?lock=l", state.as_bytes(), "200"),
    ];
    lab.asks("pod-1", &requests).await;
}

#[tokio::test]
async fn journal_is_compared_with_the_managed_state() {
    let lab = Lab::claimed();
    with_state(&lab).await;
    lab.asks(
        "pod-1",
        &[("PUT log/journal?offset=0", &lines(true), "200")],
    )
    .await;
    let said = lab.of_controller("GET", "/attempts/1/journal").await.json();
    let summary =
        "1 created and not recorded, 1 begun and uncertain, 1 created and recorded; state serial 4";
    assert_eq!(said["summary"], summary);
    assert_eq!(
        (&said["notRecorded"], &said["uncertain"]),
        (&json!(["t.b id=2"]), &json!(["t.c (create)"]))
    );
    assert_eq!(
        lab.of_person("GET", "terraformruns/net/journal", b"")
            .await
            .text()
            .as_bytes(),
        lines(true)
    );
    let rest = lab
        .of_person("GET", "terraformruns/net/journal?attempt=1&offset=9", b"")
        .await;
    assert_eq!(rest.text().as_bytes(), &lines(true)[9..]);
    // The journal is not part of the logs.
    assert_eq!(
        lab.of_person("GET", "terraformruns/net/log", b"")
            .await
            .text(),
        ""
    );
    assert_eq!(
        lab.of_pod("pod-1", "GET", 1, "journal", b"").await.code,
        404,
        "that is the controller's"
    );
}

#[tokio::test]
async fn unreadable_state_is_not_compared() {
    let lab = Lab::new();
    assert_eq!(
        lab.of_controller("GET", "/attempts/1/journal").await.json()["compared"],
        false
    );
    lab.asks(
        "pod-1",
        &[("PUT log/journal?offset=0", &lines(false), "200")],
    )
    .await;
    let said = lab.of_controller("GET", "/attempts/1/journal").await.json();
    assert_eq!(
        (said["compared"].clone(), said["uncertain"][0].clone()),
        (json!(false), json!("t.a id=1 (created)"))
    );
    let lab = Lab::claimed();
    state_is(
        &lab,
        &json!({"serial": 1, "lineage": "x", "encrypted_data": "abc"}),
    )
    .await;
    lab.asks(
        "pod-1",
        &[("PUT log/journal?offset=0", &lines(true), "200")],
    )
    .await;
    let said = lab.of_controller("GET", "/attempts/1/journal").await.json();
    assert!(
        said["summary"]
            .as_str()
            .unwrap()
            .ends_with("the state is encrypted by the tool"),
        "{said}"
    );
}

#[tokio::test]
async fn run_reads_only_the_journal_of_its_own_spec() {
    let lab = Lab::new();
    let recover = async |why: &str, expected: &str| {
        assert_eq!(lab.get("recover").await.brief(), expected, "{why}");
    };
    recover("it names none", "403 Forbidden").await;
    lab.cluster.set(RunView {
        recovers: Some("old".into()),
        ..view(1, true)
    });
    recover("there is no such run", "404 NotFound").await;
    let old = RunView {
        name: "old".into(),
        uid: "u-old".into(),
        claim: Some(claim(2)),
        state: StateId {
            stack: "old".into(),
            workspace: "default".into(),
        },
        ..view(2, false)
    };
    lab.cluster.set(old.clone());
    recover("it goes on", "409 NotEnded").await;
    lab.cluster.set(RunView {
        terminal: true,
        ..old.clone()
    });
    recover("nothing was kept", "404 NotFound").await;
    let key = LogKey {
        run: RunKey::new("team", "u-old").unwrap(),
        attempt: 2,
        phase: crds::datastore::JOURNAL,
    };
    lab.service
        .logs
        .append(&key, 0, &lines(true), false)
        .await
        .unwrap();
    assert_eq!(lab.get("recover").await.text().as_bytes(), lines(true));
    lab.cluster.set(RunView {
        terminal: true,
        claim: None,
        ..old
    });
    recover("it applied nothing", "404 NotFound").await;
    lab.cluster.set(RunView {
        recovers: Some("old".into()),
        ..view(1, false)
    });
    recover("the caller's attempt is closed", "403 AttemptReplaced").await;
}

#[tokio::test]
async fn journal_is_deleted_with_its_run() {
    let lab = Lab::new();
    lab.asks(
        "pod-1",
        &[
            ("PUT log/journal?offset=0", &lines(true), "200"),
            ("PUT objects/erroredstate", b"{}", "201"),
        ],
    )
    .await;
    assert_eq!(
        lab.of_person("GET", "terraformruns/net/erroredstate", b"")
            .await
            .text(),
        "{}"
    );
    assert_eq!(lab.of_controller("DELETE", "").await.code, 200);
    assert_eq!(
        lab.of_person("GET", "terraformruns/net/journal", b"")
            .await
            .text(),
        ""
    );
    assert!(
        lab.files()
            .iter()
            .all(|file| !file.to_string_lossy().contains("runs/")),
        "{:?}",
        lab.files()
    );
}
