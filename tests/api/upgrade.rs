//! Two versions side by side (`design/0014-upgrades.md`): our controller and agent with the CRD of a newer version.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, conditions, names, termination::TerminationMessage};
use jiff::Timestamp;
use kube::{ResourceExt, api::PostParams};
use serde_json::{Value, json};

use crate::{
    newer,
    rig::{Played, RUN, Rig, is_closed, is_open},
    scene::{Scene, record},
    world::{Agent, World, plan, sum, tests},
};

tests! {
    Newer: newer_fields_survive_every_write,
    Newer: unknown_spec_value_waits,
    Newer: unknown_phase_waits,
    Newer: unknown_failure_is_retried_and_preserved,
    Guarded: unknown_value_is_never_stored,
}

/// Ends the pod of an agent that adopted with nonce `0`, without a result.
async fn ends_without_result(rig: &Rig, agent: &Agent) -> Result<()> {
    let message = TerminationMessage {
        run_uid: rig.get().await?.uid().unwrap_or_default(),
        attempt: rig.attempt().await?.number,
        pod_uid: agent.uid.clone(),
        nonce: "0".repeat(32),
        result: None,
        message: "played".into(),
        failure: None,
        unkept: None,
    };
    rig.pod_ended(&message).await
}

const LINE: &str = "10:00:00  Scan  0.1s  a line of a newer version";

/// The newer version's fields are unchanged.
async fn is_there(rig: &Rig, when: &str) -> Result<()> {
    let run = newer::whole(&rig.world, &rig.namespace)
        .get(RUN)
        .await?
        .data;
    for pointer in [
        "/spec/newer",
        "/spec/approval/newer",
        "/status/newer",
        "/status/attempt/newer",
        "/status/plan/newer",
        "/status/steps/0/newer",
    ] {
        ensure!(
            run.pointer(pointer) == Some(&json!("x")),
            "{when}: {pointer} is gone: {run}"
        );
    }
    let holds = |list: &str, wanted: &dyn Fn(&Value) -> bool| {
        run["status"][list]
            .as_array()
            .is_some_and(|all| all.iter().any(wanted))
    };
    ensure!(
        holds("history", &|line| *line == LINE),
        "{when}: the line is gone: {run}"
    );
    ensure!(
        holds("conditions", &|condition| condition["type"] == "Audited"),
        "{when}: the condition is gone: {run}"
    );
    Ok(())
}

async fn newer_fields_survive_every_write(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let runs = newer::whole(&rig.world, &rig.namespace);
    let spec = json!({"newer": "x", "approval": {"newer": "x", "holdFor": "1h"}});
    runs.create(&PostParams::default(), &newer::run(RUN, &spec)?)
        .await?;
    rig.look("opened", is_open(1)).await?;
    // A newer version executes the first attempt, with a controller of its version.
    let agent = rig.token().await?;
    agent.plans(1).await?;
    let mut made = plan(1, 'a');
    (made["newer"], made["bundle"], made["stateKey"]) =
        ("x".into(), sum('b').into(), sum('c').into());
    made["createdAt"] = Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
        .into();
    let step = json!({"name": "scan", "attempt": 1, "startedAt": "2026-01-01T00:00:00Z", "exitCode": 0, "newer": "x"});
    agent
        .status(
            &json!({"phase": "AwaitingApproval", "plan": made, "steps": [step], "history": [LINE]}),
        )
        .await
        .context("plan")?;
    let mut all = rig.status().await?.conditions;
    conditions::set(
        &mut all,
        "Audited",
        Some(true),
        "Newer",
        "",
        Some(1),
        Timestamp::now(),
    );
    let beside = json!({"newer": "x", "attempt": {"newer": "x"}, "conditions": all});
    rig.world.status(&rig.namespace, RUN, &beside).await?;
    is_there(&rig, "before").await?;
    ends_without_result(&rig, &agent).await?;
    let waits = rig.look("waiting without a pod", is_closed).await?;
    ensure!(
        waits.phase == Some(Phase::AwaitingApproval) && waits.result.is_none(),
        "{waits:?}"
    );
    is_there(&rig, "our controller closed the attempt").await?;
    rig.approve().await?;
    let opened = rig.look("opened again", is_open(2)).await?;
    ensure!(
        opened
            .lease
            .as_ref()
            .is_some_and(|lease| lease.state_key == sum('c'))
            && opened.approval.is_some(),
        "{opened:?}"
    );
    is_there(
        &rig,
        "our controller recorded approval and lease, and opened another",
    )
    .await?;
    // From here on, our agent executes it.
    let work = Played::default();
    let mut process = rig.start(rig.token().await?, work.clone()).await?;
    ensure!(process.end().await? == 0 && work.applies.load(Ordering::Relaxed) == 1);
    ensure!(rig.status().await?.result == Some(RunResult::Applied));
    is_there(&rig, "our agent adopted, claimed, applied and ended").await?;
    rig.pod_ended(&process.message()?).await?;
    rig.look("closed", is_closed).await?;
    is_there(&rig, "our controller closed the last attempt").await?;
    rig.annotate(&json!({names::RERUN: "true"})).await?;
    let answered = rig
        .look("answered", |status| status.rerun.is_some())
        .await?;
    is_there(&rig, "our controller answered a rerun").await?;
    let again = runs.get(&answered.rerun.context("no rerun")?).await?.data;
    ensure!(
        again["spec"]["newer"] == "x" && again["spec"]["approval"]["newer"] == "x",
        "a run of another spec: {again}"
    );
    Ok(())
}

