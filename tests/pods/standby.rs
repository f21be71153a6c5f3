//! Standby controllers: one takes over when the leader is gone, and two leaders do no harm.

use anyhow::{Context, Result, bail, ensure};
use crds::{FailureClass, Phase, RunResult, TerraformRunStatus, reason};
use futures::TryStreamExt as _;
use harness::wait;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{WatchEvent, WatchParams},
};
use ledger::what;
use serde_json::json;

use crate::suite::{LATER, OF_CONTROLLER, Scene, Test, automatic, gated, holds};

pub(crate) fn alone() -> Vec<Test> {
    vec![Test::new(
        "standby::standby_leads_after_the_leader_ends",
        failover,
    )]
}

const LEASE: &str = "pawl-controller";

fn leases(scene: &Scene) -> Api<Lease> {
    Api::namespaced(scene.suite.client.clone(), "pawl-system")
}

fn holder(lease: Lease) -> Option<String> {
    lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .filter(|holder| !holder.is_empty())
}

/// Waits for a leader other than `than`. `cargo bench-run --only standby` measures the delay.
async fn another(scene: &Scene, than: &str) -> Result<String> {
    let look = async || {
        Ok(leases(scene)
            .get_opt(LEASE)
            .await?
            .and_then(holder)
            .filter(|holder| holder != than))
    };
    wait::until(format!("somebody takes over from {than}"), LATER, look).await
}

/// Terminates a leader and checks that it releases its Lease, so that no standby waits until the Lease expires.
async fn gives_back(scene: &Scene, leader: &str) -> Result<()> {
    let version = leases(scene)
        .get(LEASE)
        .await?
        .resource_version()
        .context("no version")?;
    let pod = pod_of(scene, leader).await?.name_any();
    scene
        .suite
        .cluster
        .kubectl(&["-n", "pawl-system", "delete", "pod", &pod, "--wait=false"])?;
    // Watches all versions, so that even a short release is seen.
    let params = WatchParams::default()
        .fields(&format!("metadata.name={LEASE}"))
        .timeout(180)
        .disable_bookmarks();
    let mut events = std::pin::pin!(leases(scene).watch(&params, &version).await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Modified(lease) => match holder(lease) {
                None => return Ok(()),
                Some(holder) => ensure!(
                    holder == leader,
                    "{holder} took over a Lease that was not given back"
                ),
            },
            other => bail!("the Lease cannot be watched: {other:?}"),
        }
    }
    bail!("{leader} does not end")
}

async fn pod_of(scene: &Scene, identity: &str) -> Result<Pod> {
    let of = |pod: &Pod| {
        identity
            .split_once('_')
            .is_some_and(|(name, _)| name == pod.name_any())
    };
    scene
        .system_pods(OF_CONTROLLER)
        .await?
        .into_iter()
        .find(of)
        .with_context(|| format!("no pod of the leader {identity}"))
}

async fn failover(scene: Scene) -> Result<()> {
    let with = |replicas: &str| {
        let mut values = scene.suite.values.clone();
        values.insert("controller.replicas".to_owned(), replicas.to_owned());
        values
    };
    // Neither needs a datastore.
    let mut values = with("2");
    values.insert(
        "datastore".to_owned(),
        json!({"enabled": false}).to_string(),
    );
    scene.suite.cluster.install(&values).await?;
    let result = async {
        without_datastore(&scene).await?;
        takes_over(&scene).await
    }
    .await;
    scene.suite.cluster.install(&with("1")).await?;
    result
}

/// The plan stays in its pod, which is held regardless of `holdFor`, and the run reports that; a stack needs its own backend.
async fn without_datastore(scene: &Scene) -> Result<()> {
    let short = json!({"approval": {"holdFor": "0s"}});
    scene.scripted("held", json!({}), short.clone()).await?;
    scene.scripted("dies", json!({}), short).await?;
    scene
        .scripted(
            "stateless",
            json!({}),
            json!({"backend": null, "stack": "x"}),
        )
        .await?;
    scene
        .fails(
            "stateless",
            FailureClass::Configuration,
            reason::NO_DURABLE_STATE,
            LATER,
        )
        .await?;
    for name in ["held", "dies"] {
        let status = scene.phase(name, Phase::AwaitingApproval).await?;
        holds(
            status.message.as_deref().unwrap_or_default(),
            "without a datastore its pod is held as long",
        )?;
    }
    // The plan is lost with its pod, and another is made.
    let first = scene
        .status("dies")
        .await?
        .plan
        .context("no plan")?
        .checksum;
    let pod = scene.pod("dies").await?.name_any();
    scene.kubectl(&["delete", "pod", &pod, "--wait=false"])?;
    let another = |s: &TerraformRunStatus| {
        s.phase == Some(Phase::AwaitingApproval)
            && s.plan.as_ref().is_some_and(|plan| plan.checksum != first)
    };
    scene
        .until("dies", "with another plan", LATER, another)
        .await?;
    for name in ["held", "dies"] {
        scene.approve(name).await?;
        let status = scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(
            status.journal.is_none() && scene.starts(name, "apply") == 1,
            "{status:?}"
        );
    }
    ensure!(
        scene.read("terraformruns/held/plan").is_err(),
        "nobody keeps it"
    );
    Ok(())
}

async fn takes_over(scene: &Scene) -> Result<()> {
    let first = another(scene, "").await?;
    scene
        .scripted("a", json!({"resources": gated(2)}), automatic())
        .await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    // Killed in mid-run: its Lease expires.
    let pod = pod_of(scene, &first).await?;
    Scene::kill(&pod, "/controller")?;
    let second = another(scene, &first).await?;
    scene.open("a").await?;
    scene.scripted("b", json!({}), automatic()).await?;
    for name in ["a", "b"] {
        scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(scene.starts(name, "apply") == 1 && scene.pod_names(name).await?.len() == 1);
    }
    // Terminated: the next takes over at once.
    gives_back(scene, &second).await?;
    another(scene, &second).await?;
    scene.scripted("c", json!({}), automatic()).await?;
    scene.ends_within("c", RunResult::Applied, LATER).await?;
    ensure!(scene.starts("c", "apply") == 1 && scene.pod_names("c").await?.len() == 1);
    Ok(())
}
