//! Missing namespaces, and namespaces being deleted: reported at once, to the author of a run or in the status of an existing run.

use anyhow::{Result, ensure};
use crds::{conditions, reason};
use harness::wait;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use crate::{
    nodes::{Machine, applying, says},
    rig::{RUN, Rig},
    world::{PATIENCE, Test, World, refused, run},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("namespaces::one_that_is_missing_is_named_when_the_run_is_made", true, missing),
        Test::new("namespaces::one_that_is_being_deleted_is_named_by_its_runs", true, going),
        Test::new("namespaces::a_controller_that_is_told_of_one_has_what_it_needs_there_and_nothing_elsewhere", true, listed),
    ]
}

async fn missing(world: World) -> Result<()> {
    let created = world.runs("no-such").create(&PostParams::default(), &run(RUN, &json!({}))?).await;
    refused("of no namespace", created, "namespaces \"no-such\" not found")
}

/// A run from creation to deletion, by a controller with the chart's rights for listed namespaces.
async fn listed(world: World) -> Result<()> {
    let rig = Rig::narrow(world).await?;
    let node = Machine::new(&rig, "n", true).await?;
    applying(&rig, &node).await?;
    // Probes are refused on purpose, and have succeeded by now.
    let before = rig.forbidden();
    node.goes().await?;
    rig.look("told that its node is gone", |run| says(run, reason::POD_GONE)).await?;
    rig.later(61);
    rig.look("ended and tidied up", |run| {
        let status = run.status.as_ref();
        status.is_some_and(|status| status.is_terminal() && status.lease.is_none() && status.attempt.iter().all(|a| !a.open))
    })
    .await?;
    let runs = rig.world.runs(&rig.namespace);
    runs.delete(RUN, &DeleteParams::default()).await?;
    wait::until("it is gone", PATIENCE, async || {
        // It may be gone already.
        let _ = rig.step().await;
        Ok(runs.get_opt(RUN).await?.map_or(Ok(()), |run| Err(format!("{:?}", run.metadata))))
    })
    .await?;
    ensure!(rig.forbidden() == before, "{before:?} became {:?}", rig.forbidden());
    // The rights of its watches, and none in other namespaces.
    let account = format!("system:serviceaccount:pawl-system:narrow-{}-controller", rig.namespace);
    let may = |verb: &str, what: &str, place: &[&str]| {
        let mut args = vec!["auth", "can-i", verb, what, "--as", account.as_str()];
        args.extend(place);
        Ok::<_, anyhow::Error>(rig.world.access.kubectl_command(&args).output()?.stdout.starts_with(b"yes"))
    };
    let elsewhere = rig.world.namespace().await?;
    for verb in ["list", "watch"] {
        for what in ["terraformruns.pawl.run", "terraformlayers.pawl.run", "terraformrepositories.pawl.run", "pods"] {
            ensure!(may(verb, what, &["-n", &rig.namespace])?, "{verb} {what}");
            ensure!(!may(verb, what, &["-n", &elsewhere])? && !may(verb, what, &["-A"])?, "{verb} {what} elsewhere");
        }
        for what in ["nodes", "namespaces", "validatingadmissionpolicies", "validatingadmissionpolicybindings"] {
            ensure!(may(verb, what, &[])?, "{verb} {what}");
        }
    }
    Ok(())
}

/// For one run the creation of the pod is refused; for the other the policy probe, which it needs first.
async fn going(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let modes = ["Manual", "Automatic"];
    for mode in modes {
        rig.world.create(&rig.namespace, &mode.to_lowercase(), &json!({"approval": {"mode": mode}})).await?;
    }
    // Without a namespace controller it stays Terminating.
    let namespaces: Api<Namespace> = Api::all(rig.world.admin.clone());
    namespaces.delete(&rig.namespace, &DeleteParams::default()).await?;
    for name in modes.map(str::to_lowercase) {
        let look = async || {
            rig.step_of(&name).await?;
            let status = rig.world.runs(&rig.namespace).get(&name).await?.status.unwrap_or_default();
            let stalled = status.conditions.iter().find(|c| c.type_ == conditions::STALLED && c.status == "True");
            Ok(stalled.cloned().ok_or_else(|| format!("{status:?}")))
        };
        let stalled = wait::until(format!("{name} says that it stalls"), PATIENCE, look).await?;
        let text = format!("namespace {} is being deleted, and nothing can be created in it", rig.namespace);
        ensure!((stalled.reason.as_str(), &stalled.message) == (reason::NAMESPACE_TERMINATING, &text), "{stalled:?}");
    }
    Ok(())
}
