//! Inputs of the tool in real pods: variable files, environments, files, targets and arguments.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, RunResult, reason};
use harness::guide;
use serde_json::json;

use crate::{
    guide::Reader,
    stored::{approve_waiting, released},
    suite::{LATER, SOON, Scene, Test, holds},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new("inputs::another_pod_has_them_again", again), Test::new("inputs::what_the_guide_says_of_them", documented)]
}

/// The apply reads its inputs and requires each word.
const MAIN: &str = r#"
variable "region" {}
variable "password" { sensitive = true }
variable "of_env" {}
resource "terraform_data" "a" {
  input = "${var.region} ${nonsensitive(length(var.password))} ${var.of_env}"
  provisioner "local-exec" {
    command = "read a < conf/token; read b < $HOME/.example/credentials; test \"$a $b $FIRST\" = 'of-source of-home of-env'"
  }
}
resource "terraform_data" "b" {}
output "said" { value = terraform_data.a.output }
"#;

async fn again(scene: Scene) -> Result<()> {
    scene.kubectl(&["create", "secret", "generic", "files", "--from-literal=token=of-source", "--from-literal=home=of-home"])?;
    scene.kubectl(&["create", "secret", "generic", "env", "--from-literal=FIRST=of-env", "--from-literal=TF_VAR_of_env=env"])?;
    scene.kubectl(&[
        "create",
        "secret",
        "generic",
        "vars",
        "--from-literal=secret.tfvars=password = \"correct-horse\"\nregion = \"x\"",
    ])?;
    scene.kubectl(&["create", "configmap", "vars", "--from-literal=all.tfvars.json={\"region\": \"north\"}"])?;
    let spec = json!({
        "approval": {"holdFor": "0s"},
        "variableFiles": [
            {"secretKeyRef": {"name": "vars", "key": "secret.tfvars"}},
            {"configMapKeyRef": {"name": "vars", "key": "all.tfvars.json"}},
        ],
        "envFrom": [{"secretRef": {"name": "env"}}],
        "files": [
            {"path": "conf/token", "in": "Source", "secretKeyRef": {"name": "files", "key": "token"}},
            {"path": ".example/credentials", "secretKeyRef": {"name": "files", "key": "home"}},
        ],
        "targets": ["terraform_data.a"],
        "parallelism": 1,
        "arguments": {"init": ["-upgrade"], "plan": ["-compact-warnings"]},
    });
    for name in ["good", "stale"] {
        scene.real(name, MAIN, spec.clone()).await?;
        ensure!(released(&scene, name).await?.plan.context("no plan")?.counts.add == 1);
    }
    approve_waiting(&scene, &scene.status("good").await?)?;
    scene.ends_within("good", RunResult::Applied, LATER).await?;
    let state = scene.suite.state.current(&format!("{}/good", scene.namespace)).context("no state")?;
    ensure!(state["outputs"]["said"]["value"] == "north 13 env", "{state}");
    // The code itself, which is in the spec, contains two of the words.
    let (log, status) = (scene.log("good").await?, serde_json::to_string(&scene.status("good").await?)?);
    for secret in ["correct-horse", "of-source", "of-home"] {
        ensure!(!log.contains(secret) && !status.contains(secret), "{secret} shows:\n{log}\n{status}");
    }
    // A file from a Secret is an input of the plan.
    let patch = json!({"stringData": {"token": "another"}}).to_string();
    scene.kubectl(&["patch", "secret", "files", "--type=merge", "-p", &patch])?;
    approve_waiting(&scene, &scene.status("stale").await?)?;
    let status = scene.fails("stale", FailureClass::StalePlan, reason::INPUTS_CHANGED, LATER).await?;
    let message = status.failure.context("no failure")?.message;
    holds(&message, "file Source conf/token changed since the plan")?;
    ensure!(status.claim.is_none() && !message.contains("another"), "{message}");
    // All missing names and places are reported before the tool starts.
    scene.real("missing", MAIN, json!({"approval": {"mode": "Automatic"}})).await?;
    let status = scene.fails("missing", FailureClass::Configuration, reason::VARIABLE_NOT_SET, SOON).await?;
    let message = status.failure.context("no failure")?.message;
    holds(&message, "3 variables have no value: of_env (main.tf:4), password (main.tf:3), region (main.tf:2)")
}

/// The guide's example, unchanged.
async fn documented(scene: Scene) -> Result<()> {
    let reader = Reader::new(&scene)?;
    std::fs::write(reader.dir.path().join("inputs.yaml"), guide::block("inputs.yaml")?)?;
    // A cluster from an earlier run still has these.
    reader.paste(
        "kubectl delete tfrun inputs --ignore-not-found --timeout=120s; kubectl delete secret inputs inputs-env --ignore-not-found",
    )?;
    reader.paste(&guide::block("inputs plan")?)?;
    let here = Scene { suite: scene.suite.clone(), namespace: "default".to_owned() };
    here.approve("inputs").await?;
    here.ends_within("inputs", RunResult::Applied, LATER).await.map(drop)
}
