//! One apply at a time on a state, in a namespace and in those that share its states. The others queue visibly.

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRunStatus, conditions, reason};
use harness::wait;
use kube::ResourceExt;
use ledger::what;
use serde_json::{Value, json};

use crate::suite::{LATER, SOON, Scene, Test, automatic, condition, gate, gated, holds, with};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "leases::sharing_namespaces_apply_one_after_the_other",
            sharing,
        ),
        Test::new(
            "leases::separate_namespaces_do_not_wait_for_each_other",
            apart,
        ),
        Test::new("leases::approved_plan_waits_for_its_turn", approved),
        Test::new("leases::pod_of_a_removed_run_is_waited_for", removed),
    ]
}

/// An automatic run on a state.
fn on(backend: &Value) -> Value {
    with(automatic(), json!({"backend": backend}))
}

/// Whether the run reports that it waits for its turn, and behind which run.
fn queued(status: &TerraformRunStatus, behind: &str) -> bool {
    let of = condition(status, conditions::STATE_LEASED, "False", reason::QUEUED);
    of.is_some_and(|condition| condition.message.contains(behind))
}

/// Waits until the lease is released, just after the end, when the attempt is closed.
async fn given_back(scene: &Scene, name: &str) -> Result<()> {
    scene
        .until(name, "without its lease", SOON, |s| s.lease.is_none())
        .await
        .map(drop)
}

async fn sharing(scene: Scene) -> Result<()> {
    let backend = scene.backend("shared");
    let (scene, other) = (
        scene.suite.sharing(&scene, "a").await?,
        scene.suite.sharing(&scene, "b").await?,
    );
    scene
        .scripted("a", json!({"resources": gated(6)}), on(&backend))
        .await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    other
        .scripted("b", json!({"resources": 7}), on(&backend))
        .await?;
    let first = scene.path("a");
    let status = other
        .until("b", "queued", SOON, |s| queued(s, &first))
        .await?;
    holds(
        status.message.as_deref().unwrap_or_default(),
        &format!("waits for its turn on the state behind {first}"),
    )?;
    ensure!(
        other.pod_names("b").await?.is_empty(),
        "it waits without a pod"
    );
    scene.open("a").await?;
    scene.ends("a", RunResult::Applied).await?;
    let status = other.ends_within("b", RunResult::Applied, LATER).await?;
    given_back(&other, "b").await?;
    ensure!(
        status.plan.context("no plan")?.counts.add == 1,
        "it was planned on what the run before it left"
    );
    ensure!(
        scene.starts("a", "apply") == 1
            && other.starts("b", "apply") == 1
            && other.starts("b", "plan") == 1
    );
    Ok(())
}

async fn apart(scene: Scene) -> Result<()> {
    let other = scene.suite.beside(&scene, "b").await?;
    let backend = scene.backend("shared");
    scene
        .scripted("a", json!({"resources": gated(6)}), on(&backend))
        .await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    // The same state through a backend without a lock: only leases are left.
    let mut unlocked = backend;
    (
        unlocked["config"]["lock_address"],
        unlocked["config"]["unlock_address"],
    ) = (Value::Null, Value::Null);
    other
        .scripted(
            "b",
            json!({"resources": 7, "commands": {"apply": [gate()]}}),
            on(&unlocked),
        )
        .await?;
    let status = other.phase("b", Phase::Apply).await?;
    let first = scene.status("a").await?;
    ensure!(
        first.phase == Some(Phase::Apply),
        "it has to be in mid-apply by now: {first:?}"
    );
    let key =
        |status: &TerraformRunStatus| status.lease.as_ref().map(|lease| lease.state_key.clone());
    ensure!(
        key(&first).is_some() && key(&first) == key(&status),
        "two states: {first:?} and {status:?}"
    );
    ensure!(
        status
            .history
            .iter()
            .any(|line| line.contains("no lock: others may change the state")),
        "{:?}",
        status.history
    );
    ensure!(
        first.history.iter().all(|line| !line.contains("no lock")),
        "{:?}",
        first.history
    );
    // Neither run's status contains the other's name.
    for (status, stranger) in [(&status, scene.path("a")), (&first, other.path("b"))] {
        let text = serde_json::to_string(status)?;
        ensure!(!text.contains(&stranger), "{text}");
    }
    scene.open("a").await?;
    scene.ends("a", RunResult::Applied).await?;
    other.open("b").await?;
    other
        .fails(
            "b",
            crds::FailureClass::StalePlan,
            reason::STALE_PLAN,
            LATER,
        )
        .await
        .map(drop)
}

async fn approved(scene: Scene) -> Result<()> {
    let backend = scene.backend("shared");
    // It takes its lock only after the gate. The other run is newer, so nothing supersedes it.
    scene
        .scripted(
            "a",
            json!({"resources": 1, "commands": {"apply": [gate()]}}),
            on(&backend),
        )
        .await?;
    scene.phase("a", Phase::Apply).await?;
    let manual = json!({"backend": backend, "approval": {"holdFor": "1s"}});
    scene
        .scripted("held", json!({"resources": 1}), manual)
        .await?;
    scene.phase("held", Phase::AwaitingApproval).await?;
    let waiting = super::stored::released(&scene, "held").await?;
    super::stored::approve_waiting(&scene, &waiting)?;
    let first = scene.path("a");
    let status = scene
        .until("held", "queued", SOON, |s| queued(s, &first))
        .await?;
    holds(
        status.message.as_deref().unwrap_or_default(),
        "is approved; waits for its turn",
    )?;
    ensure!(
        status.attempt.is_some_and(|attempt| attempt.number == 1),
        "no pod before its turn"
    );
    scene.open("a").await?;
    scene.ends("a", RunResult::Applied).await?;
    // The state changed under the approved plan, which is applied unchanged or not at all.
    let status = scene
        .fails(
            "held",
            crds::FailureClass::StalePlan,
            reason::STALE_PLAN,
            LATER,
        )
        .await?;
    // The run reported this before the attempt, with the run that applied.
    let planned = status
        .conditions
        .iter()
        .find(|c| c.type_ == crds::conditions::PLANNED)
        .context("no condition")?;
    ensure!(
        planned.reason == reason::STALE_PLAN
            && planned.message.starts_with(&format!("run {first} applied")),
        "{planned:?}"
    );
    ensure!(status.failure.context("no failure")?.changes == crds::Changed::None);
    given_back(&scene, "held").await
}

async fn removed(scene: Scene) -> Result<()> {
    let backend = scene.backend("shared");
    scene
        .scripted("a", json!({"resources": gated(12)}), on(&backend))
        .await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    let pod = scene.pod("a").await?.name_any();
    // An administrator removes the finalizer and the run during its apply.
    scene.kubectl(&["delete", "tfrun", "a", "--wait=false"])?;
    scene.kubectl(&[
        "patch",
        "tfrun",
        "a",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":null}}"#,
    ])?;
    scene
        .scripted("b", json!({"resources": 12}), on(&backend))
        .await?;
    scene
        .until("b", "queued behind the pod", SOON, |s| {
            queued(s, "which was removed while its pod still runs")
        })
        .await?;
    ensure!(scene.pod_names("b").await?.is_empty());
    scene.open("a").await?;
    let look = async || {
        let found = scene
            .pods()
            .get_opt(&pod)
            .await?
            .and_then(|pod| pod.status)
            .and_then(|status| status.phase);
        Ok(found.is_none_or(|phase| phase != "Running"))
    };
    wait::until("the pod ends", LATER, look).await?;
    let status = scene.ended("b").await?;
    ensure!(status.phase == Some(Phase::Succeeded), "{status:?}");
    Ok(())
}
