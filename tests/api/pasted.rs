//! Commands that Pawl prints for users, pasted in a cluster with foreign CRDs of the same names: they affect only ours.

use anyhow::{Result, ensure};
use crds::{TerraformRepository, names};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::json;

use crate::world::{FOREIGN, World, sum, tests};

tests! {
    Bare: printed_commands_work_beside_burritos_crds,
}

async fn printed_commands_work_beside_burritos_crds(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    world.create(&namespace, "net", &json!({})).await?;
    world
        .status(
            &namespace,
            "net",
            &json!({"conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        )
        .await?;
    let repositories: Api<TerraformRepository> = Api::namespaced(world.admin.clone(), &namespace);
    let spec = serde_json::from_value(json!({"url": "https://git.example.com/infra"}))?;
    repositories
        .create(
            &PostParams::default(),
            &TerraformRepository::new("net", spec),
        )
        .await?;
    for kind in ["TerraformRun", "TerraformRepository"] {
        let manifest = json!({"apiVersion": format!("{FOREIGN}/v1alpha1"), "kind": kind, "metadata": {"name": "net"}});
        world.paste(&format!(
            "kubectl create -n {namespace} -f - <<< '{manifest}'"
        ))?;
    }
    let first = world.paste(&format!("kubectl get -n {namespace} -o name tfrun"))?;
    ensure!(
        first == format!("terraformrun.{FOREIGN}/net"),
        "the short name is not theirs: {first}"
    );

    for line in [
        names::approve_command(&namespace, "net", &sum('a')),
        names::replan_command(&namespace, "net"),
        names::recover_command(&namespace, "net"),
        names::abandon_command(&namespace, "net"),
        names::reconcile_command(&namespace, "net"),
    ] {
        world.paste(&line)?;
    }
    let run = world.runs(&namespace).get("net").await?;
    for set in [
        names::APPROVE,
        names::APPROVED_BY,
        names::CANCEL,
        names::RERUN,
        names::RECOVER,
        names::ABANDON,
    ] {
        ensure!(
            run.annotations().contains_key(set),
            "{set} is not set: {:?}",
            run.annotations()
        );
    }
    ensure!(
        repositories
            .get("net")
            .await?
            .annotations()
            .contains_key(names::RECONCILE),
        "not requested"
    );
    for plural in ["terraformruns", "terraformrepositories"] {
        let theirs =
            world.paste(&format!("kubectl get -n {namespace} {plural}.{FOREIGN} net -o jsonpath='{{.metadata.annotations}}'"))?;
        ensure!(theirs.is_empty(), "theirs was annotated: {theirs}");
    }
    Ok(())
}
