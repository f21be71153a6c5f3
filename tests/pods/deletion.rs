//! Deletes a run: before the claim this cancels it, after the claim it waits for the end of the apply.

use anyhow::{Result, ensure};
use crds::Phase;
use harness::wait;
use kube::{ResourceExt, api::PostParams};
use ledger::what;
use serde_json::json;

use crate::suite::{LATER, SOON, Scene, TIMEOUT, Test, automatic, gated};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "deletion::deleted_applies_end_and_a_waiting_plan_goes",
            deleted,
        ),
        Test::new("deletion::late_pod_of_a_deleted_run_is_deleted", late),
        Test::new(
            "deletion::deleted_namespace_interrupts_the_apply_once",
            namespace,
        ),
    ]
}

/// Three runs in mid-apply, each with another propagation policy, and one that waits for an approval.
async fn deleted(scene: Scene) -> Result<()> {
    let cascades = ["background", "foreground", "orphan"];
    scene.scripted("waits", json!({}), json!({})).await?;
    for name in cascades {
        scene
            .scripted(name, json!({"resources": gated(4)}), automatic())
            .await?;
    }
    for name in cascades {
        scene.until_ledger(name, what::RESOURCE, None).await?;
        scene.kubectl(&[
            "delete",
            "tfrun",
            name,
            "--wait=false",
            &format!("--cascade={name}"),
        ])?;
    }
    scene.phase("waits", Phase::AwaitingApproval).await?;
    scene.kubectl(&["delete", "tfrun", "waits", "--wait=false"])?;
    scene.gone("waits").await?;
    ensure!(scene.starts("waits", "apply") == 0);
    for name in cascades {
        ensure!(
            scene.get(name).await?.metadata.deletion_timestamp.is_some(),
            "{name} is not being deleted"
        );
        scene.open(name).await?;
        wait::gone(&scene.runs(), name, LATER).await?;
        // Checked as soon as it is gone.
        let ended = ledger::select(&scene.ledger(name), what::COMMAND_END, Some("apply")).len();
        ensure!(ended == 1, "the run went before its apply had ended");
        scene.gone(name).await?;
        let entries = scene.ledger(name);
        ensure!(
            ledger::select(&entries, what::SIGNAL, None).is_empty(),
            "the deletion interrupted the apply"
        );
        ensure!(
            ledger::select(&entries, what::RESOURCE, None).len() == 4,
            "the apply did not come to its end"
        );
        scene.saved(name)?;
    }
    Ok(())
}

/// The creation of a pod lands after the cleanup of its run, and no node runs it.
async fn late(scene: Scene) -> Result<()> {
    // Use an existing account: the attempt's own is deleted by then, and the API server refuses a pod whose account is missing.
    let spec =
        json!({"runner": {"nodeSelector": {"no": "such-node"}, "serviceAccountName": "default"}});
    scene.scripted("a", json!({}), spec).await?;
    scene
        .until("a", "attempted", LATER, |s| s.attempt.is_some())
        .await?;
    let mut pod = wait::until("it has a pod", SOON, async || Ok(scene.pod("a").await)).await?;
    scene.kubectl(&["delete", "tfrun", "a", "--wait=false"])?;
    scene.gone("a").await?;
    let meta = &mut pod.metadata;
    (
        meta.uid,
        meta.resource_version,
        meta.creation_timestamp,
        meta.managed_fields,
    ) = (None, None, None, None);
    pod.status = None;
    let pods = scene.pods();
    pods.create(&PostParams::default(), &pod).await?;
    wait::gone(&pods, &pod.name_any(), SOON).await
}

async fn namespace(scene: Scene) -> Result<()> {
    // Far more than can be created before the interrupt.
    scene
        .scripted("a", json!({"resources": 90, "apply_ms": 1000}), automatic())
        .await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    // The namespace controller retries after half the grace period of a remaining pod.
    scene.suite.cluster.kubectl(&[
        "delete",
        "namespace",
        &scene.namespace,
        "--wait=true",
        TIMEOUT,
    ])?;
    let entries = scene.ledger("a");
    ensure!(
        ledger::select(&entries, what::SIGNAL, None).len() == 1,
        "exactly one signal reaches the tool"
    );
    let state = scene.state("a")?;
    ensure!(ledger::forgotten(&entries, &state).is_empty());
    Ok(())
}
