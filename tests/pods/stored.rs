//! A plan outlives its pod: it can be approved at any time, and exactly the planned bytes are applied.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, Phase, RunResult, TerraformRun, TerraformRunStatus, names, reason};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::suite::{LATER, Scene, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "stored::plan_approved_after_the_hold_is_restored",
            after_the_hold,
        ),
        Test::new(
            "stored::planned_bytes_are_applied_after_the_source_moved",
            planned_bytes,
        ),
        Test::new(
            "stored::newer_run_of_the_state_supersedes_a_waiting_plan",
            superseded,
        ),
        Test::new("stored::missing_bundle_is_refused", missing),
        Test::new("stored::changed_secret_makes_the_plan_stale", rotated),
    ]
}

/// Waits until the run waits without a pod.
pub(crate) async fn released(scene: &Scene, name: &str) -> Result<TerraformRunStatus> {
    let waits = |s: &TerraformRunStatus| {
        s.is_terminal()
            || s.phase == Some(Phase::AwaitingApproval)
                && s.attempt.as_ref().is_some_and(|a| !a.open)
    };
    let status = scene
        .until(name, "waiting without a pod", LATER, waits)
        .await?;
    ensure!(
        status.phase == Some(Phase::AwaitingApproval),
        "{name} ended: {:?} {:?}",
        status.result,
        status.failure
    );
    ensure!(
        status
            .plan
            .as_ref()
            .is_some_and(|plan| plan.bundle.is_some()),
        "{name} has no bundle: {:?}",
        status.plan
    );
    Ok(status)
}

/// Runs the command of the status.
pub(crate) fn approve_waiting(scene: &Scene, status: &TerraformRunStatus) -> Result<()> {
    scene
        .paste(status.next_step.as_deref().context("no next step")?)
        .map(drop)
}

fn hold(span: &str) -> Value {
    json!({"approval": {"holdFor": span}})
}

async fn after_the_hold(scene: Scene) -> Result<()> {
    scene
        .scripted("a", json!({"resources": 2}), hold("1s"))
        .await?;
    let waiting = released(&scene, "a").await?;
    holds(
        waiting.message.as_deref().unwrap_or_default(),
        "no pod is held",
    )?;
    ensure!(
        waiting.failure.is_none() && waiting.result.is_none(),
        "{waiting:?}"
    );
    approve_waiting(&scene, &waiting)?;
    let status = scene.ends("a", RunResult::Applied).await?;
    ensure!(
        scene.starts("a", "plan") == 1
            && scene.starts("a", "init") == 2
            && scene.starts("a", "apply") == 1
    );
    let attempt = status.attempt.context("no attempt")?;
    ensure!(
        attempt.number == 2 && attempt.restores == Some(1) && attempt.tries == 1,
        "{attempt:?}"
    );
    let (plan, claim) = (
        status.plan.context("no plan")?,
        status.claim.context("no claim")?,
    );
    ensure!(plan.attempt == 1 && claim.attempt == 2 && claim.checksum == plan.checksum);
    ensure!(
        Some(plan.checksum) == waiting.plan.map(|plan| plan.checksum),
        "the plan changed"
    );
    ensure!(scene.pod_names("a").await?.len() == 2);
    Ok(())
}

const MODULE: &str = r#"
resource "terraform_data" "words" {
  provisioner "local-exec" {
    command = "sh ${path.module}/words.sh"
  }
}
"#;

async fn planned_bytes(scene: Scene) -> Result<()> {
    let module = scene.suite.git.create(&scene.path("module"))?;
    module.commit(
        "main",
        &[
            ("main.tf", MODULE),
            ("words.sh", "echo module as planned\n"),
        ],
    )?;
    let module_url = scene.suite.git.url(&scene.path("module"));
    let main = format!(
        "module \"m\" {{\n  source = \"git::{module_url}?ref=main\"\n}}\n\
         resource \"terraform_data\" \"local\" {{\n  provisioner \"local-exec\" {{\n    command = \"sh ./local.sh\"\n  }}\n}}\n"
    );
    let stack = scene.suite.git.create(&scene.path("stack"))?;
    stack.commit(
        "main",
        &[("main.tf", &main), ("local.sh", "echo script as planned\n")],
    )?;
    let url = scene.suite.git.url(&scene.path("stack"));
    let spec = json!({"source": {"git": {"url": url, "revision": "main"}}, "tool": {"name": "OpenTofu", "version": "1.10.6"},
        "approval": {"holdFor": "1s"}});
    scene.create("a", spec).await?;
    let waiting = released(&scene, "a").await?;
    module.commit(
        "main",
        &[
            ("main.tf", MODULE),
            ("words.sh", "echo module that moved\n"),
        ],
    )?;
    stack.commit(
        "main",
        &[("main.tf", &main), ("local.sh", "echo script that moved\n")],
    )?;
    approve_waiting(&scene, &waiting)?;
    scene.ends_within("a", RunResult::Applied, LATER).await?;
    let log = scene.log("a").await?;
    holds(&log, "module as planned")?;
    holds(&log, "script as planned")?;
    ensure!(!log.contains("moved"), "{log}");
    Ok(())
}

