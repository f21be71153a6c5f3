//! Any tool version: selected by the code, downloaded from a mirror, verified, and cached.

use anyhow::{Context, Result, ensure};
use axum::http::StatusCode;
use crds::{Changed, FailureClass, Phase, RunResult, TerraformRunStatus, names, reason};
use harness::wait;
use ledger::what;
use releases::Release;
use serde_json::{Value, json};
use tool_versions::Tool;

use crate::{
    releases::{CREDENTIALS, SECRET},
    stored::{approve_waiting, released},
    suite::{LATER, SOON, Scene, Test, automatic, holds, with},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "tools::image_without_tools_downloads_the_version_of_the_code",
            downloaded,
        ),
        Test::new("tools::terragrunt_runs_real_opentofu", terragrunt),
        Test::new(
            "tools::tool_of_terragrunt_gets_one_interrupt",
            terragrunt_told,
        ),
        Test::new("tools::apply_has_the_binary_of_the_plan", same_binary),
        Test::new("tools::unavailable_mirror_is_retried", away),
        Test::new("tools::pods_of_a_node_download_a_version_once", shared),
    ]
}

/// A Terragrunt unit that uses each of Terragrunt's features to run code.
const UNIT: &str = r#"terraform_version_constraint = "1.10.6"
locals {
  who = run_cmd("--terragrunt-quiet", "echo", "Terragrunt")
}
generate "more" {
  path      = "more.tf"
  if_exists = "overwrite"
  contents  = "variable \"who\" {}\noutput \"generated\" {\n  value = \"by $${var.who}\"\n}\n"
}
inputs = {
  who = local.who
}
terraform {
  before_hook "before" {
    commands = ["plan", "apply"]
    execute  = ["echo", "a hook"]
  }
}
"#;

const MAIN: &str = "output \"made\" {\n  value = \"by the real tool\"\n}\n";

/// An automatic run in the image without tools. `files` is the code; the scripted tool's script is added.
async fn run(scene: &Scene, name: &str, files: Value, spec: Value) -> Result<()> {
    let script = scene.script(name, json!({"resources": 1}));
    let files = with(
        json!({"main.tf": MAIN, "pawl-script.json": script.to_string()}),
        files,
    );
    let image = json!({"image": scene.suite.releases.image, "imagePullPolicy": "Never"});
    let whole = with(
        automatic(),
        json!({"source": {"inline": {"files": files}}, "runner": image}),
    );
    scene.create(name, with(whole, spec)).await.map(drop)
}

fn tool(status: &TerraformRunStatus) -> String {
    status
        .history
        .iter()
        .find(|line| line.contains("Setup"))
        .cloned()
        .unwrap_or_default()
}

async fn downloaded(scene: Scene) -> Result<()> {
    scene.secret(
        SECRET,
        &[("username", CREDENTIALS.0), ("password", CREDENTIALS.1)],
    )?;
    // The mirror of Terraform requires the password.
    let rows = [
        (
            "a",
            json!({".opentofu-version": "1.10.6\n"}),
            "OpenTofu 1.10.6, from .opentofu-version",
        ),
        (
            "b",
            json!({".terraform-version": "1.5.7\n"}),
            "Terraform 1.5.7, from .terraform-version",
        ),
    ];
    for (name, files, _) in &rows {
        run(&scene, name, files.clone(), json!({})).await?;
    }
    for (name, _, says) in &rows {
        let status = scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(
            tool(&status).ends_with(says),
            "{name}: {:?}",
            status.history
        );
        let (log, described) = (
            scene.log(name).await?,
            scene.kubectl(&["describe", "tfrun", name])?,
        );
        holds(&log, "is installed: ")?;
        holds(&log, "signed by ")?;
        ensure!(!log.contains(CREDENTIALS.1) && !described.contains(CREDENTIALS.1));
        let state = scene.state(name)?;
        ensure!(
            state["outputs"]["made"]["value"] == "by the real tool",
            "{name}: {state}"
        );
    }
    Ok(())
}

async fn terragrunt(scene: Scene) -> Result<()> {
    let files = json!({"terragrunt.hcl": UNIT});
    // The plan outlives its pod and is applied in another one, where Terragrunt generates its files again.
    run(
        &scene,
        "a",
        files.clone(),
        json!({"approval": {"mode": "Manual", "holdFor": "0s"}}),
    )
    .await?;
    let waits = released(&scene, "a").await?;
    holds(&tool(&waits), "Terragrunt 1.1.3 with OpenTofu 1.10.6, ")?;
    holds(&tool(&waits), "; OpenTofu 1.10.6, from terragrunt.hcl")?;
    approve_waiting(&scene, &waits)?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(status.claim.is_some_and(|claim| claim.attempt == 2));
    let state = scene.state("a")?;
    ensure!(
        state["outputs"]["made"]["value"] == "by the real tool",
        "{state}"
    );
    ensure!(
        state["outputs"]["generated"]["value"] == "by Terragrunt",
        "{state}"
    );
    // The managed state is served to the tool that Terragrunt runs.
    for (name, result) in [("b", RunResult::Applied), ("c", RunResult::NoChanges)] {
        run(
            &scene,
            name,
            files.clone(),
            json!({"backend": null, "stack": "words"}),
        )
        .await?;
        scene.ends(name, result).await?;
    }
    Ok(())
}

