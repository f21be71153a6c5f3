//! Pods that a kubelet evicts for lack of memory or disk: at once, without grace and without a message of their agents.

use anyhow::{Context, Result, ensure};
use crds::{Changed, FailureClass, RunResult, TerraformRun, TerraformRunStatus, reason};
use harness::cluster::objects;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::json;

use crate::{
    nodes::{Machine, applying},
    rig::{RUN, Rig, terminated},
    world::{World, tests},
};

tests! {
    Guarded: eviction_before_claim_retries,
    Guarded: eviction_after_claim_is_indeterminate,
}

const SAID: &str = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi.";

fn status(run: &TerraformRun) -> TerraformRunStatus {
    run.status.clone().unwrap_or_default()
}

/// The kubelet's write to the pod of the open attempt.
async fn evict(rig: &Rig) -> Result<()> {
    let pod = status(&rig.get().await?).attempt.context("no attempt")?.pod_name;
    let pods: Api<Pod> = Api::namespaced(rig.world.admin.clone(), &rig.namespace);
    let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": SAID});
    let why = json!({"reason": "Evicted", "message": SAID, "conditions": [target]});
    objects::merge_status(&pods, &pod, &why).await?;
    terminated(&pods, &pod, "Failed", json!({"exitCode": 137, "reason": "Error"})).await
}

async fn eviction_before_claim_retries(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    rig.world.create(&rig.namespace, RUN, &json!({"approval": {"mode": "Automatic"}})).await?;
    let open = |number: u32| {
        move |run: &TerraformRun| status(run).attempt.is_some_and(|attempt| attempt.number == number && attempt.open)
    };
    rig.look("begun", open(1)).await?;
    let agent = rig.token().await?;
    agent.plans(1).await?;
    evict(&rig).await?;
    let closed = status(&rig.look("closed", |run| status(run).attempt.is_some_and(|attempt| !attempt.open)).await?);
    let failure = closed.failure.context("no failure")?;
    ensure!((failure.class, failure.reason.as_str()) == (FailureClass::Interrupted, reason::EVICTED), "{failure:?}");
    ensure!(failure.message.contains(SAID) && failure.changes == Changed::None && closed.result.is_none(), "{failure:?}");
    // After the backoff.
    rig.later(600);
    let again = status(&rig.look("begun again", open(2)).await?).attempt.context("no attempt")?;
    ensure!(again.tries == 2, "{again:?}");
    Ok(())
}

async fn eviction_after_claim_is_indeterminate(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let node = Machine::new(&rig, "n", true).await?;
    applying(&rig, &node).await?;
    evict(&rig).await?;
    let over = |run: &TerraformRun| {
        let status = status(run);
        status.is_terminal() && status.lease.is_none() && status.attempt.iter().all(|attempt| !attempt.open)
    };
    let ended = status(&rig.look("ended and tidied up", over).await?);
    let failure = ended.failure.context("no failure")?;
    ensure!(ended.result == Some(RunResult::Indeterminate) && failure.changes == Changed::Unknown, "{failure:?}");
    ensure!(failure.message.contains(SAID) && ended.next_step.is_some(), "{failure:?}");
    rig.later(600);
    for _ in 0..3 {
        rig.step().await?;
    }
    let later = status(&rig.get().await?);
    ensure!(later.result == ended.result && later.attempt.is_some_and(|attempt| attempt.number == 1), "an attempt followed");
    node.goes().await
}
