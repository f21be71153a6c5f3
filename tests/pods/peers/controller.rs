//! Bugs of stopped controllers, and of controllers that continued without a lock. These tests affect the whole cluster.

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRunStatus, conditions, reason};
use harness::wait;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ResourceQuota};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use ledger::what;
use serde_json::json;

use super::{SYSTEM, created, said, until_created};
use crate::{
    outages::no_pods,
    suite::{LATER, OF_CONTROLLER, SOON, Scene, TIMEOUT, Test, automatic, gated, holds},
};

pub(super) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "peers::tofu_531_apply_goes_on_without_a_controller",
            without_controller,
        ),
        Test::new(
            "peers::burrito_run_without_its_lease_does_not_begin",
            lock_bypass,
        ),
    ]
}

const CONTROLLER: &str = "deployment/pawl-controller";

/// A run's pod and the tool process that applies in it. A restart would change both.
async fn tool_of(scene: &Scene, run: &str) -> Result<(String, i32)> {
    let pod = scene.pod(run).await?;
    let containers = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    ensure!(
        containers
            .into_iter()
            .flatten()
            .all(|container| container.restart_count == 0),
        "a container was started again"
    );
    let tool = Scene::processes(&pod)?
        .into_iter()
        .find(|(_, line)| line.contains(" apply ") && !line.contains("runner-agent"));
    Ok((
        pod.uid().context("a pod without UID")?,
        tool.with_context(|| format!("no tool applies in {}", pod.name_any()))?
            .0,
    ))
}

async fn kill_controller(scene: &Scene) -> Result<()> {
    ensure!(
        scene.crash(OF_CONTROLLER).await? > 0,
        "no controller was killed"
    );
    Ok(())
}

/// Stops the controller and waits until it is gone.
async fn controller_away(scene: &Scene) -> Result<()> {
    scene
        .suite
        .cluster
        .kubectl(&["-n", SYSTEM, "scale", CONTROLLER, "--replicas=0"])?;
    no_pods(scene, OF_CONTROLLER).await
}

fn controller_back(scene: &Scene) -> Result<()> {
    let cluster = &scene.suite.cluster;
    cluster.kubectl(&["-n", SYSTEM, "scale", CONTROLLER, "--replicas=1"])?;
    cluster.kubectl(&["-n", SYSTEM, "rollout", "status", CONTROLLER, TIMEOUT])?;
    Ok(())
}

/// tofu-controller #531: a restarted controller ended its runners in mid-apply, an "absolute disaster". In Pawl an apply ends, and is
/// reported, while there is no controller, and one that outlives the outage continues in the same process.
async fn without_controller(scene: Scene) -> Result<()> {
    let mut before = Vec::new();
    for name in ["ends", "outlives"] {
        scene
            .scripted(name, json!({"resources": gated(3)}), automatic())
            .await?;
    }
    for name in ["ends", "outlives"] {
        until_created(&scene, name, 1).await?;
        before.push(tool_of(&scene, name).await?);
    }
    kill_controller(&scene).await?;
    let away = async {
        controller_away(&scene).await?;
        ensure!(
            tool_of(&scene, "ends").await? == before[0],
            "the end of the controller was the end of its runner"
        );
        scene.open("ends").await?;
        let status = scene.ends("ends", RunResult::Applied).await?;
        ensure!(
            status.attempt.is_some_and(|attempt| attempt.open),
            "somebody else closed the attempt"
        );
        Ok(())
    }
    .await;
    controller_back(&scene)?;
    away?;
    scene.closed("ends").await?;
    ensure!(
        tool_of(&scene, "outlives").await? == before[1],
        "the controller that came back began something anew"
    );
    scene.open("outlives").await?;
    scene
        .ends_within("outlives", RunResult::Applied, LATER)
        .await?;
    for name in ["ends", "outlives"] {
        ensure!(
            created(&scene, name) == 3 && scene.starts(name, "apply") == 1,
            "{name}"
        );
        ensure!(
            ledger::select(&scene.ledger(name), what::SIGNAL, None).is_empty(),
            "the tool of {name} was asked to stop"
        );
        ensure!(
            scene.pod_names(name).await?.len() == 1,
            "{name} had another pod"
        );
    }
    Ok(())
}

