//! The hold: a plan waits in its pod for an approval, which may be withdrawn, and outlives its agent.

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, names};
use kube::ResourceExt;
use serde_json::json;

use crate::suite::{LATER, SOON, Scene, Test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "approval::pod_that_planned_applies_within_the_hold",
            within_the_hold,
        ),
        Test::new(
            "approval::withdrawal_before_the_claim_waits_again",
            withdrawal,
        ),
        Test::new(
            "approval::agent_killed_in_the_hold_leaves_its_plan",
            killed_in_the_hold,
        ),
    ]
}

async fn within_the_hold(scene: Scene) -> Result<()> {
    scene
        .scripted("a", json!({"resources": 2}), json!({}))
        .await?;
    let waiting = scene.phase("a", Phase::AwaitingApproval).await?;
    let pod = scene.pod("a").await?;
    let processes = Scene::processes(&pod)?;
    let others: Vec<_> = processes
        .iter()
        .filter(|(_, line)| !line.contains("runner-agent") && !line.contains("sleep infinity"))
        .collect();
    ensure!(
        others.is_empty(),
        "while it holds, nothing else runs in the pod: {others:?}"
    );
    let status = scene.approved("a").await?;
    ensure!(
        scene.starts("a", "init") == 1
            && scene.starts("a", "plan") == 1
            && scene.starts("a", "apply") == 1
    );
    ensure!(scene.pod_names("a").await? == [pod.name_any()]);
    let (plan, approval) = (
        waiting.plan.context("no plan")?,
        status.approval.context("no approval")?,
    );
    ensure!(
        approval.checksum.as_ref() == Some(&plan.checksum) && approval.by == "admin",
        "{approval:?}"
    );
    Ok(())
}

async fn withdrawal(scene: Scene) -> Result<()> {
    // Without its controller nothing records the approval, so the withdrawal certainly precedes the claim.
    scene.scripted("a", json!({}), json!({})).await?;
    let waiting = scene.phase("a", Phase::AwaitingApproval).await?;
    let checksum = waiting.plan.context("no plan")?.checksum;
    let approve = [
        (names::APPROVE, Some(checksum.as_str())),
        (names::APPROVED_BY, Some("admin")),
    ];
    let agent = scene.pod("a").await?;
    // The agent is stopped meanwhile, as on a slow node.
    let (pid, _) = Scene::processes(&agent)?
        .into_iter()
        .find(|(_, l)| l.contains("runner-agent"))
        .context("no agent")?;
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP)?;
    let result = async {
        scene.annotate("a", &approve).await?;
        scene
            .until("a", "recorded as approved", SOON, |s| s.approval.is_some())
            .await?;
        scene
            .annotate("a", &[(names::APPROVE, None), (names::APPROVED_BY, None)])
            .await?;
        scene
            .until("a", "withdrawn", SOON, |s| s.approval.is_none())
            .await
    }
    .await;
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT)?;
    result?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let status = scene.status("a").await?;
    ensure!(
        status.phase == Some(Phase::AwaitingApproval)
            && status.claim.is_none()
            && scene.starts("a", "apply") == 0,
        "{status:?}"
    );
    scene.annotate("a", &approve).await?;
    scene.ends("a", RunResult::Applied).await.map(drop)
}

async fn killed_in_the_hold(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({}), json!({})).await?;
    let first = scene
        .phase("a", Phase::AwaitingApproval)
        .await?
        .plan
        .context("no plan")?
        .checksum;
    Scene::kill(&scene.pod("a").await?, "runner-agent")?;
    let kept = super::stored::released(&scene, "a").await?;
    ensure!(
        kept.plan
            .as_ref()
            .is_some_and(|plan| plan.checksum == first),
        "the plan died with its agent: {kept:?}"
    );
    super::stored::approve_waiting(&scene, &kept)?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(scene.starts("a", "apply") == 1 && scene.starts("a", "plan") == 1);
    ensure!(
        status
            .history
            .iter()
            .any(|line| line.contains("the plan is kept")),
        "{:?}",
        status.history
    );
    Ok(())
}
