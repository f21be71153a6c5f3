//! The datastore is down, returns, or returns with other keys. These tests take it from the whole cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, Phase, RunResult, TerraformRunStatus, reason};
use harness::wait;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use ledger::what;
use serde_json::json;

use crate::{
    guide::served,
    hooks,
    stored::{approve_waiting, released},
    suite::{GATE, LATER, SOON, Scene, TIMEOUT, Test, automatic, gate, gated, holds},
};

pub(crate) fn alone() -> Vec<Test> {
    vec![
        Test::new("outages::short_outage_delays_plans_and_states", for_a_while),
        Test::new(
            "outages::long_outage_fails_or_retries_and_loses_no_approval",
            too_long,
        ),
        Test::new(
            "outages::short_outage_delays_a_state_write_and_a_restore",
            short,
        ),
        Test::new(
            "outages::late_proof_settles_and_a_namespace_is_deleted",
            unproven,
        ),
        Test::new(
            "outages::waiting_plan_survives_a_restart_of_both",
            restarted,
        ),
        Test::new(
            "outages::datastore_with_another_key_is_not_ready",
            another_key,
        ),
    ]
}

const SYSTEM: &str = "pawl-system";
const DEPLOYMENT: &str = "deployment/pawl-datastore";
const KEYRING: &str = "pawl-datastore-keyring";

/// Stops the datastore and waits until it is down.
pub(crate) async fn away(scene: &Scene) -> Result<()> {
    scene
        .suite
        .cluster
        .kubectl(&["-n", SYSTEM, "scale", DEPLOYMENT, "--replicas=0"])?;
    no_pods(scene, "app.kubernetes.io/component=datastore").await
}

/// Waits until the release has no pods with these labels.
pub(crate) async fn no_pods(scene: &Scene, labels: &str) -> Result<()> {
    let look = async || Ok(scene.system_pods(labels).await?.is_empty());
    wait::until(format!("the pods of the release end: {labels}"), SOON, look).await
}

/// Starts it again and waits until it responds.
pub(crate) fn back(scene: &Scene) -> Result<()> {
    let cluster = &scene.suite.cluster;
    cluster.kubectl(&["-n", SYSTEM, "scale", DEPLOYMENT, "--replicas=1"])?;
    cluster.kubectl(&["-n", SYSTEM, "rollout", "status", DEPLOYMENT, TIMEOUT])?;
    Ok(())
}

async fn for_a_while(scene: Scene) -> Result<()> {
    scene
        .scripted(
            "a",
            json!({"commands": {"plan": [gate()]}}),
            json!({"approval": {"holdFor": "1h"}}),
        )
        .await?;
    // Two runs with managed states: one is about to lock and read its state, the other to release its lock.
    let managed =
        |stack: &str| json!({"stack": stack, "backend": null, "approval": {"mode": "Automatic"}});
    scene
        .scripted(
            "reads",
            json!({"commands": {"plan": [gate()]}}),
            managed("reads"),
        )
        .await?;
    let fails = json!([{"address": "terraform_data.a"}, {"address": "terraform_data.b", "steps": [gate(), {"diagnostic": {"summary": "no"}}]}]);
    scene
        .scripted(
            "unlocks",
            json!({"resources": fails, "persist": "each"}),
            managed("unlocks"),
        )
        .await?;
    scene.scripted("ended", json!({}), automatic()).await?;
    scene.ends("ended", RunResult::Applied).await?;
    for name in ["a", "reads"] {
        scene.phase(name, Phase::Plan).await?;
    }
    let written = async || {
        Ok(scene
            .read("states/unlocks")
            .is_ok_and(|state| state.contains("\"number\"")))
    };
    wait::until("the first object is in the state", SOON, written).await?;
    away(&scene).await?;
    for name in ["a", "reads", "unlocks"] {
        scene.open(name).await?;
    }
    scene
        .until_ledger("a", what::COMMAND_END, Some("plan"))
        .await?;
    // A run is deleted even if its stored data cannot be deleted yet.
    scene.kubectl(&["delete", "tfrun", "ended", "--wait=false"])?;
    let gone = scene.gone("ended").await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let meanwhile = (
        scene.status("a").await?.phase,
        scene.status("reads").await?.phase,
        scene.status("unlocks").await?.phase,
    );
    back(&scene)?;
    gone?;
    ensure!(
        meanwhile == (Some(Phase::Plan), Some(Phase::Plan), Some(Phase::Apply)),
        "the plan waits and is with no datastore: {meanwhile:?}"
    );
    let status = scene
        .ends_within("reads", RunResult::Applied, LATER)
        .await?;
    ensure!(
        status.attempt.is_some_and(|attempt| attempt.number == 1)
            && scene.starts("reads", "plan") == 1
    );
    let status = scene
        .ends_within("unlocks", RunResult::Failed, LATER)
        .await?;
    ensure!(
        status
            .failure
            .as_ref()
            .is_some_and(|failure| failure.class == FailureClass::Configuration),
        "{:?}",
        status.failure
    );
    for stack in ["reads", "unlocks"] {
        let state: serde_json::Value =
            serde_json::from_str(&scene.read(&format!("states/{stack}"))?)?;
        ensure!(state["lock"].is_null(), "{state}");
    }
    scene.phase("a", Phase::AwaitingApproval).await?;
    let status = scene.status("a").await?;
    ensure!(
        status.attempt.as_ref().is_some_and(|a| a.number == 1) && scene.starts("a", "plan") == 1,
        "{status:?}"
    );
    approve_waiting(&scene, &status)?;
    scene.ends("a", RunResult::Applied).await?;
    // The agent's retries do not appear in the tool's log.
    let log = scene.log("a").await?;
    ensure!(
        !log.contains("is sent again") && !log.lines().any(|line| line.starts_with('{')),
        "{log}"
    );
    Ok(())
}

