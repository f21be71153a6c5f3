//! Outputs: published to a ConfigMap and a Secret, repaired, read by another stack, and deleted with their stack. The manifests are the
//! guide's.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, OutputsStatus, Phase, RunResult, TerraformRunStatus, reason};
use harness::{cluster::objects, guide, wait};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::suite::{LATER, SOON, Scene, Test, automatic, holds, with};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "outputs::outputs_are_published_repaired_and_deleted",
            published,
        ),
        Test::new("outputs::changed_output_makes_waiting_plans_stale", taken),
    ]
}

/// Removes the datastore's right to write objects, cluster-wide.
pub(crate) fn alone() -> Vec<Test> {
    vec![Test::new(
        "outputs::unbound_namespace_gets_no_outputs_until_bound",
        unbound,
    )]
}

/// Creates a run of the guide, with a spec merged over it.
async fn create(scene: &Scene, file: &str, name: &str, more: Value) -> Result<()> {
    let manifest: Value = serde_saphyr::from_str(&guide::block(file)?)?;
    let spec = with(
        json!({"tool": {"name": "OpenTofu"}}),
        manifest["spec"].clone(),
    );
    scene.create_bare(name, with(spec, more)).await.map(drop)
}

fn said(status: &TerraformRunStatus) -> Result<OutputsStatus> {
    status
        .outputs
        .clone()
        .context("it says nothing of its outputs")
}

fn maps(scene: &Scene) -> Api<ConfigMap> {
    Api::namespaced(scene.suite.client.clone(), &scene.namespace)
}

fn secrets(scene: &Scene) -> Api<Secret> {
    Api::namespaced(scene.suite.client.clone(), &scene.namespace)
}

async fn map(scene: &Scene) -> Result<Option<Value>> {
    Ok(maps(scene)
        .get_opt("network")
        .await?
        .map(|map| json!(map.data.unwrap_or_default())))
}

/// Waits until the ConfigMap has this data.
async fn becomes(scene: &Scene, wanted: &Value) -> Result<()> {
    let look = async || {
        let found = map(scene).await?;
        Ok(if found.as_ref() == Some(wanted) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        })
    };
    wait::until(format!("it becomes {wanted}"), SOON, look).await
}

async fn published(scene: Scene) -> Result<()> {
    // A foreign Secret has that name.
    let foreign = json!({"metadata": {"name": "network-db"}, "stringData": {"mine": "x"}});
    secrets(&scene)
        .create(&PostParams::default(), &serde_json::from_value(foreign)?)
        .await?;
    create(&scene, "network.yaml", "first", automatic()).await?;
    let status = scene
        .ends_within("first", RunResult::Applied, LATER)
        .await?;
    let outputs = said(&status)?;
    ensure!(outputs.reason == reason::FOREIGN_OBJECT, "{outputs:?}");
    holds(&outputs.message, "Secret network-db was not made by Pawl")?;
    ensure!(
        outputs.values["vpc_id"] == "vpc-1" && !format!("{status:?}").contains("correct horse"),
        "{outputs:?}"
    );
    let theirs = secrets(&scene).get("network-db").await?;
    ensure!(
        theirs.data.unwrap_or_default().keys().eq(["mine"]),
        "it was left as it is"
    );
    let wanted = json!({"vpc_id": "vpc-1", "zones": "[\"a\",\"b\"]"});
    ensure!(
        map(&scene).await? == Some(wanted.clone()),
        "{:?}",
        map(&scene).await?
    );

    // Foreign changes are repaired, and an object with an occupied name is written once the name is free.
    objects::merge(
        &maps(&scene),
        "network",
        &json!({"data": {"vpc_id": "forged", "more": "x"}}),
    )
    .await?;
    becomes(&scene, &wanted).await?;
    maps(&scene)
        .delete("network", &DeleteParams::default())
        .await?;
    secrets(&scene)
        .delete("network-db", &DeleteParams::default())
        .await?;
    becomes(&scene, &wanted).await?;
    // Nothing has changed, but the state is managed: outputs are published anyway.
    create(&scene, "network.yaml", "again", automatic()).await?;
    let outputs = said(
        &scene
            .ends_within("again", RunResult::NoChanges, LATER)
            .await?,
    )?;
    ensure!(outputs.reason == reason::PUBLISHED, "{outputs:?}");
    ensure!(
        outputs.message == "ConfigMap network (2 keys), Secret network-db (1 key)",
        "{outputs:?}"
    );
    let printed =
        guide::block("read outputs")?.replace("-n prod", &format!("-n {}", scene.namespace));
    holds(&scene.paste(&printed)?, "correct horse")?;
    ensure!(secrets(&scene).get("network-db").await?.type_.as_deref() == Some("pawl.run/outputs"));

    create(
        &scene,
        "network.yaml",
        "gone",
        json!({"operation": "Destroy", "approval": {"mode": "Automatic"}}),
    )
    .await?;
    scene
        .ends_within("gone", RunResult::Destroyed, LATER)
        .await?;
    ensure!(map(&scene).await?.is_none() && secrets(&scene).get_opt("network-db").await?.is_none());
    Ok(())
}

