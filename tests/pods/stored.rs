//! A plan outlives its pod: it can be approved at any time, and exactly the planned bytes are applied.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, Phase, RunResult, TerraformRun, TerraformRunStatus, names, reason};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::suite::{LATER, SOON, Scene, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("stored::approved_after_the_hold", after_the_hold),
        Test::new("stored::approved_after_the_pod_was_deleted", after_deletion),
        Test::new("stored::real_opentofu_applies_the_planned_bytes_whatever_moved", planned_bytes),
        Test::new("stored::what_code_left_in_its_directory_applies_within_the_hold_and_after_it", left_behind),
        Test::new("stored::expired_without_a_pod", expiry),
        Test::new("stored::a_newer_run_supersedes", supersession),
        Test::new("stored::a_newer_run_leaves_what_is_approved_and_other_workspaces", not_superseded),
        Test::new("stored::withdrawn_while_the_new_pod_starts", withdrawal),
        Test::new("stored::denied_and_cancelled_without_a_pod", stopped),
        Test::new("stored::a_plan_that_is_gone_is_refused", missing),
        Test::new("stored::a_secret_that_changed_makes_the_plan_stale", rotated),
    ]
}

/// Waits until the run waits without a pod.
pub(crate) async fn released(scene: &Scene, name: &str) -> Result<TerraformRunStatus> {
    let waits = |run: &TerraformRun| {
        run.status.as_ref().is_some_and(|s| {
            s.is_terminal() || s.phase == Some(Phase::AwaitingApproval) && s.attempt.as_ref().is_some_and(|a| !a.open)
        })
    };
    let status = scene.until(name, "waiting without a pod", LATER, waits).await?.status.unwrap_or_default();
    ensure!(status.phase == Some(Phase::AwaitingApproval), "{name} ended: {:?} {:?}", status.result, status.failure);
    ensure!(status.plan.as_ref().is_some_and(|plan| plan.bundle.is_some()), "{name} has no bundle: {:?}", status.plan);
    Ok(status)
}

/// Runs the command of the status.
pub(crate) fn approve_waiting(scene: &Scene, status: &TerraformRunStatus) -> Result<()> {
    scene.paste(status.next_step.as_deref().context("no next step")?).map(drop)
}

fn hold(span: &str) -> Value {
    json!({"approval": {"holdFor": span}})
}

async fn after_the_hold(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({"resources": 2}), hold("1s")).await?;
    let waiting = released(&scene, "a").await?;
    holds(waiting.message.as_deref().unwrap_or_default(), "no pod is held")?;
    ensure!(waiting.failure.is_none() && waiting.result.is_none(), "{waiting:?}");
    approve_waiting(&scene, &waiting)?;
    let status = scene.ends("a", RunResult::Applied).await?;
    ensure!(scene.starts("a", "plan") == 1 && scene.starts("a", "init") == 2 && scene.starts("a", "apply") == 1);
    let attempt = status.attempt.context("no attempt")?;
    ensure!(attempt.number == 2 && attempt.restores == Some(1) && attempt.tries == 1, "{attempt:?}");
    let (plan, claim) = (status.plan.context("no plan")?, status.claim.context("no claim")?);
    ensure!(plan.attempt == 1 && claim.attempt == 2 && claim.checksum == plan.checksum);
    ensure!(Some(plan.checksum) == waiting.plan.map(|plan| plan.checksum), "the plan changed");
    ensure!(scene.pod_names("a").await?.len() == 2);
    Ok(())
}

