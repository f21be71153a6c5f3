//! Restores from a backup: data is unchanged, and nothing is applied twice. Runs the guide's commands.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};
use crds::{FailureClass, LayerState, RunResult, TerraformLayerStatus, TerraformRun, reason};
use futures::TryStreamExt as _;
use harness::{guide, wait};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{WatchEvent, WatchParams},
};
use serde_json::json;

use crate::{
    guide::served,
    layers::Layers,
    managed,
    outages::{away, back, no_pods, says},
    stored::{approve_waiting, released},
    suite::{LATER, SOON, Scene, TIMEOUT, Test, holds},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "restored::plan_of_an_older_etcd_is_not_applied_again",
        etcd,
    )]
}

pub(crate) fn alone() -> Vec<Test> {
    vec![Test::new(
        "restored::backup_restores_into_a_new_installation",
        installation,
    )]
}

const SYSTEM: &str = "pawl-system";

/// The resourceVersion at which the approval of the run's plan is recorded and nothing later has happened.
async fn approved_at(scene: &Scene, name: &str, version: &str) -> Result<String> {
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(180)
        .disable_bookmarks();
    let mut events = std::pin::pin!(scene.runs().watch(&params, version).await?);
    while let Some(event) = events.try_next().await? {
        let WatchEvent::Modified(run) = event else {
            bail!("{name} cannot be watched: {event:?}")
        };
        let status = run.status.as_ref().context("no status")?;
        if status.approval.is_some() {
            let still = status.claim.is_none()
                && status
                    .attempt
                    .as_ref()
                    .is_some_and(|attempt| attempt.number == 1 && !attempt.open);
            ensure!(still, "the approval was not recorded by itself: {status:?}");
            return run.resource_version().context("no version");
        }
    }
    bail!("the approval of {name} is not recorded")
}

/// etcd has the run as it was when its approval was recorded. The datastore has the record of its claim.
async fn etcd(scene: Scene) -> Result<()> {
    scene
        .scripted(
            "a",
            json!({"resources": 2}),
            json!({"approval": {"holdFor": "0s"}}),
        )
        .await?;
    let waiting = released(&scene, "a").await?;
    let version = scene
        .get("a")
        .await?
        .resource_version()
        .context("no version")?;
    approve_waiting(&scene, &waiting)?;
    let approved = approved_at(&scene, "a", &version).await?;
    scene.ends("a", RunResult::Applied).await?;
    scene.closed("a").await?;
    scene
        .until("a", "without its lease", SOON, |s| s.lease.is_none())
        .await?;
    let uid = scene.get("a").await?.uid().context("no UID")?;
    wait::until("the bundle goes", SOON, async || {
        Ok(scene.suite.stored(&[&uid, "bundle"])?.is_empty())
    })
    .await?;
    // At that version the applying pod did not exist.
    scene.kubectl(&["delete", "pods", "--all", TIMEOUT])?;
    let key = format!("/registry/pawl.run/terraformruns/{}/a", scene.namespace);
    scene.suite.cluster.restore_object(&key, &approved)?;
    let restored = scene.status("a").await?;
    ensure!(
        restored.result.is_none() && restored.claim.is_none(),
        "{restored:?}"
    );
    let status = scene
        .fails("a", FailureClass::Integrity, reason::ALREADY_CLAIMED, LATER)
        .await?;
    holds(
        &format!("{:?}", status.failure),
        "the cluster was restored to an earlier time",
    )?;
    ensure!(
        status.claim.is_none() && scene.starts("a", "apply") == 1,
        "{status:?}"
    );
    Ok(())
}

/// The commands of a block of the guide.
fn lines(name: &str) -> Result<Vec<String>> {
    Ok(guide::block(name)?.lines().map(str::to_owned).collect())
}

/// Runs commands in a directory, as a user who pastes them.
fn run(scene: &Scene, dir: &Path, lines: &str) -> Result<()> {
    scene
        .paste(&format!("set -e; cd '{}'; {lines}", dir.display()))
        .map(drop)
}

/// Copies a directory with owners and modes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp")
        .arg("-a")
        .arg(from.join("."))
        .arg(to)
        .status()?;
    ensure!(
        status.success(),
        "cannot copy {} to {}",
        from.display(),
        to.display()
    );
    Ok(())
}

