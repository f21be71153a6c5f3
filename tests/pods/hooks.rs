//! Hooks in real pods: those that the guide shows, and hooks after an apply whose pod dies. Module `inputs` tests the hooks of a
//! plan that another pod applies.

use anyhow::{Context, Result, ensure};
use crds::{RunResult, TerraformRunStatus};
use harness::wait;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use crate::{
    guide::Reader,
    suite::{LATER, SOON, Scene, Test, holds},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("hooks::hooks_of_the_guide_run_as_described", guided),
        Test::new(
            "hooks::pod_that_dies_in_a_hook_after_its_apply_has_applied",
            died,
        ),
    ]
}

/// Creates the run of a block and returns its name.
fn create(scene: &Scene, name: &str) -> Result<String> {
    let reader = Reader::new(scene)?;
    let file = reader.dir.path().join("run.yaml");
    std::fs::write(&file, reader.here(name)?)?;
    let made = scene.kubectl(&["create", "-o", "name", "-f", &file.display().to_string()])?;
    Ok(made
        .trim()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned())
}

async fn guided(scene: Scene) -> Result<()> {
    for name in ["make scripts", "make teardown"] {
        let reader = Reader::new(&scene)?;
        reader.paste(&reader.here(name)?)?;
    }
    let runs = [
        ("hooks.yaml", vec!["/hooked: Applied"]),
        ("tasks.yaml", vec!["postapply of from-tasks: Applied"]),
        // Values handed over are masked even if they are not secret.
        (
            "scripts.yaml",
            vec![
                "made in (sensitive value)",
                "smoke test in (sensitive value)",
            ],
        ),
    ];
    let mut names = Vec::new();
    for (file, lines) in runs {
        names.push((create(&scene, file)?, lines));
    }
    for (name, lines) in names {
        let status = scene.ends_within(&name, RunResult::Applied, LATER).await?;
        ensure!(
            status.failed_hook.is_none()
                && status
                    .steps
                    .iter()
                    .any(|step| step.name.starts_with("hook ")),
            "{status:?}"
        );
        let log = scene.log(&name).await?;
        lines.into_iter().try_for_each(|line| holds(&log, line))?;
    }
    let name = create(&scene, "teardown.yaml")?;
    scene
        .ends_within(&name, RunResult::Destroyed, LATER)
        .await?;
    holds(
        &scene.log(&name).await?,
        "Destroyed: the name is free again",
    )
}

/// A run with an endless hook after the apply.
pub(crate) async fn endless(scene: &Scene, name: &str) -> Result<()> {
    let hooks = json!([{"name": "endless", "when": "AfterApply", "inline": "exec sleep 100000"}]);
    scene
        .scripted(
            name,
            json!({"resources": 1}),
            json!({"hooks": hooks, "approval": {"mode": "Automatic"}}),
        )
        .await?;
    Ok(())
}

/// Waits until its hook runs, and returns its pod. By then the datastore has the result, and the run's status does not.
pub(crate) async fn in_its_hook(scene: &Scene, name: &str) -> Result<Pod> {
    let runs = |s: &TerraformRunStatus| {
        s.message
            .as_ref()
            .is_some_and(|message| message.ends_with("the hooks after it run"))
    };
    scene.until(name, "in its hook", LATER, runs).await?;
    // The message precedes the hook, so check for its process.
    let look = async || {
        let pod = scene.pod(name).await?;
        Ok(Scene::processes(&pod)?
            .iter()
            .any(|(_, line)| line.contains("sleep 100000"))
            .then_some(pod))
    };
    wait::until("the hook runs", SOON, look).await
}

/// Force-deletes a pod without the finalizer that keeps it until its end is read.
pub(crate) fn take_away(scene: &Scene, pod: &Pod) -> Result<()> {
    let pod = pod.name_any();
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    scene.kubectl(&["patch", "pod", &pod, "--type=merge", "-p", &free])?;
    scene.kubectl(&[
        "delete",
        "pod",
        &pod,
        "--force",
        "--grace-period=0",
        "--wait=false",
    ])?;
    Ok(())
}

/// Either the agent is killed, and its termination message is in the pod's status; or the pod is deleted with that message, and only the
/// datastore has the result.
async fn died(scene: Scene) -> Result<()> {
    for name in ["killed", "deleted"] {
        endless(&scene, name).await?;
    }
    Scene::kill(&in_its_hook(&scene, "killed").await?, "runner-agent")?;
    take_away(&scene, &in_its_hook(&scene, "deleted").await?)?;
    for name in ["killed", "deleted"] {
        let status = scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(
            scene.starts(name, "apply") == 1 && status.failure.is_none(),
            "{status:?}"
        );
        ensure!(status.attempt.context("no attempt")?.number == 1);
    }
    ensure!(
        scene.pod_names("deleted").await?.is_empty(),
        "the pod is still there"
    );
    Ok(())
}
