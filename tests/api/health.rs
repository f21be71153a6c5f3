//! Argo CD's health of our objects by the checks in the guide, in Argo CD's Lua interpreter.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use harness::guide;
use serde_json::{Value, json};
use xtask::gobuild::{HEALTH, Toolset};

use crate::world::{World, tests};

tests! {
    Bare: argo_cd_health_follows_conditions,
}

/// The health of an object.
pub(crate) fn of(object: &Value) -> Result<String> {
    let config: Value = serde_saphyr::from_str(&guide::block("argo health")?)?;
    let kind = object["kind"].as_str().context("no kind")?;
    let check = config["data"][format!("resource.customizations.health.pawl.run_{kind}")]
        .as_str()
        .context("no check")?;
    let script = format!(
        "local obj = {}\nlocal health = (function() {check} end)()\nprint(health.status)\n",
        lua(object)
    );
    let script = script + "assert(type(health.message or '') == 'string')\n";
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("check.lua");
    std::fs::write(&file, &script)?;
    let output = Command::new(Toolset::ensure(HEALTH)?.path("glua")?)
        .arg(&file)
        .output()?;
    ensure!(
        output.status.success() && output.stderr.is_empty(),
        "{}\n{script}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Formats a value as Lua.
fn lua(value: &Value) -> String {
    let items = match value {
        Value::Null => return "nil".to_owned(),
        Value::Array(items) => items.iter().map(lua).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| format!("[{}] = {}", text(key), lua(value)))
            .collect::<Vec<_>>(),
        Value::String(value) => return text(value),
        other => return other.to_string(),
    };
    format!("{{{}}}", items.join(", "))
}

fn text(value: &str) -> String {
    let escaped: Vec<String> = value.bytes().map(|byte| format!("\\{byte:03}")).collect();
    format!("\"{}\"", escaped.concat())
}

async fn argo_cd_health_follows_conditions(_: World) -> Result<()> {
    let conditions = |all: &[(&str, &str)]| -> Vec<Value> {
        all.iter()
            .map(|(type_, status)| json!({"type": type_, "status": status, "message": "why"}))
            .collect()
    };
    let layer = [
        (vec![], "Progressing"),
        (
            vec![
                ("Ready", "True"),
                ("Reconciling", "False"),
                ("Stalled", "False"),
            ],
            "Healthy",
        ),
        (
            vec![
                ("Ready", "False"),
                ("Reconciling", "False"),
                ("Stalled", "True"),
            ],
            "Degraded",
        ),
        (
            vec![
                ("Ready", "False"),
                ("Reconciling", "True"),
                ("Stalled", "False"),
            ],
            "Progressing",
        ),
        // A waiting plan, detected drift, or a suspension.
        (
            vec![
                ("Ready", "False"),
                ("Reconciling", "False"),
                ("Stalled", "False"),
            ],
            "Suspended",
        ),
    ];
    let repository = [
        (vec![], "Progressing"),
        (vec![("Ready", "True"), ("Synced", "True")], "Healthy"),
        (vec![("Ready", "True"), ("Synced", "False")], "Degraded"),
        (vec![("Ready", "False"), ("Synced", "True")], "Degraded"),
    ];
    for (kind, rows) in [
        ("TerraformLayer", layer.as_slice()),
        ("TerraformRepository", &repository),
    ] {
        for (said, wanted) in rows {
            let status = json!({"observedGeneration": 2, "conditions": conditions(said)});
            let mut object =
                json!({"kind": kind, "metadata": {"generation": 2}, "spec": {}, "status": status});
            ensure!(
                of(&object)? == *wanted,
                "{kind} {said:?} is {} and not {wanted}",
                of(&object)?
            );
            object["metadata"]["generation"] = json!(3);
            ensure!(
                of(&object)? == "Progressing",
                "a {kind} that changed is {}",
                of(&object)?
            );
            object["spec"]["suspend"] = json!(true);
            ensure!(
                kind == "TerraformLayer" || of(&object)? == "Suspended",
                "a suspended repository is {}",
                of(&object)?
            );
        }
    }
    let stalled = conditions(&[("Stalled", "True")]);
    for (status, wanted) in [
        (Value::Null, "Progressing"),
        (json!({"phase": "Plan", "message": "plans"}), "Progressing"),
        (
            json!({"phase": "Pending", "conditions": stalled}),
            "Degraded",
        ),
        (json!({"phase": "AwaitingApproval"}), "Suspended"),
        (
            json!({"phase": "Succeeded", "result": "Applied"}),
            "Healthy",
        ),
        (json!({"phase": "Failed", "result": "Failed"}), "Degraded"),
        (
            json!({"phase": "Canceled", "result": "Rejected"}),
            "Degraded",
        ),
        (
            json!({"phase": "Canceled", "result": "Superseded"}),
            "Healthy",
        ),
    ] {
        let health = of(&json!({"kind": "TerraformRun", "status": status}))?;
        ensure!(
            health == wanted,
            "a run with {status} is {health} and not {wanted}"
        );
    }
    Ok(())
}
