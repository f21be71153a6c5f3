//! Missing namespaces, and namespaces being deleted: reported at once, to the author of a run or in the status of an existing run.

use anyhow::{Result, ensure};
use crds::{TerraformRun, TerraformRunStatus, conditions, names, reason};
use harness::wait;
use k8s_openapi::api::{core::v1::Namespace, rbac::v1::RoleBinding};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

use crate::{
    nodes::{Machine, applying},
    rig::{RUN, Rig, is_closed, is_open, stalls},
    world::{PATIENCE, World, tests},
};

tests! {
    Guarded: terminating_namespace_is_named_by_its_runs,
    Guarded: listed_namespace_limits_the_controllers_rights,
    Guarded: run_outlives_no_namespace_that_took_the_rights_away,
}

/// A run from creation to deletion, by a controller with the chart's rights for listed namespaces.
async fn listed_namespace_limits_the_controllers_rights(world: World) -> Result<()> {
    let rig = Rig::narrow(world).await?;
    let node = Machine::new(&rig, "n", true).await?;
    applying(&rig, &node).await?;
    // Probes are refused on purpose, and have succeeded by now.
    let before = rig.forbidden();
    node.goes().await?;
    rig.look("told that its node is gone", |status| {
        stalls(status, reason::POD_GONE)
    })
    .await?;
    rig.later(61);
    let over = |status: &TerraformRunStatus| {
        status.is_terminal() && status.lease.is_none() && is_closed(status)
    };
    rig.look("ended and tidied up", over).await?;
    let runs = rig.world.runs(&rig.namespace);
    runs.delete(RUN, &DeleteParams::default()).await?;
    wait::until("it is gone", PATIENCE, async || {
        // It may be gone already.
        let _ = rig.step().await;
        Ok(runs
            .get_opt(RUN)
            .await?
            .map_or(Ok(()), |run| Err(format!("{:?}", run.metadata))))
    })
    .await?;
    ensure!(
        rig.forbidden() == before,
        "{before:?} became {:?}",
        rig.forbidden()
    );
    // The rights of its watches, and none in other namespaces.
    let account = format!(
        "system:serviceaccount:pawl-system:narrow-{}-controller",
        rig.namespace
    );
    let may = |verb: &str, what: &str, place: &[&str]| {
        let mut args = vec!["auth", "can-i", verb, what, "--as", account.as_str()];
        args.extend(place);
        Ok::<_, anyhow::Error>(
            rig.world
                .access
                .kubectl_command(&args)
                .output()?
                .stdout
                .starts_with(b"yes"),
        )
    };
    let elsewhere = rig.world.namespace().await?;
    for verb in ["list", "watch"] {
        for what in [
            "terraformruns.pawl.run",
            "terraformlayers.pawl.run",
            "terraformrepositories.pawl.run",
            "pods",
        ] {
            ensure!(may(verb, what, &["-n", &rig.namespace])?, "{verb} {what}");
            ensure!(
                !may(verb, what, &["-n", &elsewhere])? && !may(verb, what, &["-A"])?,
                "{verb} {what} elsewhere"
            );
        }
        // For finalizers of a namespace that went with its rights.
        for what in ["terraformruns.pawl.run", "terraformlayers.pawl.run"] {
            ensure!(may("patch", what, &["-n", &elsewhere])?, "patch {what}");
            ensure!(!may("create", what, &["-n", &elsewhere])?, "create {what}");
        }
        for what in [
            "nodes",
            "namespaces",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ] {
            ensure!(may(verb, what, &[])?, "{verb} {what}");
        }
    }
    Ok(())
}

/// The RoleBinding of a listed namespace is deleted with the namespace, here before the run. The test plays the namespace controller.
async fn run_outlives_no_namespace_that_took_the_rights_away(world: World) -> Result<()> {
    let rig = Rig::narrow(world).await?;
    rig.create(&json!({})).await?;
    rig.look("opened", is_open(1)).await?;
    rig.annotate(&json!({names::CANCEL: "now"})).await?;
    let ended = |status: &TerraformRunStatus| status.is_terminal() && is_closed(status);
    rig.look("canceled", ended).await?;
    let pods = rig.pods();
    for pod in pods.list(&ListParams::default()).await? {
        wait::gone(&pods, &pod.name_any(), PATIENCE).await?;
    }
    let (namespaces, now) = (
        Api::<Namespace>::all(rig.world.admin.clone()),
        DeleteParams::default(),
    );
    namespaces.delete(&rig.namespace, &now).await?;
    let going = namespaces.get(&rig.namespace).await?;
    let freezes = &rig.context.cluster.freezes;
    ensure!(freezes.show(&rig.namespace, Some(&going)), "it stays");
    let name = format!("narrow-{}-controller", rig.namespace);
    let bindings: Api<RoleBinding> = Api::namespaced(rig.world.admin.clone(), &rig.namespace);
    bindings.delete(&name, &now).await?;
    let client = rig.world.process(&name).await?;
    let lost: Api<TerraformRun> = Api::namespaced(client, &rig.namespace);
    wait::until("the rights are gone", PATIENCE, async || {
        Ok(lost.get(RUN).await.is_err())
    })
    .await?;
    let runs = rig.world.runs(&rig.namespace);
    runs.delete(RUN, &now).await?;
    wait::until("the run is gone", PATIENCE, async || {
        let _ = rig.step().await;
        Ok(runs.get_opt(RUN).await?.is_none())
    })
    .await
}

/// For one run the creation of the pod is refused; for the other the policy probe, which it needs first.
async fn terminating_namespace_is_named_by_its_runs(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let modes = ["Manual", "Automatic"];
    for mode in modes {
        rig.world
            .create(
                &rig.namespace,
                &mode.to_lowercase(),
                &json!({"approval": {"mode": mode}}),
            )
            .await?;
    }
    // Without a namespace controller it stays Terminating.
    let namespaces: Api<Namespace> = Api::all(rig.world.admin.clone());
    namespaces
        .delete(&rig.namespace, &DeleteParams::default())
        .await?;
    for name in modes.map(str::to_lowercase) {
        let look = async || {
            rig.step_of(&name).await?;
            let status = rig
                .world
                .runs(&rig.namespace)
                .get(&name)
                .await?
                .status
                .unwrap_or_default();
            let stalled = status
                .conditions
                .iter()
                .find(|c| c.type_ == conditions::STALLED && c.status == "True");
            Ok(stalled.cloned().ok_or_else(|| format!("{status:?}")))
        };
        let stalled = wait::until(format!("{name} stalls"), PATIENCE, look).await?;
        let text = format!(
            "namespace {} is being deleted, and nothing can be created in it",
            rig.namespace
        );
        ensure!(
            (stalled.reason.as_str(), &stalled.message) == (reason::NAMESPACE_TERMINATING, &text),
            "{stalled:?}"
        );
    }
    Ok(())
}