async fn after_deletion(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({"resources": 2}), hold("1h")).await?;
    scene.phase("a", Phase::AwaitingApproval).await?;
    let pod = scene.pod("a").await?.name_any();
    scene.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0", "--wait=false"])?;
    let waiting = released(&scene, "a").await?;
    approve_waiting(&scene, &waiting)?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(scene.starts("a", "plan") == 1 && scene.starts("a", "apply") == 1);
    ensure!(status.attempt.context("no attempt")?.tries == 1, "a pod that was deleted is no failed try");
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
    let module = scene.suite.git.create(&format!("{}/module", scene.namespace))?;
    module.commit("main", &[("main.tf", MODULE), ("words.sh", "echo module as planned\n")])?;
    let module_url = scene.suite.git.url(&format!("{}/module", scene.namespace));
    let main = format!(
        "module \"m\" {{\n  source = \"git::{module_url}?ref=main\"\n}}\n\
         resource \"terraform_data\" \"local\" {{\n  provisioner \"local-exec\" {{\n    command = \"sh ./local.sh\"\n  }}\n}}\n"
    );
    let stack = scene.suite.git.create(&format!("{}/stack", scene.namespace))?;
    stack.commit("main", &[("main.tf", &main), ("local.sh", "echo script as planned\n")])?;
    let url = scene.suite.git.url(&format!("{}/stack", scene.namespace));
    let spec = json!({"source": {"git": {"url": url, "revision": "main"}}, "tool": {"name": "OpenTofu", "version": "1.10.6"},
        "approval": {"holdFor": "1s"}});
    scene.create("a", spec).await?;
    let waiting = released(&scene, "a").await?;
    module.commit("main", &[("main.tf", MODULE), ("words.sh", "echo module that moved\n")])?;
    stack.commit("main", &[("main.tf", &main), ("local.sh", "echo script that moved\n")])?;
    approve_waiting(&scene, &waiting)?;
    scene.ends_within("a", RunResult::Applied, LATER).await?;
    let log = scene.log("a").await?;
    holds(&log, "module as planned")?;
    holds(&log, "script as planned")?;
    ensure!(!log.contains("moved"), "{log}");
    Ok(())
}

async fn left_behind(scene: Scene) -> Result<()> {
    let leave = "ln -s /bin/sh outward; ln -s a//b/./c unusual; mkdir -p closed/below; touch closed/below/file; chmod -R a-w closed; \
                 mkfifo pipe; truncate -s 1M holes";
    let script = json!({"commands": {"plan": [{"exec": ["sh", "-c", leave]}]}});
    for (name, span) in [("held", "1h"), ("kept", "0s")] {
        scene.scripted(name, script.clone(), hold(span)).await?;
    }
    let waiting = released(&scene, "kept").await?;
    approve_waiting(&scene, &waiting)?;
    let held = scene.approved("held").await?;
    let kept = scene.ends_within("kept", RunResult::Applied, LATER).await?;
    let restores = |status: &TerraformRunStatus| status.attempt.as_ref().and_then(|attempt| attempt.restores);
    ensure!((restores(&held), restores(&kept)) == (None, Some(1)), "{held:?} {kept:?}");
    Ok(())
}

async fn expiry(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({}), json!({"approval": {"holdFor": "0s", "expiresAfter": "20s"}})).await?;
    released(&scene, "a").await?;
    let status = scene.ends("a", RunResult::Expired).await?;
    ensure!(status.phase == Some(Phase::Canceled) && scene.starts("a", "apply") == 0 && scene.pod_names("a").await?.len() == 1);
    holds(status.message.as_deref().unwrap_or_default(), "nothing was applied")
}

async fn supersession(scene: Scene) -> Result<()> {
    let of_stack = |hold: &str| json!({"stack": "net", "approval": {"holdFor": hold}, "backend": scene.backend("net")});
    scene.scripted("held", json!({}), of_stack("1h")).await?;
    scene.phase("held", Phase::AwaitingApproval).await?;
    // Creation times are in whole seconds.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    scene.scripted("newer", json!({}), of_stack("1s")).await?;
    let status = scene.ends("held", RunResult::Superseded).await?;
    holds(status.message.as_deref().unwrap_or_default(), "newer")?;
    ensure!(status.claim.is_none() && scene.starts("held", "apply") == 0);
    released(&scene, "newer").await?;
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    scene.scripted("newest", json!({}), of_stack("1h")).await?;
    let status = scene.ends("newer", RunResult::Superseded).await?;
    holds(status.message.as_deref().unwrap_or_default(), "newest")?;
    scene.approved("newest").await.map(drop)
}

async fn not_superseded(scene: Scene) -> Result<()> {
    let of = |workspace: &str, operation: &str| {
        json!({"stack": "net", "workspace": workspace, "operation": operation, "backend": scene.backend(workspace),
            "approval": {"holdFor": "1h"}})
    };
    scene.scripted("a", json!({}), of("default", "Apply")).await?;
    scene.phase("a", Phase::AwaitingApproval).await?;
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    // A plan-only run, and a run of another state.
    scene.scripted("planned", json!({}), of("default", "Plan")).await?;
    scene.scripted("other", json!({}), json!({"stack": "other", "backend": scene.backend("other")})).await?;
    let status = scene.ends("planned", RunResult::Planned).await?;
    ensure!(scene.starts("planned", "apply") == 0 && status.claim.is_none() && status.plan.is_some(), "{status:?}");
    scene.phase("other", Phase::AwaitingApproval).await?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    ensure!(scene.status("a").await?.phase == Some(Phase::AwaitingApproval));
    scene.approved("a").await.map(drop)
}