async fn unknown_spec_value_waits(world: World) -> Result<()> {
    for spec in [
        json!({"operation": "Refresh"}),
        json!({"approval": {"mode": "TwoPeople"}}),
        json!({"tool": {"name": "Another"}}),
    ] {
        let rig = Rig::new(world.clone()).await?;
        newer::whole(&rig.world, &rig.namespace)
            .create(&PostParams::default(), &newer::run(RUN, &spec)?)
            .await?;
        rig.rests(&format!("{spec}")).await?;
        let run = rig.get().await.context("it can be read")?;
        ensure!(
            run.unknown_word().is_some() && run.status.is_none() && run.finalizers().is_empty(),
            "{spec}: {run:?}"
        );
        rig.annotate(&json!({names::CANCEL: "not even that"}))
            .await?;
        rig.rests(&format!("{spec}, cancelled")).await?;
    }
    Ok(())
}

async fn unknown_phase_waits(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    rig.create(&json!({})).await?;
    rig.look("opened", is_open(1)).await?;
    let phase = async |phase: &str| {
        rig.world
            .status(&rig.namespace, RUN, &json!({"phase": phase}))
            .await
            .context("as newer")
    };
    phase(newer::PHASE).await?;
    rig.rests("an open attempt").await?;
    let work = Played::default();
    let mut process = rig.start(rig.token().await?, work.clone()).await?;
    process.until_read(4).await?;
    rig.rests("an agent that waits").await?;
    ensure!(rig.status().await?.adopted.is_none(), "it was adopted");
    // The newer version has ended its phase, so the run continues.
    phase("Pending").await?;
    rig.until("waiting for an approval", |status| {
        status.phase == Some(Phase::AwaitingApproval)
    })
    .await?;
    rig.approve().await?;
    phase(newer::PHASE).await?;
    rig.rests("an approval").await?;
    rig.world.status(&rig.namespace, RUN, &record('a')).await?;
    ensure!(
        process.end().await? == crds::pod_env::EXIT_NO_RESULT,
        "the agent wrote a result"
    );
    let left = rig.status().await?;
    ensure!(
        left.claim.is_none() && work.applies.load(Ordering::Relaxed) == 0,
        "{left:?}"
    );
    ensure!(
        left.phase == Some(Phase::Unknown) && left.result.is_none(),
        "{left:?}"
    );
    // Our controller does not even judge the end of its pod.
    ends_without_result(&rig, &rig.token().await?).await?;
    rig.rests("a pod that ended").await
}

async fn unknown_failure_is_retried_and_preserved(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    rig.create(&json!({})).await?;
    rig.look("opened", is_open(1)).await?;
    let agent = rig.token().await?;
    agent.status(&agent.adoption(1, '0')).await?;
    let failure = json!({"class": "Quota", "reason": "NewerQuota", "message": "no more of it", "changes": "Reverted"});
    agent.status(&json!({"failure": failure})).await?;
    ends_without_result(&rig, &agent).await?;
    let status = rig.look("closed", is_closed).await?;
    ensure!(
        status.phase == Some(Phase::Pending) && status.result.is_none(),
        "{status:?}"
    );
    let stored = newer::whole(&rig.world, &rig.namespace)
        .get(RUN)
        .await?
        .data["status"]["failure"]
        .clone();
    ensure!(
        stored["class"] == "Quota"
            && stored["changes"] == "Reverted"
            && stored["reason"] == "NewerQuota",
        "{stored}"
    );
    Ok(())
}

/// The last safeguard against a bug in our code: the schema refuses `Unknown`.
async fn unknown_value_is_never_stored(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    scene.pending(RUN, &json!({})).await?;
    let failure = json!({"class": "Unknown", "reason": "X", "message": "x", "changes": "None"});
    let unknown = "Unsupported value";
    let rows = json!([
        ["phase", "admin", {"status": {"phase": "Unknown"}}, unknown],
        ["result", "admin", {"status": {"phase": "Failed", "result": "Unknown"}}, unknown],
        ["class", "admin", {"status": {"failure": failure}}, unknown],
    ]);
    scene.rows(RUN, rows).await?;
    let rows = json!([
        ["operation", "admin", {"create": {"spec": {"operation": "Unknown"}}}, unknown],
        ["mode", "admin", {"create": {"spec": {"approval": {"mode": "Unknown"}}}}, unknown],
        ["tool", "admin", {"create": {"spec": {"tool": {"name": "Unknown"}}}}, unknown],
    ]);
    scene.rows("other", rows).await
}
