//! Locks of states: those of our dead pods are released by exactly their ID; all others are waited for and never touched.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, Phase, RunResult, TerraformRunStatus, reason};
use harness::wait;
use kube::ResourceExt;
use ledger::what;
use serde_json::{Value, json};
use servers::state::LockInfo;

use crate::suite::{LATER, SOON, Scene, Test, automatic, gated, holds, with};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "locks::lock_of_an_earlier_attempt_is_released",
            earlier_attempt,
        ),
        Test::new(
            "locks::lock_of_a_dead_pod_of_another_run_is_released",
            another_run,
        ),
        Test::new(
            "locks::lock_on_kubernetes_is_released_by_opentofu",
            |scene| kubernetes(scene, "OpenTofu"),
        ),
        Test::new(
            "locks::lock_on_kubernetes_is_released_by_terraform",
            |scene| kubernetes(scene, "Terraform"),
        ),
        Test::new("locks::lock_of_a_living_pod_is_waited_for", alive),
        Test::new("locks::lock_of_a_person_is_waited_for_and_kept", strangers),
    ]
}

/// Whether the run waits for a lock of that holder.
fn waits_for(who: &str) -> impl Fn(&TerraformRunStatus) -> bool {
    move |status| {
        status
            .state_lock
            .as_ref()
            .is_some_and(|lock| lock.who.contains(who))
    }
}

fn released(status: &crds::TerraformRunStatus, holder: &str) -> Result<()> {
    ensure!(
        status
            .history
            .iter()
            .any(|line| line.contains("  Unlock  ") && line.contains(holder)),
        "no line of the release: {:?}",
        status.history
    );
    ensure!(status.state_lock.is_none() && status.lock_release.is_some());
    ensure!(
        status
            .steps
            .iter()
            .any(|step| step.name == "force-unlock" && step.exit_code == Some(0)),
        "{:?}",
        status.steps
    );
    Ok(())
}

async fn earlier_attempt(scene: Scene) -> Result<()> {
    // A plan takes the lock and is killed.
    scene.scripted("a", json!({"resources": [{"address": "terraform_data.a", "apply_ms": 100}], "commands": {"plan": [{"only": [1], "hold_lock": true}]}}), automatic()).await?;
    scene.until_ledger("a", what::LOCK, None).await?;
    let pod = scene.pod("a").await?.name_any();
    Scene::kill(&scene.pod("a").await?, "runner-agent")?;
    scene.suite.state.note_gone(&scene.path("a"), &pod);
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(status.attempt.as_ref().context("no attempt")?.number == 2);
    released(&status, "a, attempt 1")
}

async fn another_run(scene: Scene) -> Result<()> {
    let backend = json!({"backend": scene.backend("shared"), "approval": {"mode": "Automatic"}});
    scene
        .scripted("a", json!({"resources": gated(2)}), backend.clone())
        .await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    let pod = scene.pod("a").await?.name_any();
    Scene::kill(&scene.pod("a").await?, "runner-agent")?;
    scene
        .ends_within("a", RunResult::Indeterminate, LATER)
        .await?;
    let lock = scene
        .lock("shared")
        .context("the dead pod's lock is not there")?;
    holds(&lock.who, &pod)?;
    scene.suite.state.note_gone(&scene.path("shared"), &pod);
    // Real OpenTofu, on the remaining state and lock.
    let spec = json!({"backend": scene.backend("shared"), "approval": {"mode": "Automatic"}});
    scene
        .real("b", "resource \"terraform_data\" \"b\" {}\n", spec)
        .await?;
    let status = scene.ends_within("b", RunResult::Applied, LATER).await?;
    released(&status, "a, attempt 1")?;
    ensure!(
        status
            .lock_release
            .is_some_and(|release| release.id == lock.id),
        "another lock was meant"
    );
    ensure!(scene.lock("shared").is_none());
    Ok(())
}

