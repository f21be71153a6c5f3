//! Unknown fields of hooks, inputs, credentials and outputs, for clients with and without strict validation.

use std::{io::Write as _, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::world::{World, tests};

tests! {
    Bare: unknown_fields_are_named_by_strict_validation,
}

async fn unknown_fields_are_named_by_strict_validation(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let key = |extra: &str| json!({"name": "a", "key": "k", extra: true});
    let object = json!({
        "apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "metadata": {"name": "a", "namespace": namespace},
        "spec": {
            "source": {"inline": {"files": {"main.tf": ""}}},
            "hooks": [{"name": "a", "when": "Always", "inline": "exit 0", "onfailure": "Continue"}],
            "variables": [{"name": "a", "value": 1, "sensitive": true}],
            "variableFiles": [{"secretKeyRef": key("optional")}],
            "env": [{"name": "A", "valueFrom": {"configMapKeyRef": key("default")}}],
            "envFrom": [{"secretRef": {"name": "a", "keys": ["x"]}}],
            "files": [{"path": "a", "mode": 448, "secretKeyRef": {"name": "a", "key": "k"}}],
            "credentials": {"registries": [{"host": "r.example.com", "token": "t", "secretKeyRef": {"name": "a", "key": "k"}}]},
            "outputs": {"configMap": {"name": "a", "labels": {}}},
            "arguments": {"validate": ["-json"]},
        },
    });
    let create = |validate: &str| -> Result<std::process::Output> {
        let args = [
            "create",
            "--dry-run=server",
            "-o",
            "json",
            &format!("--validate={validate}"),
            "-f",
            "-",
        ];
        let mut command = world.access.kubectl_command(&args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        child
            .stdin
            .take()
            .context("no stdin")?
            .write_all(object.to_string().as_bytes())?;
        Ok(child.wait_with_output()?)
    };
    let fields = [
        "hooks[0].onfailure",
        "variables[0].sensitive",
        "variableFiles[0].secretKeyRef.optional",
        "env[0].valueFrom.configMapKeyRef.default",
        "envFrom[0].secretRef.keys",
        "files[0].mode",
        "credentials.registries[0].token",
        "outputs.configMap.labels",
        "arguments.validate",
    ];
    let refused = create("strict")?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success());
    for field in fields {
        ensure!(
            said.contains(&format!("unknown field \"spec.{field}\"")),
            "{field}: {said}"
        );
    }
    // Without validation the unknown fields are dropped silently.
    let taken = create("ignore")?;
    ensure!(
        taken.status.success(),
        "{}",
        String::from_utf8_lossy(&taken.stderr)
    );
    let spec = serde_json::from_slice::<Value>(&taken.stdout)?["spec"].clone();
    ensure!(
        spec["hooks"][0]["onFailure"] == "Fail" && spec["hooks"][0].get("onfailure").is_none(),
        "{spec}"
    );
    ensure!(
        spec["files"][0].get("mode").is_none() && spec["arguments"].get("validate").is_none(),
        "{spec}"
    );
    Ok(())
}
