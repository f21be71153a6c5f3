//! Writes with a pod's token, without only writes of that pod, without those checks of an honest pod are admitted.

use anyhow::{Context, Result, ensure};
use crds::{TerraformRun, names, release};
use harness::cluster::access::ACTOR;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    scene::{RUN, Scene},
    world::{World, plan, refused, sum, tests},
};

tests! {
    Guarded: only_recorded_pod_adopts_an_attempt_and_once,
    Guarded: pod_of_the_recorded_name_adopts_nothing,
    Guarded: replaced_attempt_writes_nothing,
    Guarded: controller_fields_are_refused_to_agents,
    Guarded: plan_is_written_once_per_attempt,
    Guarded: only_controller_settles_indeterminate_run_and_once,
    Guarded: agent_of_another_minor_release_adopts_nothing,
    Guarded: token_reaches_only_its_own_run,
}

pub(crate) const NOT_THE_POD: &str = "only the pod of the open attempt";

async fn only_recorded_pod_adopts_an_attempt_and_once(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    scene.pending(RUN, &json!({})).await?;
    let agent = scene.open(RUN, 1).await?;
    let other = scene.pod("another-pod", "run-a1", RUN).await?;
    let unbound = scene
        .world
        .token(
            &scene.namespace,
            "run-a1",
            &json!({"audiences": []}),
            Some(ACTOR),
        )
        .await?;
    scene.add("no-pod", unbound);
    let lie = json!({"attempt": 1, "podUID": agent.uid, "nonce": "1".repeat(32)});
    let rows = json!([
        ["another pod of the account", "another-pod", {"status": other.adoption(1, '1')}, NOT_THE_POD],
        ["in the name of the pod", "another-pod", {"status": {"adopted": lie}}, NOT_THE_POD],
        ["a token of no pod", "no-pod", {"status": agent.adoption(1, '1')}, NOT_THE_POD],
        ["a write before adoption", "run-a1", {"status": {"message": "hello"}}, NOT_THE_POD],
        ["another attempt", "run-a1", {"status": agent.adoption(2, '0')}, NOT_THE_POD],
        ["adoption", "run-a1", {"status": agent.adoption(1, '0')}, ""],
        ["a write after adoption", "run-a1", {"status": {"message": "hello"}}, ""],
        ["a second process", "run-a1", {"status": agent.adoption(1, '1')}, NOT_THE_POD],
        ["removed", "run-a1", {"status": {"adopted": null}}, NOT_THE_POD],
        ["another pod, afterwards", "another-pod", {"status": {"message": "me too"}}, NOT_THE_POD],
    ]);
    scene.rows(RUN, rows).await
}

/// A user who may create and delete pods creates one of the next attempt's name beforehand, or puts one in place of the controller's.
async fn pod_of_the_recorded_name_adopts_nothing(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    scene.pending(RUN, &json!({})).await?;
    let foreign = scene.pod("run-a1", "foreign", RUN).await?;
    let adoption = json!({"status": foreign.adoption(1, '1')});
    let opened = |pod: Option<&str>| json!({"attempt": {"number": 1, "podName": "run-a1", "podUID": pod, "open": true, "tries": 1}});
    for pod in [None, Some("7d1b2f6e-58a5-4a3c-8f0c-5e2f3a9d1c42")] {
        scene.status(RUN, opened(pod)).await?;
        let rows = json!([["its pod is another", "run-a1", adoption, NOT_THE_POD]]);
        scene.rows(RUN, rows).await?;
    }
    // Also not after the adoption, in the words of the process that adopted.
    let real = scene.pod("real", "run-a1", RUN).await?;
    scene.status(RUN, opened(Some(&real.uid))).await?;
    let rows = json!([
        ["adoption", "real", {"status": real.adoption(1, '0')}, ""],
        ["a pod of the name", "run-a1", {"status": {"message": "me"}}, NOT_THE_POD],
        ["a pod of the name, as the other", "run-a1", {"status": real.adoption(1, '0')}, NOT_THE_POD],
    ]);
    scene.rows(RUN, rows).await
}

async fn replaced_attempt_writes_nothing(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let first = scene.waiting(RUN, &json!({})).await?;
    scene.close(RUN).await?;
    let rows = json!([["closed", "run-a1", {"status": {"message": "late"}}, NOT_THE_POD]]);
    scene.rows(RUN, rows).await?;
    let second = scene.open(RUN, 2).await?;
    let end = json!({"phase": "Failed", "result": "Failed"});
    let rows = json!([
        ["before the next adopts", "run-a1", {"status": {"message": "late"}}, NOT_THE_POD],
        ["adopts the next", "run-a1", {"status": first.adoption(2, '0')}, NOT_THE_POD],
        ["the next adopts", "run-a2", {"status": second.adoption(2, '2')}, ""],
        ["after the next adopted", "run-a1", {"status": end}, NOT_THE_POD],
        ["the next", "run-a2", {"status": {"message": "mine"}}, ""],
    ]);
    scene.rows(RUN, rows).await
}