/// One outage that exceeds all time limits, for runs at four places. Burrito 11.16: a plan's output was lost when it could not be stored,
/// and the run continued.
async fn too_long(scene: Scene) -> Result<()> {
    scene
        .scripted("at", json!({}), json!({"approval": {"holdFor": "1h"}}))
        .await?;
    let waiting = scene.phase("at", Phase::AwaitingApproval).await?;
    scene
        .scripted("behind", json!({"resources": gated(2)}), automatic())
        .await?;
    scene
        .scripted(
            "restored",
            json!({}),
            json!({"approval": {"holdFor": "0s"}}),
        )
        .await?;
    let kept = released(&scene, "restored").await?;
    scene.until_ledger("behind", what::RESOURCE, None).await?;
    away(&scene).await?;
    let at = |number: u32| {
        move |s: &TerraformRunStatus| {
            s.attempt
                .as_ref()
                .is_some_and(|attempt| attempt.number == number)
        }
    };
    let ended = Box::pin(async {
        scene.open("behind").await?;
        approve_waiting(&scene, &waiting)?;
        approve_waiting(&scene, &kept)?;
        scene
            .scripted("before", json!({}), json!({"retry": {"limit": 0}}))
            .await?;
        tokio::try_join!(
            scene.fails(
                "before",
                FailureClass::Transient,
                reason::DATASTORE_UNAVAILABLE,
                LATER
            ),
            scene.until("at", "taken up again, approved as it was", LATER, at(2)),
            scene.until(
                "restored",
                "taken back once more, approved as it was",
                LATER,
                at(3)
            ),
            scene.ends_within("behind", RunResult::Applied, LATER),
        )
    })
    .await;
    let log = scene.log("behind").await;
    back(&scene)?;
    let (before, at, restored, _) = ended?;
    ensure!(before.claim.is_none() && scene.starts("before", "apply") == 0);
    holds(
        before.message.as_deref().unwrap_or_default(),
        "the datastore does not answer",
    )?;
    // If the claim cannot be recorded, the approved plan is not claimed, and the approval is not lost.
    ensure!(
        at.claim.is_none() && at.approval.is_some() && scene.starts("at", "apply") == 0,
        "{at:?}"
    );
    holds(&at.history.join("\n"), reason::DATASTORE_UNAVAILABLE)?;
    // The message and the log report which parts of journal and log are missing.
    let log = log?;
    holds(&log, "the end of the journal is not with the datastore")?;
    holds(&log, "of the log are not with the datastore")?;
    let lost = |s: &TerraformRunStatus| {
        s.history
            .iter()
            .any(|line| line.contains("Log") && line.contains("not with the datastore"))
    };
    scene
        .until("behind", "said to lack the end of its log", SOON, lost)
        .await?;
    ensure!(
        restored.claim.is_none() && restored.approval.is_some(),
        "{restored:?}"
    );
    holds(&restored.history.join("\n"), reason::DATASTORE_UNAVAILABLE)?;
    ensure!(scene.starts("behind", "apply") == 1);
    scene.ends_within("at", RunResult::Applied, LATER).await?;
    scene
        .ends_within("restored", RunResult::Applied, LATER)
        .await?;
    for name in ["at", "restored"] {
        ensure!(
            scene.starts(name, "plan") == 1 && scene.starts(name, "apply") == 1,
            "{name}"
        );
    }
    Ok(())
}

