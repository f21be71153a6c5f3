//! Two versions side by side (`design/0014-upgrades.md`): our controller and agent with the CRD of a newer version.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRun, TerraformRunStatus, conditions, names, termination::TerminationMessage};
use jiff::Timestamp;
use kube::{ResourceExt, api::PostParams};
use serde_json::{Value, json};

use crate::{
    newer,
    rig::{Played, RUN, Rig},
    world::{Agent, Place, Test, World, plan, refused, sum},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::at(Place::Newer, "upgrade::what_a_newer_version_wrote_survives_every_write", survives),
        Test::at(Place::Newer, "upgrade::an_unknown_word_of_a_spec_means_wait", unknown_spec),
        Test::at(Place::Newer, "upgrade::an_unknown_phase_means_wait", unknown_phase),
        Test::at(Place::Newer, "upgrade::a_failure_in_unknown_words_is_retried_and_keeps_them", unknown_failure),
        Test::at(Place::Guarded, "upgrade::what_we_read_as_unknown_is_never_stored", never_stored),
    ]
}

fn is_open(number: u32) -> impl Fn(&TerraformRun) -> bool {
    move |run| {
        run.status.as_ref().and_then(|s| s.attempt.as_ref()).is_some_and(|attempt| attempt.open && attempt.number == number)
    }
}

fn is_closed(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|s| s.attempt.as_ref()).is_some_and(|attempt| !attempt.open)
}

fn status(run: &TerraformRun) -> TerraformRunStatus {
    run.status.clone().unwrap_or_default()
}

/// The termination message of a process that adopted with this nonce.
fn message(run: &TerraformRun, agent: &Agent, nonce: char, result: Option<RunResult>) -> TerminationMessage {
    TerminationMessage {
        run_uid: run.uid().unwrap_or_default(),
        attempt: status(run).attempt.map_or(0, |attempt| attempt.number),
        pod_uid: agent.uid.clone(),
        nonce: nonce.to_string().repeat(32),
        result,
        message: "played".into(),
        failure: None,
        unkept: None,
    }
}

const LINE: &str = "10:00:00  Scan  0.1s  a line of a newer version";

/// The newer version's fields are unchanged.
async fn is_there(rig: &Rig, when: &str) -> Result<()> {
    let run = newer::whole(&rig.world, &rig.namespace).get(RUN).await?.data;
    for pointer in [
        "/spec/newer",
        "/spec/approval/newer",
        "/status/newer",
        "/status/attempt/newer",
        "/status/plan/newer",
        "/status/steps/0/newer",
    ] {
        ensure!(run.pointer(pointer) == Some(&json!("x")), "{when}: {pointer} is gone: {run}");
    }
    let holds =
        |list: &str, wanted: &dyn Fn(&Value) -> bool| run["status"][list].as_array().is_some_and(|all| all.iter().any(wanted));
    ensure!(holds("history", &|line| *line == LINE), "{when}: the line is gone: {run}");
    ensure!(holds("conditions", &|condition| condition["type"] == "Audited"), "{when}: the condition is gone: {run}");
    Ok(())
}

async fn survives(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let runs = newer::whole(&rig.world, &rig.namespace);
    let spec = json!({"newer": "x", "approval": {"newer": "x", "holdFor": "1h"}});
    runs.create(&PostParams::default(), &newer::run(RUN, &spec)?).await?;
    rig.look("opened", is_open(1)).await?;
    // A newer version executes the first attempt, with a controller of its version.
    let agent = rig.token().await?;
    agent.status(&agent.adoption(1, '0')).await.context("adoption")?;
    for phase in ["Init", "Plan"] {
        agent.status(&json!({"phase": phase})).await?;
    }
    let mut made = plan(1, 'a');
    (made["newer"], made["bundle"], made["stateKey"]) = ("x".into(), sum('b').into(), sum('c').into());
    made["createdAt"] = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    let step = json!({"name": "scan", "attempt": 1, "startedAt": "2026-01-01T00:00:00Z", "exitCode": 0, "newer": "x"});
    agent
        .status(&json!({"phase": "AwaitingApproval", "plan": made, "steps": [step], "history": [LINE]}))
        .await
        .context("plan")?;
    let mut all = status(&rig.get().await?).conditions;
    conditions::set(&mut all, "Audited", Some(true), "Newer", "", Some(1), Timestamp::now());
    let beside = json!({"newer": "x", "attempt": {"newer": "x"}, "conditions": all});
    rig.world.status(&rig.namespace, RUN, &beside).await?;
    is_there(&rig, "before").await?;
    let run = rig.get().await?;
    rig.pod_ended(&message(&run, &agent, '0', None)).await?;
    let waits = rig.look("waiting without a pod", is_closed).await?;
    ensure!(waits.status.as_ref().is_some_and(|s| s.phase == Some(Phase::AwaitingApproval) && s.result.is_none()), "{waits:?}");
    is_there(&rig, "our controller closed the attempt").await?;
    rig.approve().await?;
    let opened = rig.look("opened again", is_open(2)).await?;
    let state = status(&opened);
    ensure!(state.lease.is_some_and(|lease| lease.state_key == sum('c')) && state.approval.is_some(), "{opened:?}");
    is_there(&rig, "our controller recorded approval and lease, and opened another").await?;
    // From here on, our agent executes it.
    let work = Played::default();
    let mut process = rig.start(rig.token().await?, work.clone()).await?;
    ensure!(process.end().await? == 0 && work.applies.load(Ordering::Relaxed) == 1);
    ensure!(status(&rig.get().await?).result == Some(RunResult::Applied));
    is_there(&rig, "our agent adopted, claimed, applied and ended").await?;
    rig.pod_ended(&process.message()?).await?;
    rig.look("closed", is_closed).await?;
    is_there(&rig, "our controller closed the last attempt").await?;
    rig.annotate(&json!({names::RERUN: "true"})).await?;
    let answered = rig.look("answered", |run| status(run).rerun.is_some()).await?;
    is_there(&rig, "our controller answered a rerun").await?;
    let again = runs.get(&status(&answered).rerun.context("no rerun")?).await?.data;
    ensure!(again["spec"]["newer"] == "x" && again["spec"]["approval"]["newer"] == "x", "a run of another spec: {again}");
    Ok(())
}