async fn controller_fields_are_refused_to_agents(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    scene.waiting(RUN, &json!({})).await?;
    let time = "2026-01-01T00:00:00Z";
    let record = json!({"checksum": sum('a'), "by": "alice", "at": time});
    let condition = json!({"type": "Approved", "status": "True", "reason": "Approved", "message": "",
        "lastTransitionTime": time});
    // A write that closes its own attempt is refused with the same message.
    let message = "written by the controller";
    let rows = json!([
        ["attempt", "run-a1", {"status": {"attempt": {"number": 9}}}, message],
        ["attempt removed", "run-a1", {"status": {"attempt": null}}, message],
        ["approval", "run-a1", {"status": {"approval": record}}, message],
        ["conditions", "run-a1", {"status": {"conditions": [condition]}}, message],
        ["rerun", "run-a1", {"status": {"rerun": "x"}}, message],
        ["observedGeneration", "run-a1", {"status": {"observedGeneration": 7}}, message],
        ["restores", "run-a1", {"status": {"attempt": {"restores": 1}}}, message],
    ]);
    scene.rows(RUN, rows).await
}

async fn plan_is_written_once_per_attempt(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    scene.waiting(RUN, &json!({})).await?;
    let once = "an attempt writes its plan once";
    let rows = json!([
        ["changed", "run-a1", {"status": {"plan": plan(1, 'b')}}, once],
        ["removed", "run-a1", {"status": {"plan": null}}, once],
        ["of another attempt", "run-a1", {"status": {"plan": plan(2, 'b')}}, once],
    ]);
    scene.rows(RUN, rows).await?;
    scene.close(RUN).await?;
    let second = scene.open(RUN, 2).await?;
    let rows = json!([
        ["adoption keeps the old plan", "run-a2", {"status": second.adoption(2, '2')}, ""],
        ["as the old attempt", "run-a2", {"status": {"plan": plan(1, 'b')}}, once],
        ["its own", "run-a2", {"status": {"plan": plan(2, 'b')}}, ""],
    ]);
    scene.rows(RUN, rows).await
}

async fn only_controller_settles_indeterminate_run_and_once(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let agent = scene.waiting(RUN, &json!({})).await?;
    scene.approve(RUN).await?;
    let proof =
        |result: &str| json!({"result": result, "message": "done", "at": "2026-01-01T00:00:00Z"});
    let once = "settled never changes";
    let rows = json!([
        ["claim", "run-a1", {"status": agent.claim(1, '0', 'a')}, ""],
        ["while it applies", "run-a1", {"status": {"settled": proof("Applied")}}, "settled"],
        ["while it applies", "admin", {"status": {"settled": proof("Applied")}}, once],
        ["end", "run-a1", {"status": {"phase": "Failed", "result": "Indeterminate"}}, ""],
        ["afterwards", "run-a1", {"status": {"settled": proof("Applied")}}, "written by the controller"],
        ["afterwards", "admin", {"status": {"settled": proof("Applied")}}, ""],
        ["changed", "admin", {"status": {"settled": proof("Failed")}}, once],
        ["removed", "admin", {"status": {"settled": null}}, once],
    ]);
    scene.rows(RUN, rows).await
}

async fn agent_of_another_minor_release_adopts_nothing(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    scene.pending(RUN, &json!({})).await?;
    let agent = scene.open(RUN, 1).await?;
    let as_version = |version: Value| {
        let mut adoption = agent.adoption(1, '0');
        adoption["adopted"]["version"] = version;
        adoption
    };
    let (minor, whole) = (release::minor(), release::VERSION);
    let rows = json!([
        ["no version", "run-a1", {"status": as_version(Value::Null)}, release::REFUSED],
        ["an empty version", "run-a1", {"status": as_version(json!(""))}, release::REFUSED],
        ["no patch", "run-a1", {"status": as_version(json!(minor))}, release::REFUSED],
        ["a longer minor", "run-a1", {"status": as_version(json!(format!("{minor}0.1")))}, release::REFUSED],
        ["a longer major", "run-a1", {"status": as_version(json!(format!("1{whole}")))}, release::REFUSED],
        ["another patch", "run-a1", {"status": as_version(json!(format!("{minor}.999")))}, ""],
    ]);
    scene.rows(RUN, rows).await
}

async fn token_reaches_only_its_own_run(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let agent = scene.waiting(RUN, &json!({})).await?;
    scene.pending("other", &json!({})).await?;
    let rows = json!([
        ["get", "run-a1", {"get": ""}, ""],
        ["list", "run-a1", {"list": null}, "forbidden"],
        ["list its own", "run-a1", {"list": "metadata.name=run"}, "forbidden"],
        ["annotate", "run-a1", {"annotate": {names::APPROVE: sum('a')}}, "forbidden"],
        ["delete", "run-a1", {"delete": ""}, "forbidden"],
    ]);
    scene.rows(RUN, rows).await?;
    let rows = json!([
        ["get", "run-a1", {"get": ""}, "forbidden"],
        ["status", "run-a1", {"status": {"message": "x"}}, "forbidden"],
    ]);
    scene.rows("other", rows).await?;
    let rows = json!([["create", "run-a1", {"create": {}}, "forbidden"]]);
    scene.rows("made", rows).await?;
    // The status subresource accepts metadata and drops it.
    let runs: Api<TerraformRun> = Api::namespaced(agent.client.clone(), &scene.namespace);
    let annotate = Patch::Merge(json!({"metadata": {"annotations": {names::APPROVE: sum('a')}}}));
    let run = runs
        .patch_status(RUN, &PatchParams::default(), &annotate)
        .await
        .context("status")?;
    ensure!(
        run.metadata
            .annotations
            .is_none_or(|a| !a.contains_key(names::APPROVE)),
        "annotated by way of /status"
    );
    let secrets: Api<Secret> = Api::namespaced(agent.client.clone(), &scene.namespace);
    refused(
        "secrets",
        secrets.list(&ListParams::default()).await,
        "forbidden",
    )
}
