//! Namespaces that are missing, or being deleted: said at once, to whoever makes a run in one or has one there.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use crds::{conditions, reason};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use crate::{
    rig::{RUN, Rig},
    world::{PATIENCE, Test, World, refused, run},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("namespaces::one_that_is_missing_is_named_when_the_run_is_made", true, missing),
        Test::new("namespaces::one_that_is_being_deleted_is_named_by_its_runs", true, going),
    ]
}

async fn missing(world: World) -> Result<()> {
    let created = world.runs("no-such").create(&PostParams::default(), &run(RUN, &json!({}))?).await;
    refused("of no namespace", created, "namespaces \"no-such\" not found")
}

/// The pod of one run is refused, and the proof that another one needs before it begins.
async fn going(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let modes = ["Manual", "Automatic"];
    for mode in modes {
        rig.world.create(&rig.namespace, &mode.to_lowercase(), &json!({"approval": {"mode": mode}})).await?;
    }
    // Nobody plays the namespace controller: it is Terminating from now on.
    let namespaces: Api<Namespace> = Api::all(rig.world.admin.clone());
    namespaces.delete(&rig.namespace, &DeleteParams::default()).await?;
    let started = Instant::now();
    for name in modes.map(str::to_lowercase) {
        loop {
            rig.step_of(&name).await?;
            let status = rig.world.runs(&rig.namespace).get(&name).await?.status.unwrap_or_default();
            let stalled = status.conditions.iter().find(|c| c.type_ == conditions::STALLED && c.status == "True");
            if let Some(stalled) = stalled {
                let text = format!("namespace {} is being deleted, and nothing can be created in it", rig.namespace);
                ensure!((stalled.reason.as_str(), &stalled.message) == (reason::NAMESPACE_TERMINATING, &text), "{stalled:?}");
                break;
            }
            ensure!(started.elapsed() < PATIENCE, "{name} says nothing: {status:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}
