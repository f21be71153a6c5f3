//! Any tool version: selected by the code, downloaded from a mirror, verified, and cached.

use anyhow::{Context, Result, ensure};
use axum::http::StatusCode;
use crds::{Changed, FailureClass, Phase, RunResult, TerraformRunStatus, names, reason};
use ledger::what;
use releases::Release;
use serde_json::{Value, json};
use tool_versions::Tool;

use crate::{
    releases::{CREDENTIALS, SECRET},
    stored::{approve_waiting, released},
    suite::{LATER, SOON, Scene, Test, holds, merge},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("tools::each_version_is_picked_from_the_code_alone", picked),
        Test::new("tools::terragrunt_runs_real_opentofu", terragrunt),
        Test::new("tools::terragrunt_s_tool_has_one_interrupt_and_the_whole_grace", terragrunt_told),
        Test::new("tools::the_apply_has_the_binary_of_the_plan", same_binary),
        Test::new("tools::a_mirror_that_is_away_is_asked_again", away),
        Test::new("tools::credentials_come_from_a_secret", credentials),
        Test::new("tools::pods_of_a_node_get_it_once_and_code_cannot_write_there", shared),
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
    let script = json!({"name": format!("{}/{name}", scene.namespace), "ledger": scene.suite.state.ledger_url(), "resources": 1});
    let mut all = json!({"main.tf": MAIN, "pawl-script.json": script.to_string()});
    merge(&mut all, files);
    let mut whole = json!({"source": {"inline": {"files": all}}, "approval": {"mode": "Automatic"},
        "runner": {"image": scene.suite.releases.image, "imagePullPolicy": "Never"}});
    merge(&mut whole, spec);
    scene.create(name, whole).await.map(drop)
}

fn tool(status: &TerraformRunStatus) -> String {
    status.history.iter().find(|line| line.contains("Setup")).cloned().unwrap_or_default()
}

fn secret(scene: &Scene) -> Result<()> {
    let (user, password) =
        (format!("--from-literal=username={}", CREDENTIALS.0), format!("--from-literal=password={}", CREDENTIALS.1));
    scene.kubectl(&["create", "secret", "generic", SECRET, &user, &password]).map(drop)
}

async fn picked(scene: Scene) -> Result<()> {
    secret(&scene)?;
    let rows = [
        ("a", json!({".opentofu-version": "1.10.6\n"}), "OpenTofu 1.10.6, from .opentofu-version"),
        ("b", json!({".terraform-version": "1.5.7\n"}), "Terraform 1.5.7, from .terraform-version"),
        (
            "c",
            json!({"versions.tofu": "terraform {\n  required_version = \"~> 1.9.0\"\n}\n"}),
            "OpenTofu 1.9.4, the newest that versions.tofu allows",
        ),
        ("d", json!({".tool-versions": "opentofu latest\n"}), "OpenTofu 1.12.6, from .tool-versions"),
        ("e", json!({".tfswitchrc": ">= 1.8.0, < 1.9\n"}), "Terraform 1.8.5, from .tfswitchrc"),
    ];
    for (name, files, _) in &rows {
        run(&scene, name, files.clone(), json!({})).await?;
    }
    for (name, _, says) in &rows {
        let status = scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(tool(&status).ends_with(says), "{name}: {:?}", status.history);
        let log = scene.log(name).await?;
        holds(&log, "is installed: ")?;
        holds(&log, "signed by ")?;
        let by_script = scene.starts(name, "apply");
        // None of the real versions played the script.
        let is_real = std::env::var_os("PAWL_REAL_TOOLS").is_some() || matches!(*name, "a" | "b");
        ensure!(by_script == usize::from(!is_real), "{name}: the scripted tool applied {by_script} times");
        let outputs = scene.suite.state.current(&format!("{}/{name}", scene.namespace)).context("no state")?;
        ensure!(!is_real || outputs["outputs"]["made"]["value"] == "by the real tool", "{name}: {outputs}");
    }
    Ok(())
}