/// A real tool, killed in mid-apply on the `kubernetes` backend: a Secret, and a Lease as its lock.
async fn kubernetes(scene: Scene, tool: &'static str) -> Result<()> {
    scene.kubectl(&[
        "create",
        "role",
        "state",
        "--verb=*",
        "--resource=secrets,leases.coordination.k8s.io",
    ])?;
    let account = format!("--serviceaccount={}:default", scene.namespace);
    scene.kubectl(&["create", "rolebinding", "state", "--role=state", &account])?;
    let main = "variable \"seconds\" {\n  type = number\n}\nresource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    \
                command = \"echo begun; sleep ${var.seconds}\"\n  }\n}\n";
    let config =
        json!({"secret_suffix": "net", "namespace": scene.namespace, "in_cluster_config": true});
    let spec = |seconds: u32| {
        let version = if tool == "OpenTofu" {
            json!("1.10.6")
        } else {
            Value::Null
        };
        json!({"source": {"inline": {"files": {"main.tf": main}}}, "tool": {"name": tool, "version": version},
            "backend": {"type": "kubernetes", "config": config}, "approval": {"mode": "Automatic"},
            "variables": [{"name": "seconds", "value": seconds}], "runner": {"serviceAccountName": "default"}})
    };
    scene.create_bare("a", spec(600)).await?;
    scene
        .until("a", "applying", LATER, |s| {
            s.claim.is_some() && s.progress.is_some()
        })
        .await?;
    let held = || {
        scene.kubectl(&[
            "get",
            "lease",
            "lock-tfstate-default-net",
            "-o",
            "jsonpath={.spec.holderIdentity}",
        ])
    };
    wait::until("the apply takes the lock", SOON, async || {
        Ok(held().is_ok_and(|holder| !holder.is_empty()))
    })
    .await?;
    Scene::kill(&scene.pod("a").await?, "runner-agent")?;
    scene
        .ends_within("a", RunResult::Indeterminate, LATER)
        .await?;
    let lock = held()?;
    ensure!(!lock.is_empty(), "the dead pod's lock is not there");
    scene.create_bare("b", spec(0)).await?;
    let status = scene.ends_within("b", RunResult::Applied, LATER).await?;
    released(&status, "a, attempt 1")?;
    ensure!(
        status
            .lock_release
            .is_some_and(|release| release.id == lock),
        "another lock was meant"
    );
    ensure!(held()?.is_empty(), "the lock is held by {}", held()?);
    Ok(())
}

async fn alive(scene: Scene) -> Result<()> {
    // A plan-only run takes no lease, so it meets the lock of the applying run.
    let of = |more: Value| with(json!({"backend": scene.backend("shared")}), more);
    scene
        .scripted("a", json!({"resources": gated(2)}), of(automatic()))
        .await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    let pod = scene.pod("a").await?.name_any();
    scene
        .scripted("b", json!({}), of(json!({"operation": "Plan"})))
        .await?;
    let waits = scene
        .until("b", "waiting for the lock", SOON, waits_for(&pod))
        .await?;
    holds(
        waits.message.as_deref().unwrap_or_default(),
        &format!("locked by pawl@{pod} since"),
    )?;
    ensure!(waits.lock_release.is_none(), "{:?}", waits.lock_release);
    scene.open("a").await?;
    scene.ends("a", RunResult::Applied).await?;
    let status = scene.ends_within("b", RunResult::Planned, LATER).await?;
    // The controller permits the release of a lock only after its holder has ended. By then the holder has released the lock itself.
    ensure!(status.state_lock.is_none());
    ensure!(
        status
            .steps
            .iter()
            .all(|step| step.name != "force-unlock" || step.exit_code != Some(0)),
        "{:?}",
        status.steps
    );
    Ok(())
}

async fn strangers(scene: Scene) -> Result<()> {
    for name in ["in-vain", "in-time"] {
        ensure!(scene.suite.state.hold_lock(
            &scene.path(name),
            LockInfo::stranger("11111111-2222", "carol@laptop")
        ));
    }
    let main = "resource \"terraform_data\" \"a\" {}\n";
    scene
        .real("in-vain", main, json!({"timeouts": {"plan": "30s"}}))
        .await?;
    scene.real("in-time", main, json!({})).await?;
    let waits = scene
        .until(
            "in-time",
            "waiting for the lock",
            SOON,
            waits_for("carol@laptop"),
        )
        .await?;
    holds(
        waits.message.as_deref().unwrap_or_default(),
        "locked by carol@laptop",
    )?;
    let status = scene
        .fails(
            "in-vain",
            FailureClass::StateLocked,
            reason::STATE_LOCKED,
            LATER,
        )
        .await?;
    holds(
        &status.failure.context("no failure")?.message,
        "carol@laptop",
    )?;
    ensure!(
        scene
            .lock("in-vain")
            .is_some_and(|l| l.who == "carol@laptop"),
        "it was removed"
    );
    ensure!(scene.suite.state.force_unlock(&scene.path("in-time")));
    scene
        .phase("in-time", Phase::AwaitingApproval)
        .await
        .map(drop)
}
