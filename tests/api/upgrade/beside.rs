//! An agent of the release before beside our controller, and our agent beside the controller of the release before.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRun, conditions, names, reason};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{is_closed, is_open, message, status};
use crate::{
    rig::{Played, RUN, Rig, terminated},
    world::{Agent, Place, Test, World, plan, sum},
};

pub(super) fn tests() -> Vec<Test> {
    vec![
        Test::at(Place::Guarded, "upgrade::an_agent_of_the_release_before_is_approved_and_applies", old_agent),
        Test::at(Place::Guarded, "upgrade::an_agent_of_the_release_before_applies_by_itself_and_fails", old_agent_fails),
        Test::at(Place::Guarded, "upgrade::an_image_that_is_too_old_for_the_spec_is_named", image_too_old),
        Test::at(Place::Guarded, "upgrade::beside_a_controller_that_knows_no_leases_an_agent_waits_and_says_so", old_controller),
        Test::at(Place::Guarded, "upgrade::beside_a_controller_that_knows_no_leases_a_plan_without_a_key_is_applied", no_key),
    ]
}

/// A status write of an agent that knows neither keys of states nor journals nor locks: it tests what it always tested.
async fn tested(agent: &Agent, run: &TerraformRun, nonce: char, fields: &Value) -> Result<()> {
    let attempt = status(run).attempt.context("no attempt")?;
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": run.uid()}),
        json!({"op": "test", "path": "/status/attempt/number", "value": attempt.number}),
        json!({"op": "test", "path": "/status/attempt/open", "value": true}),
        json!({"op": "test", "path": "/status/adopted/nonce", "value": nonce.to_string().repeat(32)}),
    ];
    for (field, value) in fields.as_object().into_iter().flatten() {
        operations.push(json!({"op": "add", "path": format!("/status/{field}"), "value": value}));
    }
    let patch = Patch::Json::<()>(serde_json::from_value(Value::Array(operations))?);
    let api: kube::Api<TerraformRun> = kube::Api::namespaced(agent.client.clone(), &agent.namespace);
    api.patch_status(&agent.run, &PatchParams::default(), &patch).await.with_context(|| format!("{fields}"))?;
    Ok(())
}

/// What adopts for an agent that says nothing of what it speaks.
fn old_adoption(agent: &Agent) -> Value {
    let mut adoption = agent.adoption(1, '0');
    adoption["adopted"].as_object_mut().map(|adopted| adopted.remove("speaks"));
    adoption
}

/// What a node says of an agent that does not know a word of its command line.
async fn image_too_old(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let spec = json!({"targets": ["a.b"], "runner": {"image": "runner:old"}});
    rig.world.create(&rig.namespace, RUN, &spec).await?;
    let opened = rig.look("opened", is_open(1)).await?;
    rig.step().await?;
    let pods: kube::Api<Pod> = kube::Api::namespaced(rig.world.admin.clone(), &rig.namespace);
    let name = status(&opened).attempt.context("no attempt")?.pod_name;
    let pod = pods.get(&name).await?;
    let args = pod.spec.and_then(|spec| spec.containers.into_iter().next()).and_then(|container| container.args);
    ensure!(args == Some(vec!["run".into(), "--needs=targets".into()]), "{args:?}");
    terminated(&pods, &name, "Failed", json!({"exitCode": crds::pod_env::EXIT_USAGE, "reason": "Error"})).await?;
    let ended = status(&rig.look("ended", |run| status(run).result.is_some()).await?);
    let failure = ended.failure.context("no failure")?;
    ensure!(ended.result == Some(RunResult::Failed) && failure.reason == reason::IMAGE_TOO_OLD, "{failure:?}");
    ensure!(failure.message.contains("runner:old") && failure.message.ends_with(": targets"), "{failure:?}");
    ensure!(ended.next_step.is_some_and(|next| next.contains("spec.runner.image")), "no next step");
    ensure!(ended.attempt.is_some_and(|attempt| attempt.tries == 1), "it is tried once");
    Ok(())
}

async fn old_agent(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    rig.world.create(&rig.namespace, RUN, &json!({"approval": {"holdFor": "1h"}})).await?;
    let run = rig.look("opened", is_open(1)).await?;
    let agent = rig.token().await?;
    agent.status(&old_adoption(&agent)).await.context("adoption")?;
    for phase in ["Setup", "Init", "Plan"] {
        tested(&agent, &run, '0', &json!({"phase": phase, "message": "as ever"})).await?;
        rig.step().await?;
    }
    tested(&agent, &run, '0', &json!({"phase": "AwaitingApproval", "plan": plan(1, 'a'), "nextStep": "approve"})).await?;
    rig.look("said to be planned", |run| conditions::status(&status(run).conditions, conditions::PLANNED) == Some(true)).await?;
    rig.approve().await?;
    let approved = status(&rig.look("recorded as approved", |run| status(run).approval.is_some()).await?);
    // Nothing is said of a lease: the plan has no key, and its agent would wait for nothing.
    ensure!(approved.lease.is_none() && approved.conditions.iter().all(|c| c.type_ != conditions::STATE_LEASED), "{approved:?}");
    tested(&agent, &run, '0', &agent.claim(1, '0', &sum('a'))).await.context("a claim without a lease on what has no key")?;
    rig.step().await?;
    tested(&agent, &run, '0', &json!({"progress": {"done": 1, "total": 1}})).await?;
    let end = json!({"phase": "Succeeded", "result": "Applied", "message": "applied", "completionTime": "2026-11-22T00:00:00Z"});
    tested(&agent, &run, '0', &end).await?;
    rig.pod_ended(&message(&run, &agent, '0', Some(RunResult::Applied))).await?;
    let ended = status(&rig.look("closed", is_closed).await?);
    ensure!(ended.result == Some(RunResult::Applied) && ended.lease.is_none() && ended.journal.is_none(), "{ended:?}");
    ensure!(conditions::status(&ended.conditions, conditions::FINISHED) == Some(true), "{ended:?}");
    rig.rests("a run that has ended").await
}

