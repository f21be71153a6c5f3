//! The agent believes the file of a plan, and not the output of a process, which code of the stack may have forged.

use crate::common::{manual, start};
use crds::{FailureClass, Phase, RunResult, reason};
use serde_json::json;

/// The plan file destroys `a.old`.
const DESTROYS: &str = r#"{"resource_changes":[{"address":"a.b","change":{"actions":["create"]}},
    {"address":"a.old","change":{"actions":["delete"]}}]}"#;
const HARMLESS: &str =
    r#"{"resource_changes":[{"address":"a.b","change":{"actions":["create"]}}]}"#;

#[tokio::test]
async fn plan_with_forged_output_is_not_applied() {
    let bounded = json!({"approval": {"mode": "Automatic", "automaticWhen": {"maxDestroy": 0}}});
    for spec in [bounded, json!({}), manual()] {
        let env = [("PLAN_FILE_JSON", DESTROYS), ("PLAN_JSON", HARMLESS)];
        let mut a = start(&spec, &env);
        let failure = a
            .fails(FailureClass::Integrity, reason::PLAN_CONTRADICTED)
            .await;
        assert_eq!(
            failure.message,
            "the plan file has +1 ~0 -1 (- a.old), the tool printed +1 ~0 -0"
        );
        let status = a.api.status();
        assert_eq!((a.ran("apply"), status.claim, status.plan), (0, None, None));
    }
}

#[tokio::test]
async fn plan_beyond_its_bounds_by_its_file_waits() {
    let bounded = json!({"approval": {"mode": "Automatic", "automaticWhen": {"maxDestroy": 0}}});
    let a = start(&bounded, &[("PLAN_JSON", DESTROYS)]);
    a.waits().await;
    let plan = a.api.status().plan.unwrap();
    assert_eq!(plan.changes, ["- a.old", "+ a.b"]);
}

#[tokio::test]
async fn unread_plan_waits_for_a_person_in_any_mode() {
    let bounded = json!({"approval": {"mode": "Automatic", "automaticWhen": {"maxDestroy": 9}}});
    for spec in [json!({}), bounded, manual()] {
        let mut a = start(&spec, &[("PLAN_FORMAT", "4")]);
        a.waits().await;
        let status = a.api.status();
        let plan = status.plan.unwrap();
        assert!(plan.counts.unread && plan.summary == "+1 ~0 -0, unread");
        let said = status.message.unwrap();
        assert!(said.contains("the plan file could not be read"), "{said}");
        let why = "the plan file was not read: its format has version 4";
        for text in [status.history.join("\n"), a.log()] {
            assert!(text.contains(why), "{text}");
        }
        assert_eq!(
            (a.ran("apply"), status.phase),
            (0, Some(Phase::AwaitingApproval))
        );
        a.api.approve();
        assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
    }
}

#[tokio::test]
async fn other_counts_in_the_tools_text_are_named() {
    for (text, said) in [
        (
            "No changes.",
            Some("the words of OpenTofu have no count, and the plan file has +1 ~0 -0"),
        ),
        (
            "Plan: 0 to add, 3 to change, 0 to destroy.",
            Some("the words of OpenTofu count +0 ~3 -0, and the plan file has +1 ~0 -0"),
        ),
        ("Plan: 1 to add, 0 to change, 0 to destroy.", None),
    ] {
        let mut a = start(&json!({}), &[("PLAN_TEXT", text)]);
        a.ends(0).await;
        let log = a.log();
        let own = "The plan file has +1 ~0 -0:\n  + a.b\n\nIn the words of OpenTofu:\n";
        assert!(log.contains(own), "{log}");
        match said {
            Some(said) => assert!(log.contains(said), "{log}"),
            None => assert!(!log.contains("Note: the words"), "{log}"),
        }
    }
}
