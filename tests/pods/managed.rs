//! Managed state: the state of a stack without a backend is in the datastore.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, RunResult, names, reason};
use harness::wait;
use kube::ResourceExt;
use ledger::what;
use serde_json::{Value, json};

use crate::suite::{LATER, SOON, Scene, Test, automatic, gate, holds, with};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "managed::next_runs_find_the_state_and_people_restore_it",
            next_run,
        ),
        Test::new("managed::racing_plans_see_a_whole_apply_or_none", race),
        Test::new(
            "managed::lock_names_its_holder_and_a_person_unlocks_it",
            unlock,
        ),
    ]
}

const STACK: &str = "variable \"words\" {\n  default = \"one\"\n}\nresource \"terraform_data\" \"a\" {\n  input = var.words\n}\n\
                     output \"words\" {\n  value = terraform_data.a.output\n}\n";

/// A run of a stack without a backend.
pub(crate) async fn run(scene: &Scene, name: &str, more: Value) -> Result<()> {
    scene
        .real(
            name,
            STACK,
            with(with(automatic(), json!({"backend": null})), more),
        )
        .await
        .map(drop)
}

/// A person lists the states, reads both versions, and restores the first.
fn people(scene: &Scene) -> Result<()> {
    holds(&scene.read("states")?, "words")?;
    let newest = scene.read("states/words/download")?;
    ensure!(newest.contains("\"two\""), "{newest}");
    let versions: Value = serde_json::from_str(&scene.read("states/words")?)?;
    holds(&versions.to_string(), "version")?;
    let first = scene.read("states/words/download?version=1")?;
    ensure!(
        first.contains("\"one\"") && !first.contains("\"two\""),
        "{first}"
    );
    let restore = "states/words/restore";
    scene
        .refused(&scene.post(restore, &json!({"version": 1})))
        .context("a restore without a reason")?;
    scene
        .paste(&scene.post(
            restore,
            &json!({"version": 1, "reason": "the second was wrong"}),
        ))
        .map(drop)
}

async fn next_run(scene: Scene) -> Result<()> {
    run(&scene, "first", json!({"stack": "words"})).await?;
    let status = scene.ends("first", RunResult::Applied).await?;
    ensure!(
        status
            .history
            .iter()
            .any(|line| line.contains("managed (stack words)")),
        "{:?}",
        status.history
    );
    run(&scene, "second", json!({"stack": "words"})).await?;
    scene.ends("second", RunResult::NoChanges).await?;
    run(
        &scene,
        "third",
        json!({"stack": "words", "variables": [{"name": "words", "value": "two"}]}),
    )
    .await?;
    let status = scene.ends("third", RunResult::Applied).await?;
    ensure!(status.plan.context("no plan")?.summary == "+0 ~1 -0, 1 output");
    people(&scene)?;
    run(&scene, "restored", json!({"stack": "words"})).await?;
    scene.ends("restored", RunResult::NoChanges).await?;
    run(
        &scene,
        "prod",
        json!({"stack": "words", "workspace": "prod"}),
    )
    .await?;
    let status = scene.ends("prod", RunResult::Applied).await?;
    ensure!(
        status.plan.context("no plan")?.summary == "+1 ~0 -0, 1 output",
        "workspaces have states of their own"
    );
    run(
        &scene,
        "gone",
        json!({"stack": "words", "operation": "Destroy"}),
    )
    .await?;
    scene.ends("gone", RunResult::Destroyed).await?;
    run(&scene, "another", json!({"stack": "other"})).await?;
    let status = scene.ends("another", RunResult::Applied).await?;
    ensure!(status.plan.context("no plan")?.summary == "+1 ~0 -0, 1 output");
    Ok(())
}

/// An apply that writes its state after each object, and plans of the same state that start with it. In any order, each plan sees a state
/// with all objects or with none.
async fn race(scene: Scene) -> Result<()> {
    const OBJECTS: u32 = 4;
    let gated = |command: &str| json!({"resources": OBJECTS, "apply_ms": 700, "persist": "each", "commands": {command: [gate()]}});
    let spec = |more: Value| with(json!({"stack": "words", "backend": null}), more);
    let plans = ["p1", "p2", "p3"];
    scene
        .scripted("a", gated("apply"), spec(automatic()))
        .await?;
    for name in plans {
        scene
            .scripted(name, gated("plan"), spec(json!({"operation": "Plan"})))
            .await?;
    }
    // At its gate each has begun its command, and has no lock.
    scene
        .until_ledger("a", what::COMMAND_START, Some("apply"))
        .await?;
    for name in plans {
        scene
            .until_ledger(name, what::COMMAND_START, Some("plan"))
            .await?;
    }
    let [p1, p2, p3] = plans;
    tokio::try_join!(
        scene.open(p1),
        scene.open("a"),
        scene.open(p2),
        scene.open(p3)
    )?;
    scene.ends_within("a", RunResult::Applied, LATER).await?;
    for name in plans {
        let status = scene.ended(name).await?;
        let add = status.plan.as_ref().map(|plan| plan.counts.add);
        match status.result {
            Some(RunResult::Planned) => ensure!(
                add == Some(OBJECTS),
                "{name} saw a part of the apply: {:?}",
                status.plan
            ),
            Some(RunResult::NoChanges) => {}
            _ => anyhow::bail!("{name}: {status:?}"),
        }
        ensure!(
            status.state_lock.is_none()
                && status.attempt.is_some_and(|attempt| attempt.number == 1)
        );
    }
    let state: Value = serde_json::from_str(&scene.read("states/words")?)?;
    ensure!(
        state["lock"].is_null() && scene.starts("a", "apply") == 1,
        "{state}"
    );
    Ok(())
}

async fn unlock(scene: Scene) -> Result<()> {
    // A tool that takes the lock and never ends.
    let script = json!({"commands": {"plan": [{"hold_lock": true}]}});
    scene
        .scripted(
            "a",
            script,
            json!({"stack": "words", "operation": "Plan", "backend": null}),
        )
        .await?;
    let state = || -> Result<Value> { Ok(serde_json::from_str(&scene.read("states/words")?)?) };
    let look = async || Ok(state().is_ok_and(|state| !state["lock"].is_null()));
    wait::until("the plan takes the lock", SOON, look).await?;
    // Another run meets the lock, and names its holder.
    run(&scene, "b", json!({"stack": "words", "operation": "Plan", "approval": {"mode": "Manual"}, "timeouts": {"plan": "30s"}}))
        .await?;
    let status = scene
        .fails("b", FailureClass::StateLocked, reason::STATE_LOCKED, LATER)
        .await?;
    holds(
        &format!("{:?}", status.failure),
        &scene.pod("a").await?.name_any(),
    )?;
    for body in [json!({}), json!({"reason": " "})] {
        scene
            .refused(&scene.post("states/words/unlock", &body))
            .context("an unlock without a reason")?;
    }
    ensure!(!state()?["lock"].is_null(), "it was unlocked");
    scene.paste(&scene.post(
        "states/words/unlock",
        &json!({"reason": "nobody works on it"}),
    ))?;
    let after = state()?;
    ensure!(after["lock"].is_null(), "{after}");
    holds(&after["notes"].to_string(), "nobody works on it")?;
    scene
        .annotate("a", &[(names::CANCEL, Some("seen enough"))])
        .await?;
    Ok(())
}
