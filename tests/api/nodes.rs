//! Deleted nodes in the API: what proves an end, and which node counts.

use anyhow::{Context, Result, ensure};
use crds::{RunResult, TerraformRunStatus as Status, names, reason};
use harness::cluster::objects;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    rig::{Rig, is_open, stalls},
    world::{Agent, World, plan, tests},
};

tests! {
    Guarded: out_of_service_node_proves_the_end,
    Guarded: deleted_node_proves_the_end,
    Guarded: unready_node_of_others_keeps_no_lease,
    Guarded: unready_node_of_others_keeps_no_lock,
}

/// A node whose condition Ready has been unchanged for two hours.
pub(crate) struct Machine {
    nodes: Api<Node>,
    name: String,
}

impl Machine {
    pub(crate) async fn new(rig: &Rig, word: &str, ready: bool) -> Result<Self> {
        let nodes: Api<Node> = Api::all(rig.world.admin.clone());
        let name = format!("{}-{word}", rig.namespace);
        objects::create(&nodes, json!({"metadata": {"name": name}})).await?;
        let machine = Self { nodes, name };
        machine.is(ready).await?;
        Ok(machine)
    }

    async fn is(&self, ready: bool) -> Result<()> {
        let since =
            Timestamp::from_second((Timestamp::now() - SignedDuration::from_hours(2)).as_second())?;
        let condition = json!({"type": "Ready", "status": if ready { "True" } else { "Unknown" }, "reason": "Played",
            "message": "played", "lastTransitionTime": since});
        objects::merge_status(&self.nodes, &self.name, &json!({"conditions": [condition]})).await?;
        Ok(())
    }

    pub(crate) async fn goes(&self) -> Result<()> {
        self.nodes
            .delete(&self.name, &DeleteParams::default())
            .await?;
        Ok(())
    }
}

fn has_lease(status: &Status) -> bool {
    status.lease.is_some()
}

/// Brings a run, whose pod is on a node, to the claim of its plan.
pub(crate) async fn applying(rig: &Rig, on: &Machine) -> Result<()> {
    let address = format!("http://state.example.com/{}", rig.namespace);
    let spec = json!({"approval": {"mode": "Automatic"}, "backend": {"type": "http", "config": {"address": address}}});
    rig.create(&spec).await?;
    let status = rig
        .look("opened with its lease", |status| {
            has_lease(status) && is_open(1)(status)
        })
        .await?;
    let pod = status.attempt.context("no attempt")?.pod_name;
    let agent = rig.token().await?;
    let binding = json!({"metadata": {"name": pod}, "target": {"kind": "Node", "name": on.name}});
    let _: Value = rig
        .pods()
        .create_subresource("binding", &pod, &PostParams::default(), &binding)
        .await?;
    adopts(&agent, &on.name).await?;
    let mut made = plan(1, 'a');
    made["stateKey"] = status.lease.context("no lease")?.state_key.into();
    agent.status(&json!({"phase": "Plan"})).await?;
    agent.status(&json!({"plan": made})).await?;
    rig.look("approved", |status| status.approval.is_some())
        .await?;
    agent.claims(1, '0', 'a').await.context("claim")?;
    Ok(())
}

/// Adopts as an agent on this node.
async fn adopts(agent: &Agent, node: &str) -> Result<()> {
    let mut adoption = agent.adoption(1, '0');
    adoption["adopted"]["nodeName"] = node.into();
    agent.status(&adoption).await.context("adoption")?;
    agent.status(&json!({"phase": "Init"})).await?;
    Ok(())
}

async fn out_of_service_node_proves_the_end(world: World) -> Result<()> {
    proven(world, false).await
}

async fn deleted_node_proves_the_end(world: World) -> Result<()> {
    proven(world, true).await
}

async fn proven(world: World, deleted: bool) -> Result<()> {
    let rig = Rig::new(world).await?;
    let node = Machine::new(&rig, "n", true).await?;
    applying(&rig, &node).await?;
    node.is(false).await?;
    rig.look("said to be on a lost node", |status| {
        stalls(status, reason::NODE_UNREACHABLE)
    })
    .await?;
    rig.later(100_000);
    rig.rests("nothing is known of its end").await?;
    if deleted {
        node.goes().await?;
    } else {
        let taint = json!([{"key": "node.kubernetes.io/out-of-service", "value": "off", "effect": "NoExecute"}]);
        objects::merge(&node.nodes, &node.name, &json!({"spec": {"taints": taint}})).await?;
    }
    rig.look("about to end", |status| stalls(status, reason::POD_GONE))
        .await?;
    rig.later(61);
    let ended = rig.look("ended", |status| status.result.is_some()).await?;
    ensure!(ended.result == Some(RunResult::Indeterminate), "{ended:?}");
    rig.look("without its lease", |status| !has_lease(status))
        .await?;
    if !deleted {
        node.goes().await?;
    }
    Ok(())
}

/// A pod was force-deleted before the present controller saw it. The pod's own node is healthy, and another node is not.
async fn unready_node_of_others_keeps_no_lease(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let (node, ghost) = (
        Machine::new(&rig, "n", true).await?,
        Machine::new(&rig, "ghost", false).await?,
    );
    applying(&rig, &node).await?;
    let (name, pods) = (rig.attempt().await?.pod_name, rig.pods());
    objects::merge(&pods, &name, &json!({"metadata": {"finalizers": null}})).await?;
    pods.delete(&name, &DeleteParams::default().grace_period(0))
        .await?;
    let rig = rig.again().await?;
    rig.look("waited for", |status| stalls(status, reason::POD_GONE))
        .await?;
    rig.later(61);
    let ended = rig.look("ended", |status| status.result.is_some()).await?;
    ensure!(
        ended.result == Some(RunResult::Indeterminate) && has_lease(&ended),
        "{ended:?}"
    );
    // The grace period of its pod, and a minute.
    rig.later(661);
    rig.look("without its lease", |status| !has_lease(status))
        .await?;
    for machine in [node, ghost] {
        machine.goes().await?;
    }
    Ok(())
}

/// A stale lock of the first attempt of a run that is at its second.
async fn unready_node_of_others_keeps_no_lock(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let (node, ghost) = (
        Machine::new(&rig, "n", true).await?,
        Machine::new(&rig, "ghost", false).await?,
    );
    let holder = rig
        .world
        .create(&rig.namespace, "holder", &json!({}))
        .await?;
    let pod =
        |number: u32| names::attempt_name("holder", &holder.uid().unwrap_or_default(), number);
    let long_ago =
        Timestamp::from_second((Timestamp::now() - SignedDuration::from_hours(1)).as_second())?;
    let attempt = json!({"number": 2, "podName": pod(2), "open": true, "openedAt": long_ago, "tries": 2,
        "former": [{"number": 1, "nodeName": node.name}]});
    rig.world
        .status(
            &rig.namespace,
            "holder",
            &json!({"phase": "Pending", "attempt": attempt}),
        )
        .await?;
    rig.create(&json!({})).await?;
    rig.look("opened", is_open(1)).await?;
    let agent = rig.token().await?;
    adopts(&agent, &node.name).await?;
    agent
        .status(
            &json!({"phase": "Plan", "stateLock": {"id": "l1", "who": format!("pawl@{}", pod(1))}}),
        )
        .await?;
    rig.look("told that it may release the lock", |status| {
        status.lock_release.is_some()
    })
    .await?;
    for machine in [node, ghost] {
        machine.goes().await?;
    }
    Ok(())
}
