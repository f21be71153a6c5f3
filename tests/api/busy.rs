//! A client that annotates a run in a loop prevents neither the record of its approval nor its claim.

use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use crds::{Phase, RunResult, TerraformRun, TerraformRunStatus};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::{
    rig::{Played, RUN, Rig},
    world::{Test, World, sum},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new("busy::whoever_annotates_keeps_no_run_from_being_approved_and_applied", true, annotated)]
}

/// Number of clients that annotate in parallel, each as fast as the API server responds.
const WRITERS: usize = 12;

fn status(run: &TerraformRun) -> TerraformRunStatus {
    run.status.clone().unwrap_or_default()
}

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

async fn annotated(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    rig.world.create(&rig.namespace, RUN, &json!({})).await?;
    rig.look("opened", |run| status(run).attempt.is_some_and(|attempt| attempt.open)).await?;
    let work = Played { state_key: Some(sum('e')), ..Played::default() };
    let mut process = rig.start(rig.token().await?, work.clone()).await?;
    rig.until("waiting", |run| status(run).phase == Some(Phase::AwaitingApproval)).await?;
    let writers: Vec<_> = (0..WRITERS).map(|index| writer(&rig, index)).collect();
    rig.approve().await?;
    // The test reconciles until the approval is recorded and not afterwards, so only the agent writes the claim.
    let recorded = rig.look("approved", |run| status(run).approval.is_some()).await;
    let claimed = rig.until("claimed", |run| status(run).claim.is_some()).await;
    let stopped = writers.iter().filter(|writer| writer.is_finished()).count();
    writers.iter().for_each(JoinHandle::abort);
    recorded?;
    claimed?;
    ensure!(stopped == 0, "{stopped} of {WRITERS} writers had stopped by then");
    ensure!(process.end().await? == 0 && work.applies.load(Ordering::Relaxed) == 1);
    let ended = status(&rig.get().await?);
    ensure!(ended.result == Some(RunResult::Applied), "{ended:?}");
    Ok(())
}
