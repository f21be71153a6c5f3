//! Controllers that stand by: one goes on when the one that leads is gone, and two that both lead do no harm.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::RunResult;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;
use tests::ledger::what;

use crate::suite::{LATER, Scene, Test};

pub(crate) fn alone() -> Vec<Test> {
    vec![Test::new("standby::one_goes_on_when_the_leader_is_killed_or_told_to_end", failover)]
}

/// The bound of a takeover by a Lease that ran out: its time, one look, and the first listing.
const BOUND: Duration = Duration::from_secs(25);

async fn leader(scene: &Scene) -> Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(scene.suite.client.clone(), "pawl-system");
    let holder = leases.get_opt("pawl-controller").await?.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity);
    Ok(holder.filter(|holder| !holder.is_empty()))
}

/// Waits for a leader other than that one; how long it took.
async fn another(scene: &Scene, than: &str, within: Duration) -> Result<(String, Duration)> {
    let started = Instant::now();
    loop {
        if let Some(holder) = leader(scene).await?.filter(|holder| holder != than) {
            return Ok((holder, started.elapsed()));
        }
        ensure!(started.elapsed() < within, "nobody took over from {than} within {within:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn pod_of(scene: &Scene, identity: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(scene.suite.client.clone(), "pawl-system");
    let listed = pods.list(&ListParams::default().labels("app.kubernetes.io/component=controller")).await?;
    let of = |pod: &Pod| identity.split_once('_').is_some_and(|(name, _)| name == pod.name_any());
    listed.items.into_iter().find(of).with_context(|| format!("no pod of the leader {identity}"))
}

async fn failover(scene: Scene) -> Result<()> {
    let with = |replicas: &str| {
        let mut values = scene.suite.releases.values();
        values.insert("controller.replicas".to_owned(), replicas.to_owned());
        values
    };
    scene.suite.cluster.install(&with("2")).await?;
    let result = takes_over(&scene).await;
    scene.suite.cluster.install(&with("1")).await?;
    result
}

async fn takes_over(scene: &Scene) -> Result<()> {
    let (first, _) = another(scene, "", LATER).await?;
    let automatic = json!({"approval": {"mode": "Automatic"}});
    scene.scripted("a", json!({"resources": 10, "apply_ms": 500}), automatic.clone()).await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    // Killed in mid-run: its Lease runs out.
    let pod = pod_of(scene, &first).await?;
    for (pid, line) in tests::cluster::victims::processes(&pod.uid().context("no uid")?)? {
        if line.starts_with("/controller") {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)?;
        }
    }
    let (second, took) = another(scene, &first, LATER).await?;
    ensure!(took < BOUND, "it took {took:?}");
    println!("a controller that was killed was followed after {took:?}");
    scene.scripted("b", json!({}), automatic.clone()).await?;
    for name in ["a", "b"] {
        scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(scene.starts(name, "apply") == 1 && scene.pod_names(name).await?.len() == 1);
    }
    // Told to end: the next takes over at once.
    let pod = pod_of(scene, &second).await?.name_any();
    let started = Instant::now();
    scene.suite.cluster.kubectl(&["-n", "pawl-system", "delete", "pod", &pod, "--wait=false"])?;
    let (_, took) = another(scene, &second, LATER).await?;
    ensure!(took < Duration::from_secs(8), "it took {took:?}");
    println!("a controller that was told to end was followed after {:?}", started.elapsed());
    scene.scripted("c", json!({}), automatic).await?;
    scene.ends_within("c", RunResult::Applied, LATER).await?;
    ensure!(scene.starts("c", "apply") == 1 && scene.pod_names("c").await?.len() == 1);
    Ok(())
}
