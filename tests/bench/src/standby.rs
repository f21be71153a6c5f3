//! Measures from the end of the leading controller to the next leader.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::Signal;

use super::lab::Lab;
use super::samples::{Samples, Unit};
use super::table::Table;
use harness::cluster::{NAMESPACE, chart::Values, victims};

/// Bound, in seconds, of a takeover after the Lease expired: the duration of the Lease, one retry, and the first listing.
const RAN_OUT: f64 = 25.0;
/// Bound in seconds of a takeover after the Lease was released, including the end of the old leader.
const GIVEN_BACK: f64 = 8.0;

/// Measures both with two controllers, and leaves one.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let replicas = |number: &str| Values::from([("controller.replicas".to_owned(), number.to_owned())]);
    lab.install(&replicas("2")).await?;
    let measured = both(lab, times, table).await;
    lab.install(&replicas("1")).await?;
    measured
}

async fn both(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(lab.client.0.clone(), NAMESPACE);
    let (mut killed, mut told) = (Samples::default(), Samples::default());
    for _ in 0..times {
        let first = another(lab, "").await?;
        let pod = pod_of(&pods, &first).await?;
        let begun = Instant::now();
        let reached = victims::signal_in_pod(&pod.uid().context("a pod without UID")?, "/controller", Signal::SIGKILL)?;
        ensure!(reached > 0, "no process of {first} was killed");
        another(lab, &first).await?;
        killed.seconds(begun.elapsed());
        // The kubelet's restart backoff is per pod: a new pod has none.
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(1)).await?;
        all_there(lab)?;
        let leader = another(lab, "").await?;
        let pod = pod_of(&pods, &leader).await?.name_any();
        let begun = Instant::now();
        pods.delete(&pod, &DeleteParams::default()).await?;
        another(lab, &leader).await?;
        told.seconds(begun.elapsed());
        all_there(lab)?;
    }
    let met = (killed.max() <= RAN_OUT, told.max() <= GIVEN_BACK);
    table.bound("controller killed to another leads", killed.spread(Unit::Seconds), "at most 25 s", met.0);
    table.bound("controller asked to stop to another leads", told.spread(Unit::Seconds), "at most 8 s", met.1);
    Ok(())
}

/// Waits for a leader other than `than`.
async fn another(lab: &Lab, than: &str) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(lab.client.0.clone(), NAMESPACE);
    let begun = Instant::now();
    loop {
        let lease = leases.get_opt("pawl-controller").await?;
        let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity).unwrap_or_default();
        if !holder.is_empty() && holder != than {
            return Ok(holder);
        }
        ensure!(begun.elapsed() < Duration::from_secs(120), "nobody took over from `{than}`");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn pod_of(pods: &Api<Pod>, leader: &str) -> Result<Pod> {
    let listed = pods.list(&ListParams::default().labels("app.kubernetes.io/component=controller")).await?;
    let of = |pod: &Pod| leader.split_once('_').is_some_and(|(name, _)| name == pod.name_any());
    listed.items.into_iter().find(of).with_context(|| format!("no pod of the leader {leader}"))
}

/// Waits until both are ready again.
fn all_there(lab: &Lab) -> Result<()> {
    lab.cluster.kubectl(&["-n", NAMESPACE, "rollout", "status", "deployment/pawl-controller", "--timeout=120s"]).map(drop)
}