async fn unknown_spec(world: World) -> Result<()> {
    for spec in
        [json!({"operation": "Refresh"}), json!({"approval": {"mode": "TwoPeople"}}), json!({"tool": {"name": "Another"}})]
    {
        let rig = Rig::new(world.clone()).await?;
        newer::whole(&rig.world, &rig.namespace).create(&PostParams::default(), &newer::run(RUN, &spec)?).await?;
        rig.rests(&format!("{spec}")).await?;
        let run = rig.get().await.context("it can be read")?;
        ensure!(run.unknown_word().is_some() && run.status.is_none() && run.finalizers().is_empty(), "{spec}: {run:?}");
        rig.annotate(&json!({names::CANCEL: "not even that"})).await?;
        rig.rests(&format!("{spec}, cancelled")).await?;
    }
    Ok(())
}

async fn unknown_phase(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    rig.world.create(&rig.namespace, RUN, &json!({})).await?;
    rig.look("opened", is_open(1)).await?;
    let phase = async |phase: &str| rig.world.status(&rig.namespace, RUN, &json!({"phase": phase})).await.context("as newer");
    phase(newer::PHASE).await?;
    rig.rests("an open attempt").await?;
    let work = Played::default();
    let mut process = rig.start(rig.token().await?, work.clone()).await?;
    process.until_read(4).await?;
    rig.rests("an agent that waits").await?;
    ensure!(status(&rig.get().await?).adopted.is_none(), "it was adopted");
    // The newer version has ended its phase, so the run continues.
    phase("Pending").await?;
    rig.until("waiting for an approval", |run| status(run).phase == Some(Phase::AwaitingApproval)).await?;
    rig.approve().await?;
    phase(newer::PHASE).await?;
    rig.rests("an approval").await?;
    let record = json!({"checksum": sum('a'), "by": "admin", "at": "2026-01-01T00:00:00Z"});
    rig.world.status(&rig.namespace, RUN, &json!({"approval": record})).await?;
    ensure!(process.end().await? == crds::pod_env::EXIT_NO_RESULT, "an agent that is beside itself says nothing");
    let left = status(&rig.get().await?);
    ensure!(left.claim.is_none() && work.applies.load(Ordering::Relaxed) == 0, "{left:?}");
    ensure!(left.phase == Some(Phase::Unknown) && left.result.is_none(), "{left:?}");
    // Our controller does not even judge the end of its pod.
    let run = rig.get().await?;
    let agent = rig.token().await?;
    rig.pod_ended(&message(&run, &agent, '0', None)).await?;
    rig.rests("a pod that ended").await
}

async fn unknown_failure(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    rig.world.create(&rig.namespace, RUN, &json!({})).await?;
    rig.look("opened", is_open(1)).await?;
    let agent = rig.token().await?;
    agent.status(&agent.adoption(1, '0')).await?;
    let failure = json!({"class": "Quota", "reason": "NewerQuota", "message": "no more of it", "changes": "Reverted"});
    agent.status(&json!({"failure": failure})).await?;
    let run = rig.get().await?;
    rig.pod_ended(&message(&run, &agent, '0', None)).await?;
    let run = rig.look("closed", is_closed).await?;
    ensure!(status(&run).phase == Some(Phase::Pending) && status(&run).result.is_none(), "{run:?}");
    let stored = newer::whole(&rig.world, &rig.namespace).get(RUN).await?.data["status"]["failure"].clone();
    ensure!(stored["class"] == "Quota" && stored["changes"] == "Reverted" && stored["reason"] == "NewerQuota", "{stored}");
    Ok(())
}

/// The last safeguard against a bug in our code: the schema refuses `Unknown`.
async fn never_stored(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    world.create(&namespace, RUN, &json!({})).await?;
    world.status(&namespace, RUN, &json!({"phase": "Pending"})).await?;
    let failure = json!({"failure": {"class": "Unknown", "reason": "X", "message": "x", "changes": "None"}});
    for (what, change) in
        [("phase", json!({"phase": "Unknown"})), ("result", json!({"phase": "Failed", "result": "Unknown"})), ("class", failure)]
    {
        refused(what, world.status(&namespace, RUN, &change).await, "Unsupported value")?;
    }
    for spec in [json!({"operation": "Unknown"}), json!({"approval": {"mode": "Unknown"}}), json!({"tool": {"name": "Unknown"}})]
    {
        refused(
            &format!("{spec}"),
            newer::whole(&world, &namespace).create(&PostParams::default(), &newer::run("other", &spec)?).await,
            "Unsupported value",
        )?;
    }
    Ok(())
}