async fn terragrunt(scene: Scene) -> Result<()> {
    let files = json!({"terragrunt.hcl": UNIT});
    // The plan outlives its pod and is applied in another one, where Terragrunt generates its files again.
    run(&scene, "a", files.clone(), json!({"approval": {"mode": "Manual", "holdFor": "0s"}})).await?;
    let waits = released(&scene, "a").await?;
    holds(&tool(&waits), "Terragrunt 1.1.3 with OpenTofu 1.10.6, ")?;
    holds(&tool(&waits), "; OpenTofu 1.10.6, from terragrunt.hcl")?;
    approve_waiting(&scene, &waits)?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(status.claim.is_some_and(|claim| claim.attempt == 2));
    let state = scene.suite.state.current(&format!("{}/a", scene.namespace)).context("no state")?;
    ensure!(state["outputs"]["made"]["value"] == "by the real tool", "{state}");
    ensure!(state["outputs"]["generated"]["value"] == "by Terragrunt", "{state}");
    // The managed state is served to the tool that Terragrunt runs.
    for (name, result) in [("b", RunResult::Applied), ("c", RunResult::NoChanges)] {
        run(&scene, name, files.clone(), json!({"backend": null, "stack": "words"})).await?;
        scene.ends(name, result).await?;
    }
    Ok(())
}

async fn terragrunt_told(scene: Scene) -> Result<()> {
    scene.suite.releases.publish("1.7.7")?;
    // A stand-in (fixtures/terragrunt) plays Terragrunt, because versions before 1.0 have other options. The provider ignores the
    // interrupt, so the tool would wait for an hour. The stand-in forwards a signal after 15 s, and 10 s of the smallest grace period are
    // left for the provider.
    let script = json!({"name": format!("{}/a", scene.namespace), "ledger": scene.suite.state.ledger_url(), "resources": [
        {"address": "terraform_data.a"},
        {"address": "terraform_data.b", "steps": [{"provider": {"seconds": 3600, "ignore_signals": true}}]},
    ]});
    let files = json!({"terragrunt.hcl": "terraform_version_constraint = \"1.7.7\"\n", ".terragrunt-version": "0.93.0\n",
        "pawl-script.json": script.to_string()});
    run(&scene, "a", files, json!({"runner": {"terminationGracePeriodSeconds": 30}})).await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    scene.annotate("a", &[(names::CANCEL, Some("stop"))]).await?;
    let status = scene.ends_within("a", RunResult::Failed, LATER).await?;
    holds(&tool(&status), "Terragrunt 0.93.0 with OpenTofu 1.7.7, ")?;
    let failure = status.failure.context("no failure")?;
    ensure!(failure.class == FailureClass::Interrupted && failure.changes == Changed::Some, "{failure:?}");
    let ledger = scene.ledger("a");
    let signals = ledger::select(&ledger, what::SIGNAL, Some("apply"));
    ensure!(signals.len() == 1, "{signals:?}");
    ensure!(ledger::select(&ledger, what::COMMAND_END, Some("apply")).len() == 1, "the tool was killed: {ledger:?}");
    let state = format!("{}/a", scene.namespace);
    ensure!(scene.suite.state.lock(&state).is_none(), "the lock is still held");
    ensure!(ledger::forgotten(&ledger, &scene.suite.state.current(&state).context("no state was written")?).is_empty());
    Ok(())
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
    ensure!(status.attempt.context("no attempt")?.restores == Some(1), "it was applied in another pod");
    // Another binary of that version, with a valid signature as well.
    let other = tempfile::NamedTempFile::new()?;
    let mut bytes = std::fs::read(releases::versions::scripted_tool()?)?;
    bytes.extend_from_slice(b"\nanother build\n");
    std::fs::write(other.path(), bytes)?;
    let second = Release::scripted(Tool::OpenTofu, "1.7.1", other.path())?;
    ensure!(first.digest()? != second.digest()?);
    releases.tree.add(&second)?;
    scene.approve("b").await?;
    let status = scene.fails("b", FailureClass::Integrity, reason::TOOL_NOT_GENUINE, LATER).await?;
    let message = status.failure.context("no failure")?.message;
    holds(&message, &first.digest()?.to_string())?;
    holds(&message, &second.digest()?.to_string())?;
    ensure!(status.claim.is_none() && scene.starts("b", "apply") == 0);
    Ok(())
}

async fn away(scene: Scene) -> Result<()> {
    let releases = &scene.suite.releases;
    let release = releases.publish("1.7.3")?;
    releases.open.fail(&release, StatusCode::SERVICE_UNAVAILABLE);
    run(&scene, "a", json!({".opentofu-version": "1.7.3\n"}), json!({})).await?;
    let failed = |run: &crds::TerraformRun| run.status.as_ref().is_some_and(|status| status.failure.is_some());
    let run = scene.until("a", "failed once", SOON, failed).await?;
    let failure = run.status.and_then(|status| status.failure).context("no failure")?;
    ensure!((failure.class, failure.reason.as_str()) == (FailureClass::Transient, reason::TOOL_UNAVAILABLE), "{failure:?}");
    holds(&failure.message, "503")?;
    releases.open.heal(&release);
    scene.ends_within("a", RunResult::Applied, LATER).await.map(drop)
}