/// A managed state waits for the datastore, and so does the pod that restores a plan.
async fn short(scene: Scene) -> Result<()> {
    let main = format!(
        "resource \"terraform_data\" \"a\" {{\n  provisioner \"local-exec\" {{\n    command = \"{GATE}\"\n  }}\n}}\n"
    );
    let spec = json!({"approval": {"mode": "Automatic"}, "backend": null, "stack": "a"});
    scene.real("writes", &main, spec.clone()).await?;
    scene
        .scripted(
            "restored",
            json!({}),
            json!({"approval": {"holdFor": "0s"}}),
        )
        .await?;
    let kept = released(&scene, "restored").await?;
    scene.phase("writes", Phase::Apply).await?;
    away(&scene).await?;
    scene.open("writes").await?;
    approve_waiting(&scene, &kept)?;
    let adopted = |s: &TerraformRunStatus| {
        s.adopted
            .as_ref()
            .is_some_and(|adopted| adopted.attempt == 2)
    };
    let begun = scene
        .until("restored", "taken up again", SOON, adopted)
        .await;
    // The tool ends meanwhile.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (writes, restored) = (
        scene.status("writes").await?,
        scene.status("restored").await?,
    );
    back(&scene)?;
    begun?;
    ensure!(
        writes.phase == Some(Phase::Apply),
        "it ended without its state: {writes:?}"
    );
    ensure!(
        restored.phase == Some(Phase::AwaitingApproval) && restored.claim.is_none(),
        "{restored:?}"
    );
    let status = scene
        .ends_within("restored", RunResult::Applied, LATER)
        .await?;
    ensure!(
        status.attempt.is_some_and(|attempt| attempt.number == 2)
            && scene.starts("restored", "plan") == 1
    );
    scene
        .ends_within("writes", RunResult::Applied, LATER)
        .await?;
    scene.real("again", &main, spec).await?;
    scene.ends("again", RunResult::NoChanges).await.map(drop)
}

/// A pod is deleted with its termination message, and the datastore, which has the result as well, is down: the result is unknown until it
/// returns. Meanwhile a namespace can be deleted, although the API server has no endpoint of the read API.
async fn unproven(scene: Scene) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(scene.suite.client.clone());
    let name = format!("{}-gone", scene.namespace);
    scene
        .suite
        .cluster
        .kubectl(&["create", "namespace", &name])?;
    hooks::endless(&scene, "a").await?;
    let pod = hooks::in_its_hook(&scene, "a").await?;
    away(&scene).await?;
    let meanwhile = async {
        hooks::take_away(&scene, &pod)?;
        scene
            .suite
            .cluster
            .kubectl(&["delete", "namespace", &name, "--wait=false"])?;
        wait::gone(&namespaces, &name, LATER)
            .await
            .context("the namespace cannot be deleted while the datastore is away")?;
        scene
            .ends_within("a", RunResult::Indeterminate, LATER)
            .await
    }
    .await;
    back(&scene)?;
    let given_up = meanwhile?;
    served(&scene).await?;
    ensure!(given_up.settled.is_none(), "{given_up:?}");
    let status = scene
        .until("a", "settled", LATER, |s| s.settled.is_some())
        .await?;
    ensure!(
        status
            .settled
            .as_ref()
            .is_some_and(|settled| settled.result == RunResult::Applied),
        "{:?}",
        status.settled
    );
    ensure!(
        status.result == Some(RunResult::Indeterminate) && status.message == given_up.message,
        "{status:?}"
    );
    ensure!(
        scene.starts("a", "apply") == 1
            && status.attempt.is_some_and(|attempt| attempt.number == 1)
    );
    Ok(())
}

