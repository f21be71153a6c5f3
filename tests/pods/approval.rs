//! An approval is valid for one exact plan.

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, conditions, names, reason};
use harness::wait;
use kube::ResourceExt;
use serde_json::json;

use crate::suite::{LATER, SOON, Scene, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("approval::the_pod_that_planned_applies_without_a_second_init", within_the_hold),
        Test::new("approval::denied_is_rejected_and_nothing_is_applied", deny),
        Test::new("approval::withdrawn_goes_back_to_waiting", withdrawal),
        Test::new("approval::what_is_not_this_plan_is_refused_in_the_terminal", refused),
        Test::new("approval::an_agent_killed_in_the_hold_leaves_its_plan", killed_in_the_hold),
        Test::new("approval::a_newer_run_of_the_workspace_takes_its_place", superseded),
    ]
}

/// Tests that remove the policies from the whole cluster.
pub(crate) fn alone() -> Vec<Test> {
    vec![Test::new("approval::without_the_policies_a_run_waits", policies_removed)]
}

async fn within_the_hold(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({"resources": 2}), json!({})).await?;
    let waiting = scene.phase("a", Phase::AwaitingApproval).await?;
    let pod = scene.pod("a").await?;
    let processes = Scene::processes(&pod)?;
    let others: Vec<_> =
        processes.iter().filter(|(_, line)| !line.contains("runner-agent") && !line.contains("sleep infinity")).collect();
    ensure!(others.is_empty(), "while it holds, nothing else runs in the pod: {others:?}");
    let status = scene.approved("a").await?;
    ensure!(scene.starts("a", "init") == 1 && scene.starts("a", "plan") == 1 && scene.starts("a", "apply") == 1);
    ensure!(scene.pod_names("a").await? == [pod.name_any()]);
    let (plan, approval) = (waiting.plan.context("no plan")?, status.approval.context("no approval")?);
    ensure!(approval.checksum.as_ref() == Some(&plan.checksum) && approval.by == "admin", "{approval:?}");
    Ok(())
}

async fn deny(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({}), json!({})).await?;
    scene.phase("a", Phase::AwaitingApproval).await?;
    scene.annotate("a", &[(names::DENY, Some("too dear"))]).await?;
    let status = scene.ends("a", RunResult::Rejected).await?;
    holds(&status.message.unwrap_or_default(), "too dear")?;
    ensure!(scene.starts("a", "apply") == 0 && status.claim.is_none());
    Ok(())
}

async fn withdrawal(scene: Scene) -> Result<()> {
    // Without its controller nothing records the approval, so the withdrawal certainly precedes the claim.
    scene.scripted("a", json!({}), json!({})).await?;
    let waiting = scene.phase("a", Phase::AwaitingApproval).await?;
    let checksum = waiting.plan.context("no plan")?.checksum;
    let approve = [(names::APPROVE, Some(checksum.as_str())), (names::APPROVED_BY, Some("admin"))];
    let agent = scene.pod("a").await?;
    // The agent is stopped meanwhile, as on a slow node.
    let (pid, _) = Scene::processes(&agent)?.into_iter().find(|(_, l)| l.contains("runner-agent")).context("no agent")?;
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP)?;
    let result = async {
        scene.annotate("a", &approve).await?;
        scene.until("a", "recorded as approved", SOON, |r| r.status.as_ref().is_some_and(|s| s.approval.is_some())).await?;
        scene.annotate("a", &[(names::APPROVE, None), (names::APPROVED_BY, None)]).await?;
        scene.until("a", "withdrawn", SOON, |r| r.status.as_ref().is_some_and(|s| s.approval.is_none())).await
    }
    .await;
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT)?;
    result?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let status = scene.status("a").await?;
    ensure!(
        status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none() && scene.starts("a", "apply") == 0,
        "{status:?}"
    );
    scene.annotate("a", &approve).await?;
    scene.ends("a", RunResult::Applied).await.map(drop)
}

async fn refused(scene: Scene) -> Result<()> {
    scene.scripted("plans", json!({"commands": {"plan": ["hang"]}}), json!({})).await?;
    scene.scripted("a", json!({}), json!({})).await?;
    let line = |run: &str, sum: &str| {
        format!(
            "kubectl annotate -n {} --overwrite tfrun/{run} {}={sum} {}=\"$(kubectl auth whoami -o jsonpath='{{.status.userInfo.username}}')\"",
            scene.namespace,
            names::APPROVE,
            names::APPROVED_BY
        )
    };
    let sum = |digit: &str| format!("sha256:{}", digit.repeat(64));
    scene.phase("plans", Phase::Plan).await?;
    holds(&scene.refused(&line("plans", &sum("a")))?, "no plan waits for approval")?;
    scene.annotate("plans", &[(names::CANCEL, Some("done"))]).await?;
    let plan = scene.phase("a", Phase::AwaitingApproval).await?.plan.context("no plan")?;
    for wrong in [sum("a"), plan.checksum[..40].to_owned()] {
        let said = scene.refused(&line("a", &wrong))?;
        holds(&said, &format!("the plan that waits is {}, not {wrong}; nothing was approved", plan.checksum))?;
    }
    ensure!(scene.status("a").await?.approval.is_none());
    scene.annotate("a", &[(names::CANCEL, Some("done"))]).await?;
    for name in ["a", "plans"] {
        scene.ends(name, RunResult::Canceled).await?;
    }
    Ok(())
}

