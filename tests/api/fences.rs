//! Tests that a pod's token permits only writes of that pod, without the checks of an honest agent.

pub(crate) mod claims;

use anyhow::{Context, Result};
use crds::{TerraformRun, names, release};
use harness::cluster::objects;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::world::{Agent, Test, World, plan, refused, sum};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("fences::only_the_named_pod_adopts_an_attempt_and_once", true, adoption),
        Test::new("fences::a_replaced_attempt_writes_nothing_more", true, replaced),
        Test::new("fences::controller_fields_are_the_controllers", true, controller_fields),
        Test::new("fences::a_plan_is_written_once_per_attempt", true, plan_once),
        Test::new("fences::what_settles_an_indeterminate_run_is_the_controllers", true, settled),
        Test::new("fences::an_agent_of_another_minor_release_adopts_nothing", true, other_release),
        Test::new("fences::a_token_reaches_its_own_run_and_nothing_else", true, reach),
    ]
}

const RUN: &str = "run";

struct Scene {
    world: World,
    namespace: String,
}

impl Scene {
    async fn new(world: World, spec: Value) -> Result<Self> {
        let namespace = world.namespace().await?;
        world.create(&namespace, RUN, &spec).await?;
        world.status(&namespace, RUN, &json!({"phase": "Pending"})).await?;
        Ok(Self { world, namespace })
    }

    async fn open(&self, number: u32) -> Result<Agent> {
        self.world.open(&self.namespace, RUN, number).await
    }

    /// An adopted attempt with a waiting plan.
    async fn planned(&self) -> Result<Agent> {
        let agent = self.open(1).await?;
        agent.plans(1).await?;
        agent.status(&json!({"phase": "AwaitingApproval", "plan": plan(1, 'a')})).await.context("plan")?;
        Ok(agent)
    }

    async fn annotate(&self, annotations: Value) -> Result<()> {
        let runs = self.world.runs(&self.namespace);
        objects::merge(&runs, RUN, &json!({"metadata": {"annotations": annotations}})).await?;
        Ok(())
    }

    /// Both halves of an approval: the person's annotation and the controller's record.
    async fn approve(&self, digit: char) -> Result<()> {
        self.annotate(json!({names::APPROVE: sum(digit), names::APPROVED_BY: "admin"})).await?;
        self.record(Some(digit)).await
    }

    async fn record(&self, digit: Option<char>) -> Result<()> {
        let record = digit.map(|d| json!({"checksum": sum(d), "by": "admin", "at": "2026-01-01T00:00:00Z"}));
        self.world.status(&self.namespace, RUN, &json!({"approval": record})).await?;
        Ok(())
    }
}

const NOT_THE_POD: &str = "only the pod of the open attempt";

async fn adoption(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let agent = scene.open(1).await?;
    let other = scene.world.pod(&scene.namespace, "another-pod", "run-a1", RUN).await?;
    refused("another pod of the account", other.status(&other.adoption(1, '1')).await, NOT_THE_POD)?;
    let lie = json!({"adopted": {"attempt": 1, "podUID": agent.uid, "nonce": "1".repeat(32)}});
    refused("in the name of the pod", other.status(&lie).await, NOT_THE_POD)?;
    let unbound = scene.world.token(&scene.namespace, "run-a1", &json!({"audiences": []})).await?;
    let unbound = Agent { client: unbound, uid: agent.uid.clone(), namespace: scene.namespace.clone(), run: RUN.into() };
    refused("a token of no pod", unbound.status(&unbound.adoption(1, '1')).await, NOT_THE_POD)?;
    refused("without adoption", agent.status(&json!({"message": "hello"})).await, NOT_THE_POD)?;
    refused("another attempt", agent.status(&agent.adoption(2, '0')).await, NOT_THE_POD)?;
    agent.status(&agent.adoption(1, '0')).await?;
    agent.status(&json!({"message": "hello"})).await?;
    refused("a second process", agent.status(&agent.adoption(1, '1')).await, NOT_THE_POD)?;
    refused("taken off", agent.status(&json!({"adopted": null})).await, NOT_THE_POD)?;
    refused("another pod, afterwards", other.status(&json!({"message": "me too"})).await, NOT_THE_POD)
}

async fn replaced(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let first = scene.planned().await?;
    scene.world.status(&scene.namespace, RUN, &json!({"phase": "Pending", "attempt": {"open": false}})).await?;
    refused("closed", first.status(&json!({"message": "late"})).await, NOT_THE_POD)?;
    let second = scene.open(2).await?;
    refused("before the next adopts", first.status(&json!({"message": "late"})).await, NOT_THE_POD)?;
    refused("adopts the next", first.status(&first.adoption(2, '0')).await, NOT_THE_POD)?;
    second.status(&second.adoption(2, '2')).await?;
    refused("after the next adopted", first.status(&json!({"phase": "Failed", "result": "Failed"})).await, NOT_THE_POD)?;
    second.status(&json!({"message": "mine"})).await?;
    Ok(())
}

