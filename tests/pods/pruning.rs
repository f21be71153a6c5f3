//! Finished runs are deleted after their TTL, with all objects created for them; an Indeterminate run stays.

use anyhow::{Result, ensure};
use crds::RunResult;
use harness::wait;
use ledger::what;
use serde_json::json;

use crate::suite::{LATER, SOON, Scene, TIMEOUT, Test, gated};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("pruning::a_finished_run_goes_after_its_time", finished),
        Test::new("pruning::an_indeterminate_run_stays", indeterminate),
        Test::new("pruning::a_finished_run_keeps_its_pod_for_its_logs", keeps),
    ]
}

async fn finished(scene: Scene) -> Result<()> {
    // Long enough to observe its end.
    scene.scripted("a", json!({"resources": 0}), json!({"ttlSecondsAfterFinished": 15})).await?;
    scene.ends("a", RunResult::NoChanges).await?;
    scene.gone("a").await
}

async fn indeterminate(scene: Scene) -> Result<()> {
    let spec = json!({"approval": {"mode": "Automatic"}, "ttlSecondsAfterFinished": 1});
    scene.scripted("a", json!({"resources": gated(2)}), spec).await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    Scene::kill(&scene.pod("a").await?, "runner-agent")?;
    scene.ends_within("a", RunResult::Indeterminate, LATER).await?;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    ensure!(scene.runs().get_opt("a").await?.is_some_and(|r| r.metadata.deletion_timestamp.is_none()), "it was pruned");
    Ok(())
}

async fn keeps(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({"resources": 1}), json!({"approval": {"mode": "Automatic"}})).await?;
    scene.ends("a", RunResult::Applied).await?;
    scene.kubectl(&["wait", "--for=condition=Finished", TIMEOUT, "tfrun/a"])?;
    let pod = scene.pod_names("a").await?.remove(0);
    // Its accounts and rights are deleted; the pod and its log are not.
    let rights = async || {
        let rest = scene.kubectl(&["get", "serviceaccounts,roles,rolebindings", "-l", "pawl.run/run=a", "-o", "name"])?;
        Ok(if rest.trim().is_empty() { Ok(()) } else { Err(rest) })
    };
    wait::until("no rights outlive the attempt", SOON, rights).await?;
    ensure!(!scene.kubectl(&["logs", &pod])?.is_empty());
    Ok(())
}