async fn superseded(scene: Scene) -> Result<()> {
    // One backend is one workspace, independent of the names of its runs.
    let stack = json!({"backend": scene.backend("shared")});
    scene.scripted("a", json!({}), stack.clone()).await?;
    scene.phase("a", Phase::AwaitingApproval).await?;
    scene.scripted("other", json!({}), json!({})).await?;
    scene.scripted("plan", json!({}), json!({"backend": scene.backend("shared"), "operation": "Plan"})).await?;
    scene.ends("plan", RunResult::Planned).await?;
    scene.phase("other", Phase::AwaitingApproval).await?;
    ensure!(scene.status("a").await?.phase == Some(Phase::AwaitingApproval), "neither takes its place");
    scene.scripted("b", json!({}), stack).await?;
    let status = scene.ends("a", RunResult::Superseded).await?;
    holds(&status.message.unwrap_or_default(), "superseded by b, a newer run of the same workspace; nothing was applied")?;
    ensure!(scene.starts("a", "apply") == 0 && status.claim.is_none());
    scene.approved("b").await?;
    ensure!(scene.status("other").await?.phase == Some(Phase::AwaitingApproval));
    scene.annotate("other", &[(names::CANCEL, Some("done"))]).await?;
    Ok(())
}

async fn killed_in_the_hold(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({}), json!({})).await?;
    let first = scene.phase("a", Phase::AwaitingApproval).await?.plan.context("no plan")?.checksum;
    Scene::kill(&scene.pod("a").await?, "runner-agent")?;
    let kept = super::stored::released(&scene, "a").await?;
    ensure!(kept.plan.as_ref().is_some_and(|plan| plan.checksum == first), "the plan died with its agent: {kept:?}");
    super::stored::approve_waiting(&scene, &kept)?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(scene.starts("a", "apply") == 1 && scene.starts("a", "plan") == 1);
    ensure!(status.history.iter().any(|line| line.contains("the plan is kept")), "{:?}", status.history);
    Ok(())
}

async fn policies_removed(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({}), json!({})).await?;
    let plan = scene.phase("a", Phase::AwaitingApproval).await?.plan.context("no plan")?;
    for policy in names::POLICIES {
        let saved = scene.suite.cluster.kubectl(&["get", "validatingadmissionpolicybinding", policy, "-o", "json"])?;
        scene.suite.cluster.kubectl(&["delete", "validatingadmissionpolicybinding", policy])?;
        let result = without(&scene, policy, &plan.checksum).await;
        let mut binding: serde_json::Value = serde_json::from_str(&saved)?;
        for key in ["resourceVersion", "uid", "creationTimestamp", "generation"] {
            binding["metadata"].as_object_mut().map(|m| m.remove(key));
        }
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), binding.to_string())?;
        scene.suite.cluster.kubectl(&["create", "-f", &file.path().display().to_string()])?;
        result?;
        // The controller watches for the return, and retries otherwise.
        scene.phase(&format!("manual-{policy}"), Phase::AwaitingApproval).await?;
        let status = scene.ends(&format!("automatic-{policy}"), RunResult::Canceled).await?;
        holds(&status.message.unwrap_or_default(), "Create it again")?;
        ensure!(status.attempt.is_none());
        scene.annotate(&format!("manual-{policy}"), &[(names::CANCEL, Some("done"))]).await?;
    }
    let revoked = |r: &crds::TerraformRun| stands(r, conditions::APPROVED, "False", reason::UNVERIFIED);
    scene.until("a", "told that its approval was removed", SOON, revoked).await?;
    ensure!(scene.status("a").await?.approval.is_none() && scene.starts("a", "apply") == 0);
    let status = scene.approved("a").await?;
    ensure!(status.approval.is_some_and(|approval| approval.by == "admin"));
    Ok(())
}

fn stands(run: &crds::TerraformRun, type_: &str, status: &str, reason: &str) -> bool {
    let all = run.status.iter().flat_map(|status| &status.conditions);
    all.into_iter().any(|c| c.type_ == type_ && c.status == status && c.reason == reason)
}

/// While a binding is missing, nothing starts, and an approval in another user's name has no effect.
async fn without(scene: &Scene, policy: &str, checksum: &str) -> Result<()> {
    let missing = |r: &crds::TerraformRun| stands(r, conditions::STALLED, "True", reason::POLICY_MISSING);
    for (name, mode) in [("manual", "Manual"), ("automatic", "Automatic")] {
        let name = format!("{name}-{policy}");
        scene.scripted(&name, json!({}), json!({"approval": {"mode": mode}})).await?;
        scene.until(&name, "stalled with PolicyMissing", SOON, missing).await?;
        ensure!(scene.pod_names(&name).await?.is_empty(), "{name} was started without {policy}");
    }
    if policy == names::POLICY_APPROVAL {
        // The API server enforces a policy for a moment after its binding is deleted.
        let forged = [(names::APPROVE, Some(checksum)), (names::APPROVED_BY, Some("somebody else"))];
        wait::until("it is let through", SOON, async || Ok(scene.annotate("a", &forged).await)).await?;
        scene.until("a", "stalled with PolicyMissing", SOON, missing).await?;
        ensure!(scene.status("a").await?.approval.is_none());
    }
    Ok(())
}