async fn controller_fields(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let agent = scene.planned().await?;
    let record = json!({"checksum": sum('a'), "by": "alice", "at": "2026-01-01T00:00:00Z"});
    let condition = json!([{"type": "Approved", "status": "True", "reason": "Approved", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    for (what, status) in [
        ("attempt", json!({"attempt": {"number": 9}})),
        ("attempt removed", json!({"attempt": null})),
        ("approval", json!({"approval": record})),
        ("conditions", json!({"conditions": condition})),
        ("rerun", json!({"rerun": "x"})),
        ("observedGeneration", json!({"observedGeneration": 7})),
        ("restores", json!({"attempt": {"restores": 1}})),
    ] {
        let answer = agent.status(&status).await;
        // A write that closes its own attempt is refused with the same message.
        refused(what, answer, "written by the controller")?;
    }
    Ok(())
}

async fn plan_once(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let agent = scene.planned().await?;
    let text = "an attempt writes its plan once";
    refused("changed", agent.status(&json!({"plan": plan(1, 'b')})).await, text)?;
    refused("removed", agent.status(&json!({"plan": null})).await, text)?;
    refused("of another attempt", agent.status(&json!({"plan": plan(2, 'b')})).await, text)?;
    scene.world.status(&scene.namespace, RUN, &json!({"phase": "Pending", "attempt": {"open": false}})).await?;
    let second = scene.open(2).await?;
    second.status(&second.adoption(2, '2')).await.context("a new attempt leaves the old plan where it is")?;
    refused("as the old attempt", second.status(&json!({"plan": plan(1, 'b')})).await, text)?;
    second.status(&json!({"plan": plan(2, 'b')})).await.context("its own")?;
    Ok(())
}

async fn settled(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let agent = scene.planned().await?;
    scene.approve('a').await?;
    agent.claims(1, '0', 'a').await?;
    let proof = |result: &str| json!({"settled": {"result": result, "message": "done", "at": "2026-01-01T00:00:00Z"}});
    refused("while it runs", agent.status(&proof("Applied")).await, "settled")?;
    let early = scene.world.status(&scene.namespace, RUN, &proof("Applied")).await;
    refused("while it runs, by the controller", early, "settled never changes")?;
    agent.status(&json!({"phase": "Failed", "result": "Indeterminate"})).await.context("the end")?;
    refused("by the agent", agent.status(&proof("Applied")).await, "written by the controller")?;
    scene.world.status(&scene.namespace, RUN, &proof("Applied")).await.context("by the controller")?;
    let text = "settled never changes";
    refused("changed", scene.world.status(&scene.namespace, RUN, &proof("Failed")).await, text)?;
    refused("removed", scene.world.status(&scene.namespace, RUN, &json!({"settled": null})).await, text)
}

async fn other_release(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let agent = scene.open(1).await?;
    let adopts = async |version: Value| {
        let mut adoption = agent.adoption(1, '0');
        adoption["adopted"]["version"] = version;
        agent.status(&adoption).await
    };
    let minor = release::minor();
    for version in [Value::Null, json!(""), json!(minor), json!(format!("{minor}0.1")), json!(format!("1{}", release::VERSION))] {
        refused(&format!("as {version}"), adopts(version).await, release::REFUSED)?;
    }
    adopts(json!(format!("{minor}.999"))).await.context("another patch of this release").map(drop)
}

async fn reach(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let agent = scene.planned().await?;
    scene.world.create(&scene.namespace, "other", &json!({})).await?;
    scene.world.status(&scene.namespace, "other", &json!({"phase": "Pending"})).await?;
    let runs: Api<TerraformRun> = Api::namespaced(agent.client.clone(), &scene.namespace);
    runs.get(RUN).await.context("its own run")?;
    refused("read another run", runs.get("other").await, "forbidden")?;
    refused("list", runs.list(&ListParams::default()).await, "forbidden")?;
    refused("list its own", runs.list(&ListParams::default().fields("metadata.name=run")).await, "forbidden")?;
    let patch = Patch::Merge(json!({"status": {"message": "x"}}));
    refused("write another run", runs.patch_status("other", &PatchParams::default(), &patch).await, "forbidden")?;
    let annotate = Patch::Merge(json!({"metadata": {"annotations": {names::APPROVE: sum('a')}}}));
    refused("annotate", runs.patch(RUN, &PatchParams::default(), &annotate).await, "forbidden")?;
    // The status subresource accepts metadata and drops it.
    let answer = runs.patch_status(RUN, &PatchParams::default(), &annotate).await?;
    anyhow::ensure!(answer.metadata.annotations.is_none_or(|a| !a.contains_key(names::APPROVE)), "annotated by way of /status");
    refused("delete", runs.delete(RUN, &DeleteParams::default()).await.map(|_| ()), "forbidden")?;
    let secrets: Api<Secret> = Api::namespaced(agent.client.clone(), &scene.namespace);
    refused("secrets", secrets.list(&ListParams::default()).await, "forbidden")?;
    let made = crate::world::run("made", &json!({}))?;
    refused("create", runs.create(&PostParams::default(), &made).await, "forbidden")?;
    let _: Client = agent.client;
    Ok(())
}
