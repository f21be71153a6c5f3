//! Successful runs: applied once, pruned after their time, and run again.

use anyhow::{Context, Result, ensure};
use crds::{RunResult, names};
use harness::wait;
use kube::{ResourceExt as _, api::ListParams};
use serde_json::json;

use crate::suite::{SOON, Scene, TIMEOUT, Test, automatic, holds, with};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("operations::automatic_run_is_applied_once_and_pruned", once),
        Test::new("operations::rerun_makes_one_fresh_run", rerun),
    ]
}

async fn once(scene: Scene) -> Result<()> {
    // One that a tool of GitOps keeps, and one that is deleted after its time with all that was made for it. The first is Manual, so that it
    // cannot end before its label is set.
    scene
        .scripted("kept", json!({}), json!({"ttlSecondsAfterFinished": 2}))
        .await?;
    scene.kubectl(&[
        "label",
        "tfrun",
        "kept",
        "kustomize.toolkit.fluxcd.io/name=team",
    ])?;
    scene.approved("kept").await?;
    scene
        .scripted(
            "goes",
            json!({}),
            with(automatic(), json!({"ttlSecondsAfterFinished": 2})),
        )
        .await?;
    scene
        .scripted("a", json!({"resources": 3, "apply_ms": 100}), automatic())
        .await?;
    let status = scene.ends("a", RunResult::Applied).await?;
    ensure!(
        scene.starts("a", "plan") == 1
            && scene.starts("a", "apply") == 1
            && scene.starts("a", "init") == 1
    );
    ensure!(scene.pod_names("a").await?.len() == 1);
    let plan = status.plan.context("no plan")?;
    ensure!(
        plan.summary == "+3 ~0 -0" && plan.counts.add == 3 && plan.changes.len() == 3,
        "{plan:?}"
    );
    let claim = status.claim.context("no claim")?;
    ensure!(claim.checksum == plan.checksum);
    ensure!(status.approval.context("no approval")?.by == "automatic");
    let steps: Vec<_> = status.steps.iter().map(|s| s.name.as_str()).collect();
    ensure!(
        ["init", "plan", "apply"].iter().all(|s| steps.contains(s)),
        "{steps:?}"
    );
    ensure!(
        status
            .steps
            .iter()
            .all(|s| s.finished_at.is_some() && s.exit_code.is_some()),
        "{:?}",
        status.steps
    );
    let condition = |type_: &str| {
        scene.kubectl(&[
            "wait",
            "--for",
            &format!("condition={type_}"),
            TIMEOUT,
            "tfrun/a",
        ])
    };
    for type_ in ["Finished", "Succeeded", "Planned", "Approved"] {
        condition(type_)?;
    }
    let columns = scene.kubectl(&["get", "tfrun", "a"])?;
    for word in ["Apply", "Succeeded", "Applied", "+3 ~0 -0"] {
        holds(&columns, word)?;
    }
    // Its accounts and rights are deleted; its pod and its log are kept.
    let rights = async || {
        let rest = scene.kubectl(&[
            "get",
            "serviceaccounts,roles,rolebindings",
            "-l",
            "pawl.run/run=a",
            "-o",
            "name",
        ])?;
        Ok(if rest.trim().is_empty() {
            Ok(())
        } else {
            Err(rest)
        })
    };
    wait::until("no rights outlive the attempt", SOON, rights).await?;
    ensure!(!scene.log("a").await?.is_empty());
    scene.gone("goes").await?;
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    ensure!(
        scene
            .get("kept")
            .await?
            .metadata
            .deletion_timestamp
            .is_none()
    );
    Ok(())
}

async fn rerun(scene: Scene) -> Result<()> {
    // With a managed state, which the fresh run finds.
    scene
        .scripted(
            "a",
            json!({"resources": 1}),
            with(automatic(), json!({"backend": null})),
        )
        .await?;
    scene.ends("a", RunResult::Applied).await?;
    let uid = scene.get("a").await?.metadata.uid.context("no uid")?;
    scene.annotate("a", &[(names::RERUN, Some("true"))]).await?;
    let name = names::rerun_name("a", &uid);
    let taken_off = |run: &crds::TerraformRun| !run.annotations().contains_key(names::RERUN);
    wait::object(
        &scene.runs(),
        "a",
        "ready to be asked once more",
        SOON,
        taken_off,
    )
    .await?;
    let once_more = scene.annotate("a", &[(names::RERUN, Some("true"))]).await;
    ensure!(once_more.is_err_and(|error| {
        format!("{error:#}").contains(&format!("run {name} already answers this request"))
    }));
    ensure!(scene.rerun_of("a").await? == name);
    scene.ends(&name, RunResult::NoChanges).await?;
    // The same spec with the stack name that an inline source gets from its first run.
    let mut same = scene.get("a").await?.spec;
    same.stack = Some("a".to_owned());
    ensure!(scene.get(&name).await?.spec == same);
    ensure!(scene.runs().list(&ListParams::default()).await?.items.len() == 2);
    Ok(())
}