async fn withdrawal(scene: Scene) -> Result<()> {
    for (round, wait) in [0_u64, 200, 600, 1200].into_iter().enumerate() {
        let name = format!("a{round}");
        scene.scripted(&name, json!({"commands": {"init": [{"sleep_ms": 300}]}}), hold("1s")).await?;
        let waiting = released(&scene, &name).await?;
        approve_waiting(&scene, &waiting)?;
        let opened =
            |r: &TerraformRun| r.status.as_ref().and_then(|s| s.attempt.as_ref()).is_some_and(|attempt| attempt.number == 2);
        scene.until(&name, "opened again", SOON, opened).await?;
        tokio::time::sleep(std::time::Duration::from_millis(wait)).await;
        scene.annotate(&name, &[(names::APPROVE, None), (names::APPROVED_BY, None)]).await?;
        let settled = |r: &TerraformRun| {
            r.status.as_ref().is_some_and(|s| {
                s.is_terminal() || s.attempt.as_ref().is_some_and(|a| !a.open && a.number >= 2) && s.approval.is_none()
            })
        };
        let status = scene.until(&name, "settled", LATER, settled).await?.status.unwrap_or_default();
        if status.result == Some(RunResult::Applied) {
            ensure!(status.claim.is_some() && scene.starts(&name, "apply") == 1);
            continue;
        }
        ensure!(status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none(), "{status:?}");
        ensure!(scene.starts(&name, "apply") == 0 && scene.starts(&name, "plan") == 1);
        approve_waiting(&scene, &status)?;
        scene.ends_within(&name, RunResult::Applied, LATER).await?;
        ensure!(scene.starts(&name, "apply") == 1 && scene.starts(&name, "plan") == 1);
    }
    Ok(())
}

async fn stopped(scene: Scene) -> Result<()> {
    for (name, annotation, result) in
        [("denied", names::DENY, RunResult::Rejected), ("cancelled", names::CANCEL, RunResult::Canceled)]
    {
        scene.scripted(name, json!({}), hold("0s")).await?;
        released(&scene, name).await?;
        scene.annotate(name, &[(annotation, Some("too dear"))]).await?;
        let status = scene.ends(name, result).await?;
        holds(status.message.as_deref().unwrap_or_default(), "too dear")?;
        ensure!(scene.pod_names(name).await?.len() == 1 && scene.starts(name, "apply") == 0);
    }
    scene.scripted("deleted", json!({}), hold("0s")).await?;
    released(&scene, "deleted").await?;
    scene.kubectl(&["delete", "tfrun", "deleted", "--wait=false"])?;
    scene.gone("deleted").await
}

/// The files of a run's bundle in the store.
fn bundle_files(scene: &Scene, run: &TerraformRun) -> Result<Vec<std::path::PathBuf>> {
    let found = scene.suite.stored(&[&run.uid().unwrap_or_default(), "bundle"])?;
    ensure!(!found.is_empty(), "the store has no bundle of {}", run.name_any());
    Ok(found)
}

/// Approves, and checks that the run is refused and nothing was applied.
async fn refused(scene: &Scene, name: &str, why: &str) -> Result<()> {
    let waiting = scene.status(name).await?;
    approve_waiting(scene, &waiting)?;
    let status = scene.fails(name, FailureClass::Integrity, why, LATER).await?;
    ensure!(status.claim.is_none() && scene.starts(name, "apply") == 0, "{status:?}");
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
    for (kind, args) in [("secret", vec!["create", "secret", "generic"]), ("configmap", vec!["create", "configmap"])] {
        let mut args = args;
        args.extend([kind, "--from-literal=v=before"]);
        scene.kubectl(&args)?;
    }
    let spec = |allowed: bool| {
        json!({"approval": {"holdFor": "0s", "allowRotation": allowed},
            "variables": [{"name": "password", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "v"}}}],
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
    let status = scene.fails("stale", FailureClass::StalePlan, reason::INPUTS_CHANGED, LATER).await?;
    let message = status.failure.context("no failure")?.message;
    holds(&message, "variable password changed since the plan")?;
    ensure!(!message.contains("REGION") && !message.contains("before") && !message.contains("after"), "{message}");
    ensure!(status.claim.is_none() && scene.starts("stale", "apply") == 0);
    scene.ends_within("allowed", RunResult::Applied, LATER).await.map(drop)
}