async fn old_agent_fails(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let address = format!("http://state.example.com/{}", rig.namespace);
    let spec = json!({"approval": {"mode": "Automatic"}, "backend": {"type": "http", "config": {"address": address}}});
    rig.world.create(&rig.namespace, RUN, &spec).await?;
    let run = rig.look("opened", is_open(1)).await?;
    // What the spec says of the state is enough for the controller to keep others off it.
    ensure!(status(&run).lease.is_some() && status(&run).approval.is_some_and(|record| record.by == "automatic"), "{run:?}");
    let agent = rig.token().await?;
    agent.status(&old_adoption(&agent)).await.context("adoption")?;
    for phase in ["Setup", "Init", "Plan"] {
        tested(&agent, &run, '0', &json!({"phase": phase})).await?;
        rig.step().await?;
    }
    tested(&agent, &run, '0', &json!({"plan": plan(1, 'a')})).await?;
    rig.step().await?;
    tested(&agent, &run, '0', &agent.claim(1, '0', &sum('a'))).await?;
    rig.step().await?;
    let failure =
        json!({"class": "Configuration", "reason": reason::APPLY_FAILED, "message": "it does not work", "changes": "Some"});
    let end = json!({"phase": "Failed", "result": "Failed", "message": "failed", "failure": failure,
        "completionTime": "2026-11-22T00:00:00Z"});
    tested(&agent, &run, '0', &end).await?;
    rig.pod_ended(&message(&run, &agent, '0', Some(RunResult::Failed))).await?;
    let ended = status(&rig.look("closed", is_closed).await?);
    ensure!(ended.result == Some(RunResult::Failed) && ended.lease.is_none(), "{ended:?}");
    ensure!(ended.failure.is_some_and(|failure| failure.reason == reason::APPLY_FAILED));
    rig.rests("a run that has ended").await
}

/// A run whose attempt was opened as the release before opened it, and its pod.
async fn opened_as_before(world: World, spec: &Value) -> Result<(Rig, Agent)> {
    let rig = Rig::new(world).await?;
    rig.world.create(&rig.namespace, RUN, spec).await?;
    rig.world.status(&rig.namespace, RUN, &json!({"phase": "Pending"})).await?;
    let attempt = json!({"number": 1, "podName": "run-a1", "open": true, "tries": 1, "openedAt": "2026-11-22T00:00:00Z"});
    rig.world.status(&rig.namespace, RUN, &json!({"attempt": attempt})).await?;
    if spec["approval"]["mode"] == "Automatic" {
        let record = json!({"by": "automatic", "at": "2026-11-22T00:00:00Z"});
        rig.world.status(&rig.namespace, RUN, &json!({"approval": record})).await?;
    }
    let agent = rig.world.pod(&rig.namespace, "run-a1", "run-a1", RUN).await?;
    Ok((rig, agent))
}

async fn old_controller(world: World) -> Result<()> {
    // Nobody is asked: it waits for as long as a plan may wait, and then says for what.
    let (rig, agent) = opened_as_before(world.clone(), &json!({"approval": {"mode": "Automatic", "expiresAfter": "5s"}})).await?;
    let work = Played { state_key: Some(sum('d')), ..Played::default() };
    let mut process = rig.start(agent, work.clone()).await?;
    process.end().await?;
    let ended = status(&rig.get().await?);
    ensure!(ended.result == Some(RunResult::Expired) && ended.claim.is_none() && ended.plan.is_some(), "{ended:?}");
    ensure!(
        ended.message.as_ref().is_some_and(|said| said.contains("the lease on its state was not to be had in time")),
        "{ended:?}"
    );
    // What was approved does not expire: it says for what it waits, and for how long is a person's to say.
    let (rig, agent) = opened_as_before(world, &json!({"approval": {"expiresAfter": "5m"}})).await?;
    let mut process = rig.start(agent, work.clone()).await?;
    rig.until("waiting", |run| status(run).phase == Some(Phase::AwaitingApproval)).await?;
    rig.approve().await?;
    let record = json!({"checksum": sum('a'), "by": "admin", "at": "2026-11-22T00:00:00Z"});
    rig.world.status(&rig.namespace, RUN, &json!({"approval": record})).await?;
    let names_it = |run: &TerraformRun| {
        status(run).message.is_some_and(|said| said.contains("is approved; waits for the lease on its state"))
    };
    let waits = status(&rig.until("waiting for its lease", names_it).await?);
    ensure!(waits.phase == Some(Phase::AwaitingApproval) && waits.claim.is_none(), "{waits:?}");
    rig.annotate(&json!({names::CANCEL: "upgraded"})).await?;
    process.end().await?;
    let ended = status(&rig.get().await?);
    ensure!(ended.result == Some(RunResult::Canceled) && ended.claim.is_none(), "{ended:?}");
    ensure!(work.applies.load(Ordering::Relaxed) == 0, "it was applied");
    Ok(())
}

async fn no_key(world: World) -> Result<()> {
    let (rig, agent) = opened_as_before(world, &json!({"approval": {"mode": "Automatic"}})).await?;
    let work = Played::default();
    let mut process = rig.start(agent, work.clone()).await?;
    ensure!(process.end().await? == 0 && work.applies.load(Ordering::Relaxed) == 1);
    let ended = status(&rig.get().await?);
    ensure!(ended.result == Some(RunResult::Applied) && ended.lease.is_none(), "{ended:?}");
    Ok(())
}
