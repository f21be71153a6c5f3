//! Measures from the end of the leading controller to the next leader.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use nix::sys::signal::Signal;

use super::lab::{Lab, PATIENCE};
use super::table::{Limit, Table};
use harness::cluster::{NAMESPACE, chart::Values, victims};

const KILLED: &str = "controller killed to another leads";
const TOLD: &str = "controller told to end to another leads";

/// Measures both with two controllers, and leaves one.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let replicas =
        |number: &str| Values::from([("controller.replicas".to_owned(), number.to_owned())]);
    lab.install(&replicas("2")).await?;
    let measured = both(lab, times, table).await;
    lab.install(&replicas("1")).await?;
    measured
}

async fn both(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let pods = lab.system_pods();
    for _ in 0..times {
        let (leader, pod) = leading(lab).await?;
        let begun = Instant::now();
        let reached = victims::signal_in_pod(
            &pod.uid().context("a pod without UID")?,
            "/controller",
            Signal::SIGKILL,
        )?;
        ensure!(reached > 0, "no process of {leader} was killed");
        another(lab, &leader).await?;
        table.seconds(KILLED, begun.elapsed());
        // The kubelet's restart backoff is per pod: a new pod has none.
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(1))
            .await?;
        all_there(lab)?;
        let (leader, pod) = leading(lab).await?;
        let begun = Instant::now();
        pods.delete(&pod.name_any(), &DeleteParams::default())
            .await?;
        another(lab, &leader).await?;
        table.seconds(TOLD, begun.elapsed());
        all_there(lab)?;
    }
    // After a kill: the duration of the Lease, one retry, and the first listing. After a release: the end of the old leader.
    table.limit(KILLED, Limit::Max(25.0));
    table.limit(TOLD, Limit::Max(8.0));
    Ok(())
}

/// Waits for a leader other than `than`.
async fn another(lab: &Lab, than: &str) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(lab.client.clone(), NAMESPACE);
    let begun = Instant::now();
    loop {
        let lease = leases.get_opt("pawl-controller").await?;
        let holder = lease
            .and_then(|lease| lease.spec)
            .and_then(|spec| spec.holder_identity)
            .unwrap_or_default();
        if !holder.is_empty() && holder != than {
            return Ok(holder);
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "no controller took over from `{than}`"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The leader, and its pod.
async fn leading(lab: &Lab) -> Result<(String, Pod)> {
    let leader = another(lab, "").await?;
    let name = leader
        .split_once('_')
        .map_or(leader.as_str(), |(name, _)| name);
    let pod = lab
        .system_pods()
        .get(name)
        .await
        .with_context(|| format!("no pod of the leader {leader}"))?;
    Ok((leader, pod))
}

/// Waits until both are ready again.
fn all_there(lab: &Lab) -> Result<()> {
    lab.cluster
        .kubectl(&[
            "-n",
            NAMESPACE,
            "rollout",
            "status",
            "deployment/pawl-controller",
            "--timeout=120s",
        ])
        .map(drop)
}
