//! Deletes a run: before the claim this cancels it, after the claim it waits for the end of the apply.

use anyhow::{Context, Result, ensure};
use crds::Phase;
use harness::wait;
use kube::{ResourceExt, api::PostParams};
use ledger::what;
use serde_json::json;

use crate::suite::{LATER, SOON, Scene, TIMEOUT, Test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("deletion::before_the_claim_it_cancels", before_the_claim),
        Test::new("deletion::before_the_pod_starts", before_the_pod),
        Test::new("deletion::a_pod_that_comes_late_and_never_starts_goes", late),
        Test::new("deletion::in_mid_apply_in_the_background", background),
        Test::new("deletion::in_mid_apply_in_the_foreground", foreground),
        Test::new("deletion::in_mid_apply_as_orphan", orphan),
        Test::new("deletion::of_the_namespace_interrupts", namespace),
    ]
}

async fn before_the_claim(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({}), json!({})).await?;
    scene.phase("a", Phase::AwaitingApproval).await?;
    scene.kubectl(&["delete", "tfrun", "a", "--wait=false"])?;
    scene.gone("a").await?;
    ensure!(scene.starts("a", "apply") == 0);
    Ok(())
}

async fn before_the_pod(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({}), json!({"runner": {"nodeSelector": {"no": "such-node"}}})).await?;
    scene.until("a", "attempted", LATER, |r| r.status.as_ref().is_some_and(|s| s.attempt.is_some())).await?;
    scene.kubectl(&["delete", "tfrun", "a", "--wait=false"])?;
    scene.gone("a").await
}

/// The creation of a pod lands after the cleanup of its run, and no node runs it.
async fn late(scene: Scene) -> Result<()> {
    // Use an existing account: the attempt's own is deleted by then, and the API server refuses a pod whose account is missing.
    let spec = json!({"runner": {"nodeSelector": {"no": "such-node"}, "serviceAccountName": "default"}});
    scene.scripted("a", json!({}), spec).await?;
    scene.until("a", "attempted", LATER, |r| r.status.as_ref().is_some_and(|s| s.attempt.is_some())).await?;
    let mut pod = wait::until("it has a pod", SOON, async || Ok(scene.pod("a").await)).await?;
    scene.kubectl(&["delete", "tfrun", "a", "--wait=false"])?;
    scene.gone("a").await?;
    let meta = &mut pod.metadata;
    (meta.uid, meta.resource_version, meta.creation_timestamp, meta.managed_fields) = (None, None, None, None);
    pod.status = None;
    let pods = scene.pods();
    pods.create(&PostParams::default(), &pod).await?;
    wait::gone(&pods, &pod.name_any(), SOON).await
}

async fn in_mid_apply(scene: Scene, cascade: &str) -> Result<()> {
    scene.scripted("a", json!({"resources": 4, "apply_ms": 1000}), json!({"approval": {"mode": "Automatic"}})).await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    scene.kubectl(&["delete", "tfrun", "a", "--wait=false", &format!("--cascade={cascade}")])?;
    wait::gone(&scene.runs(), "a", LATER).await?;
    // Checked as soon as it is gone.
    let ended = ledger::select(&scene.ledger("a"), what::COMMAND_END, Some("apply")).len();
    ensure!(ended == 1, "the run went before its apply had ended");
    scene.gone("a").await?;
    let entries = scene.ledger("a");
    ensure!(ledger::select(&entries, what::SIGNAL, None).is_empty(), "the deletion interrupted the apply");
    ensure!(ledger::select(&entries, what::RESOURCE, None).len() == 4, "the apply did not come to its end");
    let state = scene.suite.state.current(&format!("{}/a", scene.namespace)).context("no state")?;
    ensure!(ledger::forgotten(&entries, &state).is_empty());
    ensure!(scene.suite.state.lock(&format!("{}/a", scene.namespace)).is_none(), "the lock is still held");
    Ok(())
}

async fn background(scene: Scene) -> Result<()> {
    in_mid_apply(scene, "background").await
}

async fn foreground(scene: Scene) -> Result<()> {
    in_mid_apply(scene, "foreground").await
}

async fn orphan(scene: Scene) -> Result<()> {
    in_mid_apply(scene, "orphan").await
}

async fn namespace(scene: Scene) -> Result<()> {
    // Far more than can be created before the interrupt.
    scene.scripted("a", json!({"resources": 90, "apply_ms": 1000}), json!({"approval": {"mode": "Automatic"}})).await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    // The namespace controller retries after half the grace period of a remaining pod.
    scene.suite.cluster.kubectl(&["delete", "namespace", &scene.namespace, "--wait=true", TIMEOUT])?;
    let entries = scene.ledger("a");
    ensure!(ledger::select(&entries, what::SIGNAL, None).len() == 1, "exactly one signal reaches the tool");
    let state = scene.suite.state.current(&format!("{}/a", scene.namespace)).context("no state was written")?;
    ensure!(ledger::forgotten(&entries, &state).is_empty());
    Ok(())
}
