//! A client that annotates a run in a loop prevents neither the record of its approval nor its claim.

use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use crds::{Phase, RunResult};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::{
    rig::{Played, RUN, Rig, is_open},
    world::{World, sum, tests},
};

tests! {
    Guarded: busy_annotators_delay_neither_approval_nor_apply,
}

/// Number of clients that annotate in parallel, each as fast as the API server responds.
const WRITERS: usize = 12;

/// Annotates until the first refused request.
fn writer(rig: &Rig, index: usize) -> JoinHandle<()> {
    let runs = rig.world.runs(&rig.namespace);
    tokio::spawn(async move {
        for n in 0_u64.. {
            let patch = Patch::Merge(
                json!({"metadata": {"annotations": {format!("{}/{index}", if index == 0 { "pawl.run" } else { "team" }): n.to_string()}}}),
            );
            match runs.patch(RUN, &PatchParams::default(), &patch).await {
                // The API server gives up after five concurrent writes by others.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(_) => return,
                Ok(_) => {}
            }
        }
    })
}

async fn busy_annotators_delay_neither_approval_nor_apply(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    rig.create(&json!({})).await?;
    rig.look("opened", is_open(1)).await?;
    let work = Played {
        state_key: Some(sum('e')),
        ..Played::default()
    };
    let mut process = rig.start(rig.token().await?, work.clone()).await?;
    rig.until("waiting", |status| {
        status.phase == Some(Phase::AwaitingApproval)
    })
    .await?;
    let writers: Vec<_> = (0..WRITERS).map(|index| writer(&rig, index)).collect();
    rig.approve().await?;
    // The test reconciles until the approval is recorded and not afterwards, so only the agent writes the claim.
    let recorded = rig
        .look("approved", |status| status.approval.is_some())
        .await;
    let claimed = rig.until("claimed", |status| status.claim.is_some()).await;
    let stopped = writers.iter().filter(|writer| writer.is_finished()).count();
    writers.iter().for_each(JoinHandle::abort);
    recorded?;
    claimed?;
    ensure!(
        stopped == 0,
        "{stopped} of {WRITERS} writers had stopped by then"
    );
    ensure!(process.end().await? == 0 && work.applies.load(Ordering::Relaxed) == 1);
    let ended = rig.status().await?;
    ensure!(ended.result == Some(RunResult::Applied), "{ended:?}");
    Ok(())
}
