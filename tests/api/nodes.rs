//! Deleted nodes in the API: what proves an end, and which node counts.

use anyhow::{Context, Result};
use crds::{RunResult, TerraformRun, conditions, names, reason};
use harness::cluster::objects;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    rig::{RUN, Rig},
    world::{Agent, Test, World, plan},
};

pub(crate) fn tests() -> Vec<Test> {
    let proven = |name, proof: &'static str| Test::new(name, true, move |world| proven(world, proof));
    vec![
        proven("nodes::one_that_is_out_of_service_proves_the_end", "tainted"),
        proven("nodes::one_that_is_deleted_proves_the_end", "deleted"),
        Test::new("nodes::another_keeps_nobodys_lease", true, lease),
        Test::new("nodes::another_keeps_nobodys_lock", true, lock),
    ]
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
        let since = Timestamp::from_second((Timestamp::now() - SignedDuration::from_hours(2)).as_second())?;
        let condition = json!({"type": "Ready", "status": if ready { "True" } else { "Unknown" }, "reason": "Played",
            "message": "played", "lastTransitionTime": since});
        objects::merge_status(&self.nodes, &self.name, &json!({"conditions": [condition]})).await?;
        Ok(())
    }

    pub(crate) async fn goes(&self) -> Result<()> {
        self.nodes.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}

pub(crate) fn says(run: &TerraformRun, reason: &str) -> bool {
    let all = run.status.iter().flat_map(|status| &status.conditions);
    all.into_iter().any(|c| c.type_ == conditions::STALLED && c.status == "True" && c.reason == reason)
}

fn result(run: &TerraformRun) -> Option<RunResult> {
    run.status.as_ref()?.result
}

fn has_lease(run: &TerraformRun) -> bool {
    run.status.as_ref().is_some_and(|status| status.lease.is_some())
}

/// Brings a run, whose pod is on a node, to the claim of its plan.
pub(crate) async fn applying(rig: &Rig, on: &Machine) -> Result<()> {
    let address = format!("http://state.example.com/{}", rig.namespace);
    let spec = json!({"approval": {"mode": "Automatic"}, "backend": {"type": "http", "config": {"address": address}}});
    rig.world.create(&rig.namespace, RUN, &spec).await?;
    let run = rig.look("begun with its lease", |run| has_lease(run) && run.status.iter().any(|s| s.attempt.is_some())).await?;
    let status = run.status.context("no status")?;
    let pod = status.attempt.context("no attempt")?.pod_name;
    let agent = rig.token().await?;
    let binding = json!({"metadata": {"name": pod}, "target": {"kind": "Node", "name": on.name}});
    let pods: Api<Pod> = Api::namespaced(rig.world.admin.clone(), &rig.namespace);
    let _: Value = pods.create_subresource("binding", &pod, &PostParams::default(), &binding).await?;
    adopts(&agent, &on.name).await?;
    let mut made = plan(1, 'a');
    made["stateKey"] = status.lease.context("no lease")?.state_key.into();
    agent.status(&json!({"phase": "Plan"})).await?;
    agent.status(&json!({"plan": made})).await?;
    rig.look("approved", |run| run.status.as_ref().is_some_and(|status| status.approval.is_some())).await?;
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

async fn proven(world: World, proof: &str) -> Result<()> {
    let rig = Rig::new(world).await?;
    let node = Machine::new(&rig, "n", true).await?;
    applying(&rig, &node).await?;
    node.is(false).await?;
    rig.look("said to be on a lost node", |run| says(run, reason::NODE_UNREACHABLE)).await?;
    rig.later(100_000);
    rig.rests("nothing is known of its end").await?;
    if proof == "deleted" {
        node.goes().await?;
    } else {
        let taint = json!([{"key": "node.kubernetes.io/out-of-service", "value": "off", "effect": "NoExecute"}]);
        objects::merge(&node.nodes, &node.name, &json!({"spec": {"taints": taint}})).await?;
    }
    rig.look("about to end", |run| says(run, reason::POD_GONE)).await?;
    rig.later(61);
    let ended = rig.look("ended", |run| result(run).is_some()).await?;
    anyhow::ensure!(result(&ended) == Some(RunResult::Indeterminate), "{:?}", ended.status);
    rig.look("without its lease", |run| !has_lease(run)).await?;
    if proof != "deleted" {
        node.goes().await?;
    }
    Ok(())
}

/// A pod was force-deleted before the present controller saw it. The pod's own node is healthy, and another node is not.
async fn lease(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let (node, ghost) = (Machine::new(&rig, "n", true).await?, Machine::new(&rig, "ghost", false).await?);
    applying(&rig, &node).await?;
    let pods: Api<Pod> = Api::namespaced(rig.world.admin.clone(), &rig.namespace);
    let name = rig.get().await?.status.and_then(|status| status.attempt).context("no attempt")?.pod_name;
    objects::merge(&pods, &name, &json!({"metadata": {"finalizers": null}})).await?;
    pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
    let rig = rig.again().await?;
    rig.look("waited for", |run| says(run, reason::POD_GONE)).await?;
    rig.later(61);
    let run = rig.look("ended", |run| result(run).is_some()).await?;
    anyhow::ensure!(result(&run) == Some(RunResult::Indeterminate) && has_lease(&run), "{:?}", run.status);
    // The grace period of its pod, and a minute.
    rig.later(661);
    rig.look("without its lease", |run| !has_lease(run)).await?;
    for machine in [node, ghost] {
        machine.goes().await?;
    }
    Ok(())
}

/// A stale lock of the first attempt of a run that is at its second.
async fn lock(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let (node, ghost) = (Machine::new(&rig, "n", true).await?, Machine::new(&rig, "ghost", false).await?);
    let holder = rig.world.create(&rig.namespace, "holder", &json!({})).await?;
    let pod = |number: u32| names::attempt_name("holder", &holder.uid().unwrap_or_default(), number);
    let long_ago = Timestamp::from_second((Timestamp::now() - SignedDuration::from_hours(1)).as_second())?;
    let attempt = json!({"number": 2, "podName": pod(2), "open": true, "openedAt": long_ago, "tries": 2,
        "former": [{"number": 1, "nodeName": node.name}]});
    rig.world.status(&rig.namespace, "holder", &json!({"phase": "Pending", "attempt": attempt})).await?;
    rig.world.create(&rig.namespace, RUN, &json!({})).await?;
    rig.look("begun", |run| run.status.as_ref().is_some_and(|status| status.attempt.is_some())).await?;
    let agent = rig.token().await?;
    adopts(&agent, &node.name).await?;
    agent.status(&json!({"phase": "Plan", "stateLock": {"id": "l1", "who": format!("pawl@{}", pod(1))}})).await?;
    let told = |run: &TerraformRun| run.status.as_ref().is_some_and(|status| status.lock_release.is_some());
    rig.look("told that it may release the lock", told).await?;
    for machine in [node, ghost] {
        machine.goes().await?;
    }
    Ok(())
}