/// Runs of one backend, whatever their names. A plan-only run and a run of another state supersede nothing.
async fn superseded(scene: Scene) -> Result<()> {
    let spec = |operation: &str, hold: &str| json!({"backend": scene.backend("shared"), "operation": operation, "approval": {"holdFor": hold}});
    scene
        .scripted("held", json!({}), spec("Apply", "1h"))
        .await?;
    scene.phase("held", Phase::AwaitingApproval).await?;
    // Creation times are in whole seconds.
    let later = || tokio::time::sleep(std::time::Duration::from_millis(1100));
    later().await;
    scene.scripted("other", json!({}), json!({})).await?;
    scene
        .scripted("planned", json!({}), spec("Plan", "1h"))
        .await?;
    let status = scene.ends("planned", RunResult::Planned).await?;
    ensure!(
        scene.starts("planned", "apply") == 0 && status.claim.is_none() && status.plan.is_some(),
        "{status:?}"
    );
    scene.phase("other", Phase::AwaitingApproval).await?;
    ensure!(
        scene.status("held").await?.phase == Some(Phase::AwaitingApproval),
        "neither takes its place"
    );
    later().await;
    scene
        .scripted("newer", json!({}), spec("Apply", "1s"))
        .await?;
    let status = scene.ends("held", RunResult::Superseded).await?;
    let said = "superseded by newer, a newer run of the same workspace; nothing was applied";
    holds(status.message.as_deref().unwrap_or_default(), said)?;
    ensure!(status.claim.is_none() && scene.starts("held", "apply") == 0);
    released(&scene, "newer").await?;
    later().await;
    scene
        .scripted("newest", json!({}), spec("Apply", "1h"))
        .await?;
    let status = scene.ends("newer", RunResult::Superseded).await?;
    holds(status.message.as_deref().unwrap_or_default(), "newest")?;
    scene.approved("newest").await?;
    ensure!(scene.status("other").await?.phase == Some(Phase::AwaitingApproval));
    scene
        .annotate("other", &[(names::CANCEL, Some("done"))])
        .await
        .map(drop)
}

/// The files of a run's bundle in the store.
fn bundle_files(scene: &Scene, run: &TerraformRun) -> Result<Vec<std::path::PathBuf>> {
    let found = scene
        .suite
        .stored(&[&run.uid().unwrap_or_default(), "bundle"])?;
    ensure!(
        !found.is_empty(),
        "the store has no bundle of {}",
        run.name_any()
    );
    Ok(found)
}

/// Approves, and checks that the run is refused and nothing was applied.
async fn refused(scene: &Scene, name: &str, why: &str) -> Result<()> {
    let waiting = scene.status(name).await?;
    approve_waiting(scene, &waiting)?;
    let status = scene
        .fails(name, FailureClass::Integrity, why, LATER)
        .await?;
    ensure!(
        status.claim.is_none() && scene.starts(name, "apply") == 0,
        "{status:?}"
    );
    Ok(())
}

async fn missing(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({}), hold("0s")).await?;
    released(&scene, "a").await?;
    for file in bundle_files(&scene, &scene.get("a").await?)? {
        std::fs::remove_file(file)?;
    }
    refused(&scene, "a", reason::STORED_PLAN_MISSING).await
}

async fn rotated(scene: Scene) -> Result<()> {
    scene.secret("secret", &[("v", "before")])?;
    scene.config_map("configmap", &[("v", "before")])?;
    let spec = |allowed: bool| {
        json!({"approval": {"holdFor": "0s", "allowRotation": allowed},
            "variables": [{"name": "password", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "v"}}}],
            "files": [{"path": "conf/token", "in": "Source", "secretKeyRef": {"name": "secret", "key": "v"}}],
            "env": [{"name": "REGION", "valueFrom": {"configMapKeyRef": {"name": "configmap", "key": "v"}}}]})
    };
    for (name, allowed) in [("same", false), ("stale", false), ("allowed", true)] {
        scene.scripted(name, json!({}), spec(allowed)).await?;
        released(&scene, name).await?;
    }
    approve_waiting(&scene, &scene.status("same").await?)?;
    scene.ends_within("same", RunResult::Applied, LATER).await?;
    let patch = json!({"stringData": {"v": "after"}}).to_string();
    scene.kubectl(&["patch", "secret", "secret", "--type=merge", "-p", &patch])?;
    for name in ["stale", "allowed"] {
        approve_waiting(&scene, &scene.status(name).await?)?;
    }
    let status = scene
        .fails(
            "stale",
            FailureClass::StalePlan,
            reason::INPUTS_CHANGED,
            LATER,
        )
        .await?;
    let message = status.failure.context("no failure")?.message;
    for part in [
        "file Source conf/token",
        "variable password",
        " changed since the plan",
    ] {
        holds(&message, part)?;
    }
    ensure!(
        !message.contains("REGION") && !message.contains("before") && !message.contains("after"),
        "{message}"
    );
    ensure!(status.claim.is_none() && scene.starts("stale", "apply") == 0);
    scene
        .ends_within("allowed", RunResult::Applied, LATER)
        .await
        .map(drop)
}