async fn restarted(scene: Scene) -> Result<()> {
    scene
        .scripted(
            "a",
            json!({"resources": 2}),
            json!({"approval": {"holdFor": "0s"}}),
        )
        .await?;
    let waiting = released(&scene, "a").await?;
    scene.crash("").await?;
    approve_waiting(&scene, &waiting)?;
    scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(scene.starts("a", "plan") == 1 && scene.starts("a", "apply") == 1);
    back(&scene)
}

async fn another_key(scene: Scene) -> Result<()> {
    scene
        .scripted("a", json!({}), json!({"approval": {"holdFor": "0s"}}))
        .await?;
    scene
        .scripted("b", json!({}), json!({"approval": {"holdFor": "0s"}}))
        .await?;
    released(&scene, "a").await?;
    released(&scene, "b").await?;
    let cluster = &scene.suite.cluster;
    let secrets = cluster.kubectl(&["-n", SYSTEM, "get", "secret", KEYRING, "-o", "json"])?;
    let secret: serde_json::Value = serde_json::from_str(&secrets)?;
    let active = secret["data"]
        .as_object()
        .context("no data")?
        .keys()
        .find(|key| *key != "active")
        .context("no key")?
        .clone();
    let put = |data: serde_json::Value| {
        let patch = json!({ "data": data }).to_string();
        cluster
            .kubectl(&[
                "-n",
                SYSTEM,
                "patch",
                "secret",
                KEYRING,
                "--type=merge",
                "-p",
                &patch,
            ])
            .map(drop)
    };
    // Another key, then no keys. 32 other bytes in base64, encoded again as in the Secret.
    let other =
        json!({active.as_str(): "UVVGQlFVRkJRVUZCUVVGQlFVRkJRVUZCUVVGQlFVRkJRVUZCUVVGQlFVRT0="});
    let none = json!({active.as_str(): null, "active": null});
    let mut said = Ok(());
    for (data, word) in [
        (other, "another key under the name"),
        (none, "holds no keys, and the store is not empty"),
    ] {
        away_now(&scene)?;
        put(data)?;
        cluster.kubectl(&["-n", SYSTEM, "scale", DEPLOYMENT, "--replicas=1"])?;
        said = said.and(says(&scene, word).await);
    }
    put(secret["data"].clone())?;
    // It recovers by itself.
    back(&scene)?;
    said?;
    for run in ["a", "b"] {
        ensure!(scene.status(run).await?.phase == Some(Phase::AwaitingApproval));
        approve_waiting(&scene, &scene.status(run).await?)?;
        scene.ends_within(run, RunResult::Applied, LATER).await?;
    }
    Ok(())
}

/// Waits until the datastore logs `word`, and checks that it is not ready.
pub(crate) async fn says(scene: &Scene, word: &str) -> Result<()> {
    let cluster = &scene.suite.cluster;
    let look = async || {
        Ok(cluster
            .kubectl(&["-n", SYSTEM, "logs", DEPLOYMENT])
            .is_ok_and(|log| log.contains(word)))
    };
    wait::until(format!("the datastore says: {word}"), LATER, look).await?;
    let ready = cluster.kubectl(&[
        "-n",
        SYSTEM,
        "get",
        DEPLOYMENT,
        "-o",
        "jsonpath={.status.readyReplicas}",
    ])?;
    ensure!(ready.trim().is_empty(), "{ready} are ready");
    Ok(())
}

fn away_now(scene: &Scene) -> Result<()> {
    let cluster = &scene.suite.cluster;
    cluster.kubectl(&["-n", SYSTEM, "scale", DEPLOYMENT, "--replicas=0"])?;
    cluster.kubectl(&[
        "-n",
        SYSTEM,
        "wait",
        "--for=delete",
        "pod",
        "-l",
        "app.kubernetes.io/component=datastore",
        TIMEOUT,
    ])?;
    Ok(())
}
