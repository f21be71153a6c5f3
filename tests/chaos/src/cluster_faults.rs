//! Faults of the whole cluster, one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, EvictParams, ListParams};
use nix::sys::signal::Signal;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::{kinds::Kind, lab::Lab};
use harness::cluster::{node::NODE, victims};
use servers::proxy::Weather;

/// Injects faults until the loop is over. Leaves everything up and the network good.
pub(super) async fn go_on(lab: Arc<Lab>, seed: u64) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed ^ 0x00c1_05e7);
    while !lab.over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(random.random_range(1_000..9_000))).await;
        let kind = match random.random_range(0..100) {
            0..38 => Kind::Controller,
            38..62 => Kind::Datastore,
            // Rare, because little else happens until all clients have reconnected.
            62..67 => Kind::ApiServer,
            67..74 => Kind::Drain,
            _ => Kind::Network,
        };
        let struck = match kind {
            Kind::Controller => kill(&lab, "controller", "/controller").await,
            Kind::Datastore => kill(&lab, "datastore", "/controller").await,
            Kind::ApiServer => {
                lab.record.add(kind, None);
                let away = Duration::from_millis(random.random_range(0..6_000));
                lab.cluster.restart_apiserver(away, &[]).await?;
                lab.cluster.restart_watchers().await?;
                continue;
            }
            Kind::Drain => drain(&lab).await?,
            _ => {
                let weather = Weather::BAD[random.random_range(0..Weather::BAD.len())];
                lab.proxy.set(weather);
                tokio::time::sleep(Duration::from_millis(random.random_range(300..6_000))).await;
                lab.proxy.set(Weather::Fair);
                true
            }
        };
        if struck {
            lab.record.add(kind, None);
        }
    }
    Ok(())
}

/// Kills a component of Pawl and deletes its pod: the kubelet would delay each restart of a container further.
pub(super) async fn kill(lab: &Lab, component: &str, program: &str) -> bool {
    let params = ListParams::default().labels(&format!("app.kubernetes.io/component={component}"));
    let Ok(pods) = lab.system_pods().list(&params).await else {
        return false;
    };
    let Some(pod) = pods
        .items
        .iter()
        .find(|pod| pod.metadata.deletion_timestamp.is_none())
    else {
        return false;
    };
    let killed = victims::signal_in_pod(&pod.uid().unwrap_or_default(), program, Signal::SIGKILL)
        .unwrap_or_default();
    let _ = lab
        .system_pods()
        .delete(&pod.name_any(), &DeleteParams::default().grace_period(1))
        .await;
    killed > 0
}

/// Evicts every pod of a run, like the drain of a node.
async fn drain(lab: &Lab) -> Result<bool> {
    lab.cluster.kubectl(&["cordon", NODE])?;
    let is_of_run = |pod: &Pod| pod.labels().contains_key(names::LABEL_RUN);
    if let Ok(pods) = lab.pods().list(&ListParams::default()).await {
        for pod in pods
            .items
            .iter()
            .filter(|pod| !victims::has_ended(pod) && is_of_run(pod))
        {
            let _ = lab
                .pods()
                .evict(&pod.name_any(), &EvictParams::default())
                .await;
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    lab.cluster.kubectl(&["uncordon", NODE])?;
    Ok(true)
}
