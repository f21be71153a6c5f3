//! Killed pods, agents and controllers: at most one apply of a plan, and a true result.

use anyhow::{Context, Result, ensure};
use crds::{Changed, Phase, RunResult, names, reason};
use kube::ResourceExt;
use ledger::forgotten;
use serde_json::json;
use servers::git::Failure;

use crate::recovery::{accounted, until_created};
use crate::suite::{LATER, OF_CONTROLLER, Scene, Test, automatic, gate, gated, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "kills::pod_force_deleted_in_setup_is_replaced",
            deleted_in_setup,
        ),
        Test::new(
            "kills::pod_force_deleted_in_apply_is_not_replaced",
            deleted_in_apply,
        ),
        Test::new(
            "kills::agent_killed_in_apply_is_indeterminate",
            agent_killed,
        ),
        Test::new(
            "kills::pod_out_of_memory_in_apply_is_indeterminate",
            out_of_memory,
        ),
        Test::new(
            "kills::second_process_of_the_pod_cannot_apply",
            second_process,
        ),
    ]
}

/// Tests that kill components that all runs share.
pub(crate) fn alone() -> Vec<Test> {
    vec![Test::new(
        "kills::runs_survive_a_controller_killed_at_any_time",
        controller,
    )]
}

/// More resources than any apply makes before it is cut off.
const MANY: u32 = 150;

async fn deleted_in_setup(scene: Scene) -> Result<()> {
    let (url, _) = scene.repository(
        "stack",
        &[("main.tf", "resource \"terraform_data\" \"a\" {}\n")],
    )?;
    let repository = scene.path("stack");
    scene.suite.git.fail(&repository, Failure::Hang);
    let spec = json!({"source": {"git": {"url": url, "revision": "main"}}, "approval": {"mode": "Automatic"}});
    scene.create("a", spec).await?;
    scene.phase("a", Phase::Setup).await?;
    scene.delete_by_force("a").await?;
    // The process may live a moment longer, and must not succeed meanwhile.
    scene
        .until("a", "at its second attempt", LATER, |s| {
            s.attempt.as_ref().is_some_and(|a| a.number == 2)
        })
        .await?;
    scene.suite.git.fail(&repository, Failure::None);
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(status.attempt.context("no attempt")?.number == 2);
    Ok(())
}

/// Objects that were created and are not in the state. All must be in the journal, except the last `late` ones.
fn journaled(scene: &Scene, name: &str, late: usize) -> Result<Vec<String>> {
    let state = scene.state(name).unwrap_or_default();
    let (lost, journal) = (
        forgotten(&scene.ledger(name), &state),
        scene.read(&format!("terraformruns/{name}/journal"))?,
    );
    for object in lost.iter().take(lost.len().saturating_sub(late)) {
        let id = object
            .rsplit_once("[id=")
            .and_then(|(_, id)| id.strip_suffix(']'))
            .context("no ID")?;
        holds(&journal, id)?;
    }
    Ok(lost)
}

async fn deleted_in_apply(scene: Scene) -> Result<()> {
    scene
        .scripted(
            "a",
            json!({"resources": MANY, "apply_ms": 1500}),
            automatic(),
        )
        .await?;
    until_created(&scene, "a", 2).await?;
    scene.delete_by_force("a").await?;
    let status = scene.ended("a").await?;
    // The kubelet gives even this pod a moment, in which the agent may have reported the result.
    ensure!(
        matches!(
            status.result,
            Some(RunResult::Indeterminate | RunResult::Failed)
        ),
        "{:?}",
        status.result
    );
    let failure = status.failure.context("no failure")?;
    ensure!(failure.changes != Changed::None, "{failure:?}");
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    ensure!(
        scene.starts("a", "apply") == 1
            && scene
                .status("a")
                .await?
                .attempt
                .context("no attempt")?
                .number
                == 1
    );
    // Objects created while the last messages of the process were in flight.
    journaled(&scene, "a", 2)?;
    Ok(())
}

