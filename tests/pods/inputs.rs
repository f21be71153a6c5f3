//! Inputs and hooks of a run in real pods, in the pod that plans and in another that applies its plan.

use anyhow::{Context, Result, ensure};
use crds::RunResult;
use harness::guide;
use serde_json::{Value, json};

use crate::{
    guide::Reader,
    stored::{approve_waiting, released},
    suite::{LATER, Scene, Test},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "inputs::restoring_pod_has_the_same_inputs_and_hooks",
            restored,
        ),
        Test::new("inputs::example_of_the_guide_is_applied", documented),
    ]
}

/// The apply reads its inputs and requires each word.
const MAIN: &str = r#"
variable "region" {}
variable "password" { sensitive = true }
variable "of_env" {}
variable "list" { type = list(number) }
variable "object" { type = object({ on = bool, name = string }) }
variable "word" {
  type      = string
  sensitive = true
}
variable "place" { type = string }
resource "terraform_data" "a" {
  input = {
    said = "${var.region} ${nonsensitive(length(var.password))} ${var.of_env} ${var.place} ${var.object.on}"
    sum  = sum(var.list)
    leak = nonsensitive(var.word)
  }
  provisioner "local-exec" {
    command = "read a < conf/token; read b < $HOME/.example/credentials; test \"$a $b $FIRST $TOKEN\" = 'of-source of-home of-env hunter22'"
  }
}
resource "terraform_data" "b" {}
output "said" { value = terraform_data.a.output.said }
output "sum" { value = terraform_data.a.output.sum }
output "leak" { value = terraform_data.a.output.leak }
"#;

const MOMENTS: [&str; 8] = [
    "BeforeSetup",
    "AfterSetup",
    "BeforeInit",
    "AfterInit",
    "BeforePlan",
    "AfterPlan",
    "BeforeApply",
    "AfterApply",
];
/// The script of each hook.
const SCRIPT: &str =
    "echo \"$PAWL_HOOK_WHEN of attempt $PAWL_ATTEMPT ($PAWL_HOOK_RESTORES) as planned\"\n";

/// Creates the objects that the run names.
fn objects(scene: &Scene) -> Result<()> {
    scene.secret("files", &[("token", "of-source"), ("home", "of-home")])?;
    scene.secret("env", &[("FIRST", "of-env"), ("TF_VAR_of_env", "env")])?;
    let variables = "password = \"correct-horse\"\nregion = \"x\"";
    scene.secret(
        "vars",
        &[("secret.tfvars", variables), ("word", "battery-staple")],
    )?;
    scene.config_map(
        "vars",
        &[
            ("all.tfvars.json", "{\"region\": \"north\"}"),
            ("place", "west"),
        ],
    )?;
    scene.config_map(
        "script",
        &[(
            "run",
            &format!("{SCRIPT}echo TOKEN=hunter22 > $PAWL_HOOK_VALUES"),
        )],
    )
}

fn spec() -> Value {
    let hook = |when: &&str| match *when {
        "BeforeInit" => {
            json!({"name": "login", "when": when, "configMapKeyRef": {"name": "script", "key": "run"}})
        }
        _ => json!({"name": when.to_lowercase(), "when": when, "inline": SCRIPT}),
    };
    json!({
        "approval": {"holdFor": "0s"},
        "hooks": MOMENTS.iter().map(hook).collect::<Vec<_>>(),
        "variableFiles": [
            {"secretKeyRef": {"name": "vars", "key": "secret.tfvars"}},
            {"configMapKeyRef": {"name": "vars", "key": "all.tfvars.json"}},
        ],
        "variables": [
            {"name": "list", "value": [1, 2, 39]},
            {"name": "object", "value": {"on": true, "name": "x"}},
            {"name": "word", "valueFrom": {"secretKeyRef": {"name": "vars", "key": "word"}}},
            {"name": "place", "valueFrom": {"configMapKeyRef": {"name": "vars", "key": "place"}}},
        ],
        "envFrom": [{"secretRef": {"name": "env"}}],
        "files": [
            {"path": "conf/token", "in": "Source", "secretKeyRef": {"name": "files", "key": "token"}},
            {"path": ".example/credentials", "secretKeyRef": {"name": "files", "key": "home"}},
        ],
        "targets": ["terraform_data.a"],
        "parallelism": 1,
        "arguments": {"init": ["-upgrade"], "plan": ["-compact-warnings"]},
    })
}

async fn restored(scene: Scene) -> Result<()> {
    objects(&scene)?;
    scene.real("a", MAIN, spec()).await?;
    let waiting = released(&scene, "a").await?;
    ensure!(
        waiting.plan.as_ref().context("no plan")?.counts.add == 1,
        "{:?}",
        waiting.plan
    );
    let first = scene.log("a").await?;
    // The approved plan keeps the script of its time.
    scene.kubectl(&["delete", "configmap", "script"])?;
    approve_waiting(&scene, &waiting)?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(
        status
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.restores == Some(1)),
        "{status:?}"
    );
    ensure!(status.failed_hook.is_none(), "{status:?}");
    let state = scene.state("a")?;
    let (said, sum) = (
        &state["outputs"]["said"]["value"],
        &state["outputs"]["sum"]["value"],
    );
    ensure!(said == "north 13 env west true" && sum == 42, "{state}");

    let second = scene.log("a").await?;
    for (when, in_first, in_second) in MOMENTS
        .iter()
        .enumerate()
        .map(|(n, when)| (when, n < 6, !(4..6).contains(&n)))
    {
        let said = |log: &str, attempt: u8| {
            log.contains(&format!(
                "{when} of attempt {attempt} ({}) as planned",
                attempt == 2
            ))
        };
        ensure!(
            (said(&first, 1), said(&second, 2)) == (in_first, in_second),
            "{when}:\n{first}\n{second}"
        );
    }
    // The code itself, which is in the spec, contains some of the words.
    let shown = format!("{first}{second}{}", serde_json::to_string(&status)?);
    for secret in [
        "correct-horse",
        "battery-staple",
        "of-source",
        "of-home",
        "hunter22",
    ] {
        ensure!(!shown.contains(secret), "{secret} shows:\n{shown}");
    }
    Ok(())
}

/// The guide's example, unchanged.
async fn documented(scene: Scene) -> Result<()> {
    let reader = Reader::new(&scene)?;
    std::fs::write(
        reader.dir.path().join("inputs.yaml"),
        guide::block("inputs.yaml")?,
    )?;
    // A cluster from an earlier run still has these.
    reader.paste(
        "kubectl delete tfrun inputs --ignore-not-found --timeout=120s; kubectl delete secret inputs inputs-env --ignore-not-found",
    )?;
    reader.paste(&guide::block("inputs plan")?)?;
    let here = Scene {
        suite: scene.suite.clone(),
        namespace: "default".to_owned(),
    };
    here.approve("inputs").await?;
    here.ends_within("inputs", RunResult::Applied, LATER)
        .await
        .map(drop)
}
