//! A real forge: what is pushed to Gitea comes by its webhook to the server in the cluster, and from there to an applied plan.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use crds::{TerraformRepository, names};
use kube::ResourceExt as _;
use serde_json::json;
use tests::servers::{
    gitea::Gitea,
    webhook::{self, Hook},
};

use crate::{
    layers::Layers,
    suite::{Scene, Test},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new("forge::what_is_pushed_to_gitea_is_planned_approved_and_applied", pushed)]
}

async fn pushed(scene: Scene) -> Result<()> {
    let cluster = &scene.suite.cluster;
    let tools = Gitea::tools()?.context("gitea is not built")?;
    let gitea = Gitea::start(&tools, IpAddr::V4(cluster.host()), &cluster.network().services()).await?;
    gitea.create("infrastructure").await?;
    let (user, token) = gitea.credentials();
    let login = [format!("--from-literal=username={user}"), format!("--from-literal=password={token}")];
    scene.kubectl(&["create", "secret", "generic", "gitea", &login[0], &login[1]])?;
    webhook::bind(cluster, &scene.namespace, "pawl-sources").await?;
    // Within the test nothing but a poke has it looked at a second time.
    let spec = json!({"url": gitea.clone_url("infrastructure"), "interval": "24h", "secretRef": {"name": "gitea"},
        "defaults": {"tool": {"name": "OpenTofu", "version": "1.10.6"}}});
    let hook = Hook::set(cluster, &scene.namespace, "infrastructure", spec).await?;
    let (url, secret) = hook.settings();
    gitea.hook("infrastructure", url, secret).await?;

    let layers = Layers::of(&scene);
    layers.layer("app", json!({})).await?;
    let without = |source: &crds::LayerSource| source.missing.is_some();
    layers.until("app", "without its directory", |status| status.source.as_ref().is_some_and(without)).await?;
    let before = answered(&layers).await?;
    let commit = gitea.commit("infrastructure", "main", "app/main.tf", &layers.kept("app", 1)).await?;
    layers.approve("app", &commit).await.with_context(|| gitea.log())?;
    ensure!(layers.text("app").as_deref() == Some("round 1"), "{:?}", layers.text("app"));
    let after = answered(&layers).await?;
    ensure!(after > before, "the push was found without being told of: {after}");
    Ok(())
}

/// The poke that was answered last, once none is open.
async fn answered(layers: &Layers) -> Result<String> {
    let poke = |repository: &TerraformRepository| repository.annotations().get(names::POKE).cloned();
    let answer = |repository: &TerraformRepository| repository.status.as_ref()?.last_handled_poke.clone();
    let done = |repository: &TerraformRepository| poke(repository).is_some() && poke(repository) == answer(repository);
    let repository = layers.repository("with its poke answered", done).await?;
    poke(&repository).context("no poke")
}