async fn agent_killed(scene: Scene) -> Result<()> {
    // Its time passes at once; a run whose end is unknown is kept.
    let spec = json!({"approval": {"mode": "Automatic"}, "ttlSecondsAfterFinished": 1});
    scene
        .scripted("a", json!({"resources": gated(4)}), spec)
        .await?;
    // The journal has these before the end of the apply. `cargo bench-run --only journal` measures the delay.
    until_created(&scene, "a", 3).await?;
    let pod = scene.pod("a").await?;
    Scene::kill(&pod, "runner-agent")?;
    let status = scene
        .ends_within("a", RunResult::Indeterminate, LATER)
        .await?;
    let made = journaled(&scene, "a", 0)?;
    ensure!(made.len() == 3, "{made:?}");
    let failure = status.failure.context("no failure")?;
    ensure!(
        failure.changes == Changed::Unknown && failure.reason == reason::APPLY_UNCONFIRMED,
        "{failure:?}"
    );
    // The message names the possible lock holder: the pod's hostname.
    holds(
        &format!("{:?} {}", status.message, failure.message),
        &pod.name_any(),
    )?;
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    ensure!(
        scene.starts("a", "apply") == 1 && scene.pod_names("a").await?.len() == 1,
        "an unconfirmed apply was followed by another attempt"
    );
    ensure!(
        scene.get("a").await?.metadata.deletion_timestamp.is_none(),
        "it was pruned"
    );
    let said = accounted(&scene, "a").await?;
    ensure!(
        !said.compared && said.uncertain.len() >= 3 && said.wants_recovery(),
        "{said:?}"
    );
    holds(&said.summary, "a recovery run reads it")
}

/// The OOM killer ends the agent, and with it the whole container.
async fn out_of_memory(scene: Scene) -> Result<()> {
    let takes = json!({"address": "terraform_data.b", "steps": [gate(), {"allocate_mb": 400}]});
    let mut spec = automatic();
    // With requests equal to its limits the kernel spares all its processes; the test makes the first one the preferred victim.
    let all = json!({"cpu": "500m", "memory": "128Mi"});
    spec["runner"] = json!({"resources": {"requests": all, "limits": all}});
    scene
        .scripted(
            "a",
            json!({"resources": [{"address": "terraform_data.a"}, takes]}),
            spec,
        )
        .await?;
    until_created(&scene, "a", 1).await?;
    for (pid, line) in Scene::processes(&scene.pod("a").await?)? {
        if line.contains("runner-agent run") {
            std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000")?;
        }
    }
    scene.open("a").await?;
    let status = scene
        .ends_within("a", RunResult::Indeterminate, LATER)
        .await?;
    holds(
        &status.failure.context("no failure")?.message,
        "ran out of memory; raise spec.runner.resources",
    )?;
    ensure!(journaled(&scene, "a", 0)?.len() == 1 && scene.starts("a", "apply") == 1);
    Ok(())
}

async fn second_process(scene: Scene) -> Result<()> {
    scene
        .scripted("a", json!({"commands": {"apply": [gate()]}}), json!({}))
        .await?;
    scene.phase("a", Phase::AwaitingApproval).await?;
    let pod = scene.pod("a").await?.name_any();
    // Runs the same program with the same token in the same pod, like a container that the kubelet starts twice.
    let second = |scene: &Scene| -> Result<String> {
        let output = scene
            .suite
            .cluster
            .kubectl_command(&[
                "-n",
                &scene.namespace,
                "exec",
                &pod,
                "--",
                "/usr/local/bin/runner-agent",
                "run",
            ])
            .output()?;
        ensure!(
            !output.status.success(),
            "a second process ended well: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    second(&scene)?;
    scene.approve("a").await?;
    scene.phase("a", Phase::Apply).await?;
    second(&scene)?;
    scene.open("a").await?;
    scene.ends("a", RunResult::Applied).await?;
    ensure!(
        scene.starts("a", "apply") == 1
            && scene.starts("a", "plan") == 1
            && scene.starts("a", "init") == 1
    );
    Ok(())
}

async fn controller(scene: Scene) -> Result<()> {
    for (i, wait) in [0_u64, 20, 60, 150, 400, 1000, 2000, 3500]
        .into_iter()
        .enumerate()
    {
        let name = format!("r{i}");
        scene
            .scripted(&name, json!({"resources": 4, "apply_ms": 500}), automatic())
            .await?;
        tokio::time::sleep(std::time::Duration::from_millis(wait)).await;
        scene.crash(OF_CONTROLLER).await?;
    }
    for i in 0..8 {
        let name = format!("r{i}");
        scene.ends_within(&name, RunResult::Applied, LATER).await?;
        ensure!(
            scene.starts(&name, "apply") == 1 && scene.pod_names(&name).await?.len() == 1,
            "{name} had more than one attempt"
        );
        let run = scene.get(&name).await?;
        ensure!(run.finalizers().iter().any(|f| f == names::RUN_FINALIZER));
    }
    Ok(())
}
