//! Outputs after an apply: the result is delivered before they are read, and their failure does not change it.

use crds::{RunResult, reason};
use serde_json::json;

use crate::common::start_at;

const STATE: &str = r#"{"version": 4, "serial": 2, "lineage": "l", "outputs": {"id": {"value": "vpc-1", "type": "string"},
 "zones": {"value": ["a"], "type": ["list", "string"]}, "password": {"value": "hunter22", "type": "string", "sensitive": true}}}"#;

#[tokio::test]
async fn outputs_follow_the_result_without_sensitive_values() {
    let dir = tempfile::tempdir().unwrap();
    let delivered = dir.path().join("termination-log").display().to_string();
    let show = format!("grep -q Applied '{delivered}' && echo '{STATE}'");
    let mut a = start_at(
        dir,
        &json!({"outputs": {"status": true}}),
        &[("STATE", &show)],
        |_, _| {},
    );
    let status = a.ends(0).await;
    assert_eq!(
        (status.result, a.ran("state")),
        (Some(RunResult::Applied), 1)
    );
    assert!(!format!("{status:?}{}", a.log()).contains("hunter22"));
    let outputs = status.outputs.unwrap();
    assert_eq!(outputs.reason, reason::PUBLISHED);
    assert_eq!(
        json!(outputs.values),
        json!({"id": "vpc-1", "zones": "[\"a\"]"})
    );
}

#[tokio::test]
async fn outputs_precede_hooks_after_the_apply() {
    for (state, reason, said) in [
        (
            format!("echo '{STATE}'"),
            reason::PUBLISHED,
            "applied +1 ~0 -0; hook late (AfterApply) failed with 3",
        ),
        (
            "exit 7".to_owned(),
            reason::NOT_PUBLISHED,
            "applied +1 ~0 -0; its outputs are not published: ",
        ),
    ] {
        let hook =
            json!({"name": "late", "when": "AfterApply", "inline": "echo late >> $LEDGER; exit 3"});
        let more = json!({"outputs": {"status": true}, "hooks": [hook]});
        let mut a = start_at(
            tempfile::tempdir().unwrap(),
            &more,
            &[("STATE", &state)],
            |_, _| {},
        );
        let status = a.ends(0).await;
        let order: Vec<_> = a
            .ledger()
            .into_iter()
            .filter(|line| line == "state" || line == "late")
            .collect();
        assert_eq!(order, ["state", "late"], "and once only");
        assert_eq!(
            (status.result, status.failure),
            (Some(RunResult::Applied), None)
        );
        assert_eq!(status.outputs.unwrap().reason, reason);
        let message = status.message.unwrap();
        assert!(
            message.starts_with(said) && message.ends_with("hook late (AfterApply) failed with 3"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn unreadable_outputs_keep_the_result() {
    for (more, says) in [
        (json!({"outputs": {"status": true}}), "exit code 7"),
        (
            json!({"outputs": {"configMap": {"name": "net"}}}),
            "there is no datastore",
        ),
    ] {
        let mut a = start_at(
            tempfile::tempdir().unwrap(),
            &more,
            &[("STATE", "exit 7")],
            |_, _| {},
        );
        let status = a.ends(0).await;
        assert_eq!(
            (status.result, status.failure),
            (Some(RunResult::Applied), None)
        );
        assert_eq!(status.outputs.unwrap().reason, reason::NOT_PUBLISHED);
        let message = status.message.unwrap();
        assert!(
            message.starts_with("applied +1 ~0 -0; its outputs are not published: ")
                && message.contains(says),
            "{message}"
        );
    }
}

#[tokio::test]
async fn runs_without_an_apply_read_no_outputs() {
    for (more, env) in [
        (
            json!({"outputs": {"status": true}}),
            vec![("PLAN_EXIT", "0"), ("PLAN_JSON", "{}")],
        ),
        (
            json!({"outputs": {"status": true}, "operation": "Plan"}),
            vec![],
        ),
    ] {
        let mut a = start_at(tempfile::tempdir().unwrap(), &more, &env, |_, _| {});
        assert_eq!(a.end().await, 0);
        assert_eq!(a.ran("state"), 0);
    }
    // With a datastore, whose objects the next apply writes.
    let store = crate::repository::Datastore::start();
    let backend = json!({"type": "http", "config": {"address": "http://state/x"}});
    let more = json!({"outputs": {"configMap": {"name": "net"}}, "backend": backend});
    let env = [("PLAN_EXIT", "0"), ("PLAN_JSON", "{}")];
    let mut a = start_at(
        tempfile::tempdir().unwrap(),
        &more,
        &env,
        |settings, api| store.give(settings, api),
    );
    let outputs = a.ends(0).await.outputs.unwrap();
    assert!(
        outputs.message.ends_with("the next apply publishes them") && a.ran("state") == 0,
        "{outputs:?}"
    );
}
