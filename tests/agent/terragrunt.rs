//! Attempts with a script in the place of Terragrunt, which ends with 0 after a plan with changes too.

use std::fs;

use crds::{FailureClass, RunResult, reason};
use serde_json::json;

use crate::{
    common::{Attempt, alone, start_at},
    repository::Datastore,
};

/// A version whose arguments are those of the tool, and which prints no configuration.
const VERSION: &str = "0.77.0";
const DESTROYS: &str =
    r#"{"resource_changes":[{"address":"a.b","change":{"actions":["delete"]}}]}"#;
const NOTHING: &str = r#"{"resource_changes":[]}"#;
/// The file of the variables that the stand-in for the tool writes.
const PLAN: &str = r#"printf '{"sealed":{"key":"","digests":{}}}' > "$PAWL_INPUTS""#;

/// A run of the stack `net` whose state has this lineage.
fn run(store: &Datastore, tool: &str, operation: &str, lineage: &str, plan: &str) -> Attempt {
    let dir = tempfile::tempdir().unwrap();
    let mut more = json!({"stack": "net", "operation": operation,
        "backend": {"type": "http", "config": {"address": "http://state/x"}}});
    let mut env = vec![("PLAN_JSON", plan)];
    if tool == "Terragrunt" {
        more["tool"] = json!({"name": tool, "version": VERSION});
        env.extend([("PLAN", PLAN), ("PLAN_EXIT", "0")]);
    }
    let state = format!(
        r#"echo '{{"version":4,"serial":1,"lineage":"{lineage}","outputs":{{}},"resources":[]}}'"#
    );
    env.push(("STATE", &state));
    start_at(dir, &more, &env, |settings, api| {
        let tools = &settings.tools[0];
        let place = tools.join("terragrunt").join(VERSION);
        fs::create_dir_all(&place).unwrap();
        fs::copy(tools.join("opentofu/1.10.6/tofu"), place.join("terragrunt")).unwrap();
        let uid = format!("uid-{}", settings.nonce);
        api.state.lock().unwrap().object["metadata"]["uid"] = uid.clone().into();
        settings.run_uid = uid;
        store.give(settings, api);
    })
}

#[tokio::test]
async fn only_a_destroy_that_finds_nothing_is_refused_in_another_state() {
    alone();
    let store = Datastore::start();
    let create = r#"{"resource_changes":[{"address":"a.b","change":{"actions":["create"]}}]}"#;
    let mut a = run(&store, "OpenTofu", "Apply", "one", create);
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
    let mut a = run(&store, "Terragrunt", "Destroy", "two", NOTHING);
    let failure = a
        .fails(FailureClass::Configuration, reason::ANOTHER_STATE)
        .await;
    assert!(
        failure.message.starts_with("there is nothing to destroy"),
        "{failure:?}"
    );
    let mut a = run(&store, "Terragrunt", "Destroy", "two", DESTROYS);
    assert_eq!(a.ends(0).await.result, Some(RunResult::Destroyed));
}