/// Empties the store, like that of a new cluster.
fn empty(store: &Path) -> Result<()> {
    for entry in std::fs::read_dir(store)? {
        let path = entry?.path();
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

async fn installation(scene: Scene) -> Result<()> {
    let result = moved(&scene).await;
    // Restores Pawl for other tests, whatever the result.
    scene
        .suite
        .cluster
        .install(&scene.suite.releases.values())
        .await?;
    result
}

async fn moved(scene: &Scene) -> Result<()> {
    let backup = tempfile::tempdir()?;
    let store = backup.path().join("store");
    std::fs::create_dir(&store)?;
    let (team, left) = (
        scene.suite.beside(scene, "team").await?,
        scene.suite.beside(scene, "left").await?,
    );
    let stack = json!({"stack": "words"});
    managed::run(&team, "first", stack.clone()).await?;
    team.ends("first", RunResult::Applied).await?;
    // A layer with a managed state, and one that remains after the release was removed. Both would destroy their objects on deletion.
    let destroys =
        json!({"deletionPolicy": "Destroy", "template": {"approval": {"holdFor": "0s"}}});
    let (layers, behind) = (
        Layers::followed(&team).await?,
        Layers::followed(&left).await?,
    );
    for stage in [&layers, &behind] {
        stage.layer("app", destroys.clone()).await?;
    }
    layers
        .approve("app", &layers.repo.resolve("main")?.context("no commit")?)
        .await?;
    behind
        .until("app", "planned", |status| status.pending.is_some())
        .await?;
    // Three runs: one is deleted with the others, one remains after the release was removed, and one is in the restored cluster.
    for (place, name) in [(&team, "waits"), (&left, "left"), (scene, "old")] {
        place
            .scripted(name, json!({}), json!({"approval": {"holdFor": "0s"}}))
            .await?;
        released(place, name).await?;
    }

    let (save, into_new) = (lines("back up")?, lines("restore into a new cluster")?);
    // In an existing cluster this command sets the same value; its effect is checked below.
    holds(
        &guide::block("refuse plans of before")?,
        "--set controller.refusePlansBefore=\"$(date -u +%FT%TZ)\"",
    )?;
    for line in &save {
        let line = line.replace(
            "--all-namespaces -o yaml > layers.yaml",
            &format!("-n {} -o yaml > layers.yaml", team.namespace),
        );
        if line.starts_with('#') {
            copy(&scene.suite.cluster.datastore(), &store)?;
        } else {
            run(scene, backup.path(), &line)?;
        }
    }
    back(scene)?;
    uninstall(scene, &team, &left, backup.path()).await?;
    ensure!(
        layers.text("app").as_deref() == Some("one"),
        "what the layer made went with it: {:?}",
        layers.text("app")
    );
    empty(&scene.suite.cluster.datastore())?;

    // A new installation with new keys.
    let mut restored_at = None;
    for line in &into_new {
        if line.starts_with("helm ") {
            holds(
                line,
                "--set controller.refusePlansBefore=\"$(date -u +%FT%TZ)\"",
            )?;
            let at = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second())?;
            let mut values = scene.suite.releases.values();
            values.insert("controller.refusePlansBefore".to_owned(), at.to_string());
            let id = std::fs::read_to_string(backup.path().join("store-id"))?;
            values.insert("datastore.adopt".to_owned(), id);
            scene.suite.cluster.install(&values).await?;
            restored_at = Some(at);
        } else if line.starts_with('#') {
            copy(&store, &scene.suite.cluster.datastore())?;
            // Without the keys nothing is served, and nothing is lost.
            scene.suite.cluster.kubectl(&[
                "-n",
                SYSTEM,
                "scale",
                "deployment/pawl-datastore",
                "--replicas=1",
            ])?;
            says(scene, "does not have the key").await?;
            away(scene).await?;
        } else {
            run(scene, backup.path(), line)?;
        }
    }
    back(scene)?;
    scene.suite.cluster.kubectl(&[
        "-n",
        SYSTEM,
        "rollout",
        "status",
        "deployment/pawl-controller",
        TIMEOUT,
    ])?;
    states(&scene.suite.beside(scene, "team").await?).await?;
    run(scene, backup.path(), &guide::block("restore layers")?)?;
    let rests = |status: &TerraformLayerStatus| {
        status.state == Some(LayerState::Idle) && status.current_run.is_none()
    };
    let rested = layers.until("app", "planned once more", rests).await?;
    ensure!(
        rested
            .last_plan
            .is_some_and(|plan| plan.result == Some(RunResult::NoChanges)),
        "its state does not know what it made"
    );
    old_plan(scene, restored_at.context("the page installs nothing")?).await
}

/// Follows the page on uninstalling with existing runs; "all namespaces" is limited to those of this test.
async fn uninstall(scene: &Scene, team: &Scene, left: &Scene, dir: &Path) -> Result<()> {
    let (goes, rest, finalizers) = (
        guide::block("uninstall")?,
        lines("uninstall the rest")?,
        lines("take finalizers away")?,
    );
    for block in [guide::block("uninstall layers")?, goes] {
        holds(&block, "--all --all-namespaces")?;
        let of = format!("--all -n {} {TIMEOUT}", team.namespace);
        let block = block.replace("--all --all-namespaces", &of);
        run(
            scene,
            dir,
            &block.replace(
                "--all-namespaces",
                &format!("-A --field-selector=metadata.namespace={}", team.namespace),
            ),
        )?;
    }
    let rest: Vec<&str> = rest
        .iter()
        .flat_map(|line| line.split_whitespace())
        .filter(|word| word.starts_with("secret/"))
        .collect();
    ensure!(rest.len() == 3, "{rest:?}");
    run(
        scene,
        dir,
        &format!("kubectl -n {SYSTEM} delete {}", rest.join(" ")),
    )?;
    no_pods(scene, "").await?;
    let cluster = &scene.suite.cluster;
    cluster.kubectl(&["delete", "namespace", &team.namespace, TIMEOUT])?;
    // The release was removed before this namespace's run, whose finalizer blocks the namespace.
    cluster.kubectl(&["delete", "namespace", &left.namespace, "--wait=false"])?;
    let deleted = |run: &TerraformRun| run.metadata.deletion_timestamp.is_some();
    wait::object(&left.runs(), "left", "being deleted", SOON, deleted).await?;
    let here = format!(" -A --field-selector=metadata.namespace={}", left.namespace);
    // A pod may end by itself between two of the commands.
    run(
        scene,
        dir,
        &format!(
            "set +e\n{}\ntrue",
            finalizers.join("\n").replace(" -A", &here)
        ),
    )?;
    let namespaces: Api<Namespace> = Api::all(scene.suite.client.clone());
    wait::gone(&namespaces, &left.namespace, LATER).await
}

/// The states still exist for their new owner.
async fn states(team: &Scene) -> Result<()> {
    managed::run(
        team,
        "newcomer",
        json!({"stack": "words", "operation": "Plan", "approval": {"mode": "Manual"}}),
    )
    .await?;
    let status = team
        .fails(
            "newcomer",
            FailureClass::Policy,
            reason::STATE_OF_FORMER_NAMESPACE,
            LATER,
        )
        .await?;
    holds(&format!("{:?}", status.message), "states/words/handover")?;
    ensure!(status.plan.is_none(), "{:?}", status.plan);
    served(team).await?;
    team.paste(&team.post("states/-/handover", &json!({"reason": "restored"})))?;
    managed::run(team, "heir", json!({"stack": "words"})).await?;
    team.ends_within("heir", RunResult::NoChanges, LATER)
        .await
        .map(drop)
}

/// The plan that has waited since before the restore is not applied; a new one is.
async fn old_plan(scene: &Scene, restored_at: jiff::Timestamp) -> Result<()> {
    let status = scene
        .fails(
            "old",
            FailureClass::StalePlan,
            reason::PLAN_BEFORE_RESTORE,
            LATER,
        )
        .await?;
    holds(
        status.message.as_deref().unwrap_or_default(),
        &format!("before the restore of {restored_at}"),
    )?;
    scene.paste(status.next_step.as_deref().context("no next step")?)?;
    let again = scene.rerun_of("old").await?;
    let waiting = released(scene, &again).await?;
    approve_waiting(scene, &waiting)?;
    scene.ends_within(&again, RunResult::Applied, LATER).await?;
    ensure!(scene.starts("old", "apply") == 1, "applied more than once");
    Ok(())
}