async fn terragrunt_told(scene: Scene) -> Result<()> {
    scene.suite.releases.publish("1.7.7")?;
    // A stand-in (fixtures/terragrunt) plays Terragrunt, because versions before 1.0 have other options. The provider ignores the
    // interrupt, so the tool would wait for an hour. The stand-in forwards a signal after 15 s, and 10 s of the smallest grace period are
    // left for the provider.
    let script = scene.script(
        "a",
        json!({"resources": [
            {"address": "terraform_data.a"},
            {"address": "terraform_data.b", "steps": [{"provider": {"seconds": 3600, "ignore_signals": true}}]},
        ]}),
    );
    let files = json!({"terragrunt.hcl": "terraform_version_constraint = \"1.7.7\"\n", ".terragrunt-version": "0.93.0\n",
        "pawl-script.json": script.to_string()});
    run(
        &scene,
        "a",
        files,
        json!({"runner": {"terminationGracePeriodSeconds": 30}}),
    )
    .await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    scene
        .annotate("a", &[(names::CANCEL, Some("stop"))])
        .await?;
    let status = scene.ends_within("a", RunResult::Failed, LATER).await?;
    holds(&tool(&status), "Terragrunt 0.93.0 with OpenTofu 1.7.7, ")?;
    let failure = status.failure.context("no failure")?;
    ensure!(
        failure.class == FailureClass::Interrupted && failure.changes == Changed::Some,
        "{failure:?}"
    );
    let ledger = scene.ledger("a");
    let signals = ledger::select(&ledger, what::SIGNAL, Some("apply"));
    ensure!(signals.len() == 1, "{signals:?}");
    ensure!(
        ledger::select(&ledger, what::COMMAND_END, Some("apply")).len() == 1,
        "the tool was killed: {ledger:?}"
    );
    scene.saved("a")
}

async fn same_binary(scene: Scene) -> Result<()> {
    let releases = &scene.suite.releases;
    let first = releases.publish("1.7.1")?;
    let spec = json!({"tool": {"name": "OpenTofu", "version": "1.7.1"}, "approval": {"mode": "Manual", "holdFor": "0s"}});
    for name in ["a", "b"] {
        run(&scene, name, json!({}), spec.clone()).await?;
        scene.phase(name, Phase::AwaitingApproval).await?;
    }
    // Another pod downloads the same binary again.
    scene.approve("a").await?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(
        status.attempt.context("no attempt")?.restores == Some(1),
        "it was applied in another pod"
    );
    // Another binary of that version, with a valid signature as well.
    let other = tempfile::NamedTempFile::new()?;
    let mut bytes = std::fs::read(releases::versions::scripted_tool()?)?;
    bytes.extend_from_slice(b"\nanother build\n");
    std::fs::write(other.path(), bytes)?;
    let second = Release::scripted(Tool::OpenTofu, "1.7.1", other.path())?;
    ensure!(first.digest()? != second.digest()?);
    releases.tree.add(&second)?;
    scene.approve("b").await?;
    let status = scene
        .fails(
            "b",
            FailureClass::Integrity,
            reason::TOOL_NOT_GENUINE,
            LATER,
        )
        .await?;
    let message = status.failure.context("no failure")?.message;
    holds(&message, &first.digest()?.to_string())?;
    holds(&message, &second.digest()?.to_string())?;
    ensure!(status.claim.is_none() && scene.starts("b", "apply") == 0);
    Ok(())
}

async fn away(scene: Scene) -> Result<()> {
    let releases = &scene.suite.releases;
    let release = releases.publish("1.7.3")?;
    releases
        .open
        .fail(&release, StatusCode::SERVICE_UNAVAILABLE);
    run(
        &scene,
        "a",
        json!({".opentofu-version": "1.7.3\n"}),
        json!({}),
    )
    .await?;
    let status = scene
        .until("a", "failed once", SOON, |s| {
            // On a full node the pod waits first.
            s.failure
                .as_ref()
                .is_some_and(|failure| failure.reason != reason::UNSCHEDULABLE)
        })
        .await?;
    let failure = status.failure.context("no failure")?;
    ensure!(
        (failure.class, failure.reason.as_str())
            == (FailureClass::Transient, reason::TOOL_UNAVAILABLE),
        "{failure:?}"
    );
    holds(&failure.message, "503")?;
    releases.open.heal(&release);
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(
        status.failure.is_none(),
        "a run that succeeded shows an old failure: {:?}",
        status.failure
    );
    // Each attempt has its own Event. Events are published asynchronously.
    let look = async || {
        let told = scene.kubectl(&["describe", "terraformrun", "a"])?;
        let both = (1..=2).all(|n| told.contains(&format!("attempt {n} of at most 4: pod a-")));
        Ok(if both { Ok(()) } else { Err(told) })
    };
    wait::until("each attempt has an Event of its own", SOON, look).await
}

async fn shared(scene: Scene) -> Result<()> {
    let releases = &scene.suite.releases;
    let release = releases.publish("1.7.5")?;
    scene.kubectl(&[
        "label",
        "namespace",
        &scene.namespace,
        "pod-security.kubernetes.io/enforce=privileged",
        "--overwrite",
    ])?;
    let names = ["a", "b"];
    for name in names {
        run(
            &scene,
            name,
            json!({".opentofu-version": "1.7.5\n"}),
            json!({}),
        )
        .await?;
    }
    let mut installed = 0;
    for name in names {
        scene.ends_within(name, RunResult::Applied, LATER).await?;
        installed += scene
            .log(name)
            .await?
            .matches("OpenTofu 1.7.5 is installed")
            .count();
    }
    ensure!(
        releases.open.downloads(&release) == 1 && installed == 1,
        "{} downloads",
        releases.open.downloads(&release)
    );
    let kept = releases.cache.join("tools/opentofu/1.7.5");
    ensure!(kept.is_dir(), "{} is not there", kept.display());
    Ok(())
}
