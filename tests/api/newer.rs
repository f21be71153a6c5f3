//! The CRD of a newer version, with fields and enum values unknown to ours, as its release would install it.

use anyhow::{Context, Result};
use crds::TerraformRun;
use harness::wait;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};

use crate::world::{PATIENCE, World};

/// Schemas that get one more enum value.
const WORDS: [(&str, &str); 7] = [
    ("status/properties/phase", PHASE),
    ("status/properties/result", "AppliedInPart"),
    ("status/properties/failure/properties/class", "Quota"),
    ("status/properties/failure/properties/changes", "Reverted"),
    ("spec/properties/operation", "Refresh"),
    ("spec/properties/approval/properties/mode", "TwoPeople"),
    ("spec/properties/tool/properties/name", "Another"),
];
/// Schemas that get one more field, named `newer`.
const FIELDS: [&str; 9] = [
    "spec",
    "spec/properties/approval",
    "status",
    "status/properties/attempt",
    "status/properties/approval",
    "status/properties/plan",
    "status/properties/claim",
    "status/properties/lease",
    "status/properties/steps/items",
];
/// A phase between others.
pub(crate) const PHASE: &str = "Paused";

pub(crate) fn definition() -> Result<Value> {
    let mut crd = crds::crd::terraform_run();
    let root = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .context("no schema")?;
    for (path, word) in WORDS {
        let words = root
            .pointer_mut(&format!("/properties/{path}/enum"))
            .and_then(Value::as_array_mut);
        words
            .with_context(|| format!("{path} has no words"))?
            .push(word.into());
    }
    for path in FIELDS {
        let fields = root
            .pointer_mut(&format!("/properties/{path}/properties"))
            .and_then(Value::as_object_mut);
        let field =
            json!({"type": "string", "maxLength": 64, "description": "Of a newer version."});
        fields
            .with_context(|| format!("{path} has no fields"))?
            .insert("newer".into(), field);
    }
    // Any phase may follow it and precede it: the newer version defines the legal transitions.
    let rules = root["x-kubernetes-validations"]
        .as_array_mut()
        .context("no rules")?;
    let rule = rules
        .iter_mut()
        .find(|rule| rule["message"] == "illegal change of phase")
        .context("no rule of phases")?;
    let more = format!(
        "(has(self.status) && has(self.status.phase) && (self.status.phase == '{PHASE}' || oldSelf.status.phase == '{PHASE}'))"
    );
    rule["rule"] = format!("{} || {more}", rule["rule"].as_str().context("no rule")?).into();
    Ok(crd)
}

/// Runs as stored, with fields that our types do not know.
pub(crate) fn whole(world: &World, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(
        world.admin.clone(),
        namespace,
        &ApiResource::erase::<TerraformRun>(&()),
    )
}

/// A run with an arbitrary spec.
pub(crate) fn run(name: &str, more: &Value) -> Result<DynamicObject> {
    let mut spec = json!({"source": {"inline": {"files": {"main.tf": ""}}}});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let run = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "metadata": {"name": name}, "spec": spec});
    Ok(serde_json::from_value(run)?)
}

/// A changed CRD takes effect a moment later. Waits until a dry run retains the new field.
pub(crate) async fn wait_for(world: &World) -> Result<()> {
    let namespace = world.namespace().await?;
    let (runs, probe) = (
        whole(world, &namespace),
        run("probe", &json!({"newer": "x", "operation": "Refresh"}))?,
    );
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let look = async || {
        let answer = runs.create(&dry, &probe).await;
        let kept = answer
            .as_ref()
            .is_ok_and(|run| run.data["spec"]["newer"] == "x");
        Ok(if kept {
            Ok(())
        } else {
            Err(format!("{answer:?}"))
        })
    };
    wait::until("the newer definition is in force", PATIENCE, look).await
}
