//! The place of reason and next step in `kubectl describe`.

use anyhow::{Context as _, Result, ensure};
use crds::{LayerState, TerraformRepository, TerraformRepositoryStatus, names};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;
use sources::{
    failure::Problem,
    status::{self, Look, Seen},
};

use super::Scene;
use crate::world::World;

/// The lines of `kubectl describe` up to the message of the condition Ready, which ends in a step: the spec's end, and the message. The first is 1.
fn lines_of_step(text: &str) -> Result<(usize, usize)> {
    let line = |is: &dyn Fn(&str) -> bool| text.lines().position(is).map(|at| at + 1);
    let message =
        |line: &str| line.trim_start().starts_with("Message:") && line.contains("; next step: ");
    line(&|line| line == "Status:")
        .zip(line(&message))
        .with_context(|| text.to_owned())
}

/// Only the spec precedes the condition Ready, which has message and step: within 30 lines, for a layer without a template.
pub(super) async fn describe_begins_with_reason_and_step(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let controller = scene.controller().await?;
    let describe = |kind: &str, name: &str| {
        let text = format!("kubectl describe -n {} {kind}/{name}", scene.namespace);
        lines_of_step(&scene.world.paste(&text)?)
    };
    let config = json!({"bucket": "states", "key": "app", "region": "eu-central-1"});
    let template = json!({"stack": "app", "runner": {"serviceAccountName": "app"}, "backend": {"type": "s3", "config": config},
        "variables": [{"name": "zone", "value": "north"}, {"name": "size", "value": 3}]});
    for (layer, spec, content) in [
        ("net", json!({}), 'a'),
        ("app", json!({"template": template}), 'b'),
    ] {
        scene.layer(layer, &spec).await?;
        scene.commit(layer, '1', content).await?;
        let run = scene.open(content).await?;
        scene.waits(&run.name_any()).await?;
        scene.is(layer, LayerState::ApplyNeeded).await?;
        let (status, step) = describe(names::KUBECTL_LAYER, layer)?;
        ensure!(step == status + 3, "{layer}: line {step}, not {status} + 3");
        ensure!(step <= 30 || layer == "app", "{layer}: line {step}");
    }
    let problem = Problem::new(
        crds::Reason::SourceUnauthorized,
        "it wants other credentials",
    );
    let look = Look {
        refs: vec![("main".into(), Seen::Failed(problem.clone()))],
        failed: Some(problem),
        ..Look::default()
    };
    let step = |problem: &Problem| problem.next_step(&scene.namespace, "infra", true);
    let status = status::next(
        &TerraformRepositoryStatus::default(),
        &look,
        step,
        jiff::Timestamp::now(),
    );
    let repositories: Api<TerraformRepository> =
        Api::namespaced(scene.world.admin.clone(), &scene.namespace);
    let patch = Patch::Merge(json!({"status": status}));
    repositories
        .patch_status("infra", &PatchParams::default(), &patch)
        .await?;
    let (_, step) = describe("terraformrepositories.pawl.run", "infra")?;
    ensure!(step <= 30, "line {step}");
    controller.stops().await;
    Ok(())
}
