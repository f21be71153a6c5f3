//! Panics in the agent's own code: reported as such, and nothing is applied twice because of them.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use crds::{Changed, FailureClass, RunResult, TerraformRun, TerraformRunStatus, reason};
use serde_json::json;

use crate::{
    rig::{Played, RUN, Rig},
    world::{World, tests},
};

tests! {
    Guarded: agent_panic_is_reported_before_and_after_claim,
}

async fn agent_panic_is_reported_before_and_after_claim(world: World) -> Result<()> {
    for (panics, applies) in [("plan", 0), ("apply", 1)] {
        let rig = Rig::new(world.clone()).await?;
        rig.world.create(&rig.namespace, RUN, &json!({"approval": {"mode": "Automatic"}})).await?;
        rig.look("begun", |run| run.status.as_ref().is_some_and(|status| status.attempt.is_some())).await?;
        let work = Played { panics, ..Played::default() };
        let mut process = rig.start(rig.token().await?, work.clone()).await?;
        let ended = |run: &TerraformRun| run.status.as_ref().is_some_and(TerraformRunStatus::is_terminal);
        let status = rig.look("ended", ended).await?.status.context("no status")?;
        ensure!(process.end().await? != 0 && work.applies.load(Ordering::Relaxed) == applies, "{panics}");
        let failure = status.failure.context("no failure")?;
        ensure!(
            status.result == Some(RunResult::Failed)
                && (failure.class, failure.reason.as_str()) == (FailureClass::Internal, reason::AGENT_FAULT)
                && status.claim.is_some() == (applies == 1)
                && status.next_step.is_some(),
            "{panics}: {failure:?}"
        );
        ensure!(applies == 1 || failure.changes == Changed::None, "{failure:?}");
        // Its kubelet reads the same result, and no further attempt follows.
        ensure!(process.message()?.result == Some(RunResult::Failed));
        rig.pod_ended(&process.message()?).await?;
        rig.look("closed", |run| run.status.iter().flat_map(|s| &s.attempt).all(|attempt| !attempt.open)).await?;
        rig.rests("it is over").await?;
    }
    Ok(())
}