/// Prevents the creation of Leases in the controller's namespace.
async fn forbid_leases(scene: &Scene) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(scene.suite.client.clone(), SYSTEM);
    let quota = json!({"metadata": {"name": "no-more-leases"}, "spec": {"hard": {"count/leases.coordination.k8s.io": "0"}}});
    quotas
        .create(&PostParams::default(), &serde_json::from_value(quota)?)
        .await?;
    // The quota takes effect a moment later. Waits until a probe is refused.
    let leases: Api<Lease> = Api::namespaced(scene.suite.client.clone(), SYSTEM);
    let probe: Lease = serde_json::from_value(
        json!({"metadata": {"name": format!("probe-{}", scene.namespace)}}),
    )?;
    let look = async || {
        let refused = leases.create(&PostParams::default(), &probe).await.is_err();
        if !refused {
            leases
                .delete(&probe.name_any(), &DeleteParams::default())
                .await?;
        }
        Ok(refused)
    };
    wait::until("the quota on leases is in force", SOON, look).await
}

async fn allow_leases(scene: &Scene) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(scene.suite.client.clone(), SYSTEM);
    quotas
        .delete("no-more-leases", &DeleteParams::default())
        .await?;
    Ok(())
}

/// Burrito 11.1: a lock that could not be created was an error of the first reconcile only; the second found a run with a status and
/// without a pod, retried it, and made a pod without a lock. In Pawl neither repeated reconciles nor a restarted controller make a pod or a
/// claim for a run without its lease, and the run reports what is missing.
async fn lock_bypass(scene: Scene) -> Result<()> {
    let result = async {
        forbid_leases(&scene).await?;
        refused_leases(&scene).await
    }
    .await;
    allow_leases(&scene).await?;
    result?;
    for name in ["asks-nobody", "approved"] {
        scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(
            scene.starts(name, "apply") == 1 && scene.pod_names(name).await?.len() == 1,
            "{name}"
        );
    }
    Ok(())
}

async fn refused_leases(scene: &Scene) -> Result<()> {
    let refused = |s: &TerraformRunStatus| said(s, conditions::STATE_LEASED, reason::LEASE_REFUSED);
    scene
        .scripted("asks-nobody", json!({}), automatic())
        .await?;
    scene
        .scripted(
            "approved",
            json!({}),
            json!({"approval": {"holdFor": "1h"}}),
        )
        .await?;
    scene
        .until("asks-nobody", "without its lease", SOON, refused)
        .await?;
    scene.approve("approved").await?;
    scene
        .until("approved", "without its lease", SOON, refused)
        .await?;
    for round in 0..3 {
        if round > 0 {
            // A new controller without memory of the refusals.
            kill_controller(scene).await?;
            controller_back(scene)?;
        }
        // A run without a lease, which begins after the others were reconciled.
        let name = format!("plan-{round}");
        scene
            .scripted(&name, json!({}), json!({"operation": "Plan"}))
            .await?;
        scene.ends_within(&name, RunResult::Planned, LATER).await?;
        let (waits, held) = (
            scene.status("asks-nobody").await?,
            scene.status("approved").await?,
        );
        ensure!(
            waits.attempt.is_none() && waits.lease.is_none() && waits.claim.is_none(),
            "{waits:?}"
        );
        ensure!(
            waits.phase == Some(Phase::Pending) && scene.pod_names("asks-nobody").await?.is_empty(),
            "{waits:?}"
        );
        holds(
            waits.message.as_deref().unwrap_or_default(),
            "may not take the lease on the state",
        )?;
        ensure!(
            held.lease.is_none() && held.claim.is_none() && held.approval.is_some(),
            "{held:?}"
        );
        ensure!(
            held.phase == Some(Phase::AwaitingApproval) && scene.starts("approved", "apply") == 0,
            "{held:?}"
        );
        ensure!(
            held.attempt
                .is_some_and(|attempt| attempt.number == 1 && attempt.tries == 1)
        );
    }
    Ok(())
}
