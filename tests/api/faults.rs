//! Panics in the agent's own code: reported as such, and nothing is applied twice because of them.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use crds::{Changed, FailureClass, RunResult, TerraformRunStatus, reason};
use serde_json::json;

use crate::{
    rig::{Played, Rig, is_closed, is_open},
    world::{World, tests},
};

tests! {
    Guarded: agent_panic_is_reported_before_and_after_claim,
}

async fn agent_panic_is_reported_before_and_after_claim(world: World) -> Result<()> {
    for (panics, applies) in [("plan", 0), ("apply", 1)] {
        let rig = Rig::new(world.clone()).await?;
        rig.create(&json!({"approval": {"mode": "Automatic"}}))
            .await?;
        rig.look("opened", is_open(1)).await?;
        let work = Played {
            panics,
            ..Played::default()
        };
        let mut process = rig.start(rig.token().await?, work.clone()).await?;
        let status = rig.look("ended", TerraformRunStatus::is_terminal).await?;
        ensure!(
            process.end().await? != 0 && work.applies.load(Ordering::Relaxed) == applies,
            "{panics}"
        );
        let step = status.step();
        let failure = status.failure.context("no failure")?;
        ensure!(
            status.result == Some(RunResult::Failed)
                && (failure.class, failure.reason.as_str())
                    == (FailureClass::Internal, reason::AGENT_FAULT)
                && status.claim.is_some() == (applies == 1)
                && step.is_some(),
            "{panics}: {failure:?}"
        );
        ensure!(
            applies == 1 || failure.changes == Changed::None,
            "{failure:?}"
        );
        // Its kubelet reads the same result, and no further attempt follows.
        ensure!(process.message()?.result == Some(RunResult::Failed));
        rig.pod_ended(&process.message()?).await?;
        rig.look("closed", is_closed).await?;
        rig.rests("it is over").await?;
    }
    Ok(())
}