async fn taken(scene: Scene) -> Result<()> {
    create(&scene, "network.yaml", "network", automatic()).await?;
    scene
        .ends_within("network", RunResult::Applied, LATER)
        .await?;
    create(&scene, "app.yaml", "app", json!({})).await?;
    let plan = scene
        .phase("app", Phase::AwaitingApproval)
        .await?
        .plan
        .context("no plan")?;
    ensure!(plan.counts.add == 2, "a list is a list: {plan:?}");
    scene.approve("app").await?;
    scene.ends_within("app", RunResult::Applied, LATER).await?;

    // Two plans wait, one in its pod and one without a pod; then the value changes.
    create(&scene, "app.yaml", "held", json!({"stack": "held"})).await?;
    create(
        &scene,
        "app.yaml",
        "parked",
        json!({"stack": "parked", "approval": {"holdFor": "1s"}}),
    )
    .await?;
    scene.phase("held", Phase::AwaitingApproval).await?;
    let newer = json!({"approval": {"mode": "Automatic"}, "variables": [{"name": "vpc", "value": "vpc-2"}]});
    create(&scene, "network.yaml", "newer", newer).await?;
    scene
        .ends_within("newer", RunResult::Applied, LATER)
        .await?;
    for name in ["held", "parked"] {
        scene.approve(name).await?;
        let status = scene
            .fails(name, FailureClass::StalePlan, reason::INPUTS_CHANGED, LATER)
            .await?;
        holds(&format!("{:?}", status.failure), "vpc_id")?;
    }
    Ok(())
}

const BINDING: &str = "pawl-datastore-outputs";

/// The chart's cluster-wide binding. With `outputs.namespaces` an operator has one per namespace instead.
async fn unbound(scene: Scene) -> Result<()> {
    let bindings: Api<ClusterRoleBinding> = Api::all(scene.suite.client.clone());
    let mut everywhere = bindings.get(BINDING).await?;
    bindings.delete(BINDING, &DeleteParams::default()).await?;
    let ended = bound_elsewhere(&scene).await;
    everywhere.metadata.resource_version = None;
    bindings.create(&PostParams::default(), &everywhere).await?;
    ended
}

async fn bound_elsewhere(scene: &Scene) -> Result<()> {
    create(scene, "network.yaml", "first", automatic()).await?;
    let outputs = said(
        &scene
            .ends_within("first", RunResult::Applied, LATER)
            .await?,
    )?;
    ensure!(
        outputs.reason == reason::NOT_PUBLISHED && map(scene).await?.is_none(),
        "{outputs:?}"
    );
    holds(&outputs.message, &scene.namespace)?;
    // Stored outputs are written once that is permitted.
    let account = "--serviceaccount=pawl-system:pawl-datastore";
    scene.kubectl(&[
        "create",
        "rolebinding",
        BINDING,
        &format!("--clusterrole={BINDING}"),
        account,
    ])?;
    becomes(scene, &json!({"vpc_id": "vpc-1", "zones": "[\"a\",\"b\"]"})).await
}