async fn credentials(scene: Scene) -> Result<()> {
    run(&scene, "a", json!({".terraform-version": "1.8.5\n"}), json!({})).await?;
    let status = scene.fails("a", FailureClass::Configuration, reason::TOOL_NOT_FOUND, SOON).await?;
    holds(&status.failure.context("no failure")?.message, "no Secret releases in this namespace")?;
    scene.kubectl(&["create", "secret", "generic", SECRET, "--from-literal=username=reader", "--from-literal=password=wrong"])?;
    run(&scene, "b", json!({".terraform-version": "1.8.5\n"}), json!({})).await?;
    let status = scene.fails("b", FailureClass::Configuration, reason::TOOL_NOT_FOUND, SOON).await?;
    holds(&status.failure.context("no failure")?.message, "401")?;
    scene.kubectl(&["delete", "secret", SECRET])?;
    secret(&scene)?;
    run(&scene, "c", json!({".terraform-version": "1.8.5\n"}), json!({})).await?;
    scene.ends("c", RunResult::Applied).await?;
    let (log, described) = (scene.log("c").await?, scene.kubectl(&["describe", "tfrun", "c"])?);
    ensure!(!log.contains(CREDENTIALS.1) && !described.contains(CREDENTIALS.1));
    Ok(())
}

async fn shared(scene: Scene) -> Result<()> {
    let releases = &scene.suite.releases;
    let release = releases.publish("1.7.5")?;
    scene.kubectl(&["label", "namespace", &scene.namespace, "pod-security.kubernetes.io/enforce=privileged", "--overwrite"])?;
    let names = ["a", "b", "c", "d"];
    for name in names {
        run(&scene, name, json!({".opentofu-version": "1.7.5\n"}), json!({})).await?;
    }
    let mut installed = 0;
    for name in names {
        scene.ends_within(name, RunResult::Applied, LATER).await?;
        installed += scene.log(name).await?.matches("OpenTofu 1.7.5 is installed").count();
    }
    ensure!(releases.open.downloads(&release) == 1 && installed == 1, "{} downloads", releases.open.downloads(&release));
    let kept = releases.cache.join("tools/opentofu/1.7.5");
    ensure!(kept.is_dir(), "{} is not there", kept.display());
    // Code of a stack can read but not write there.
    let command = "for way in 'touch /pawl/cache/made' 'rm -rf /pawl/cache/tools/opentofu' 'mv /pawl/cache/tools /pawl/cache/other'; do \
                   sh -c \\\"$way\\\" 2>/dev/null && echo \\\"could $way\\\"; done; ls /pawl/cache/tools/opentofu/1.7.5 >/dev/null && echo could-read";
    let main =
        format!("resource \"terraform_data\" \"a\" {{\n  provisioner \"local-exec\" {{\n    command = \"{command}\"\n  }}\n}}\n");
    run(&scene, "code", json!({"main.tf": main, ".opentofu-version": "1.10.6\n"}), json!({})).await?;
    scene.ends_within("code", RunResult::Applied, LATER).await?;
    let log = scene.log("code").await?;
    holds(&log, "could-read")?;
    ensure!(!log.contains("could touch") && !log.contains("could rm") && !log.contains("could mv"), "{log}");
    ensure!(kept.is_dir() && !releases.cache.join("made").exists());
    // The agent can write there, but must not do so through a link that replaces one of its files.
    let links = "for name in log/plan log/apply journal/journal plan/tfplan plan/text plan/json bundle home/pawl.tfrc home/pawl.new; do \
                 rm -rf /pawl/work/$name; mkdir -p $(dirname /pawl/work/$name); ln -s /pawl/cache/planted /pawl/work/$name; done 2> /dev/null; true";
    let steps = json!([{"exec": ["sh", "-c", links]}]);
    let script = json!({"name": format!("{}/links", scene.namespace), "ledger": scene.suite.state.ledger_url(), "resources": 1,
        "commands": {"plan": steps, "show": steps, "apply": steps}});
    let files = json!({".opentofu-version": "1.7.5\n", "pawl-script.json": script.to_string()});
    run(&scene, "links", files, json!({})).await?;
    scene.ends_within("links", RunResult::Applied, LATER).await?;
    ensure!(scene.starts("links", "apply") == 1, "it was not the scripted tool");
    ensure!(std::fs::symlink_metadata(releases.cache.join("planted")).is_err(), "the agent followed a link into the cache");
    Ok(())
}
