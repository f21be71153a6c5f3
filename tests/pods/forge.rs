//! A real forge: a push to Gitea reaches the server in the cluster by webhook and leads to an applied plan. Unauthenticated webhooks are
//! refused, and a push without a webhook is found by polling.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use crds::{TerraformRepository, names};
use kube::ResourceExt as _;
use serde_json::json;
use servers::{
    gitea::Gitea,
    webhook::{self, Hook},
};

use crate::{
    layers::Layers,
    suite::{Scene, Test},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "forge::push_to_gitea_is_planned_and_applied",
        pushed,
    )]
}

async fn pushed(scene: Scene) -> Result<()> {
    let cluster = &scene.suite.cluster;
    let tools = Gitea::tools()?.context("gitea is not built")?;
    let gitea = Gitea::start(
        &tools,
        IpAddr::V4(cluster.host()),
        &cluster.network().services(),
    )
    .await?;
    gitea.create("infrastructure").await?;
    let (user, token) = gitea.credentials();
    scene.secret("gitea", &[("username", user), ("password", token)])?;
    webhook::bind(cluster, &scene.namespace, "pawl-sources").await?;
    let spec = json!({"url": gitea.clone_url("infrastructure"), "interval": "30s", "secretRef": {"name": "gitea"},
        "defaults": {"tool": {"name": "OpenTofu", "version": "1.10.6"}}});
    let hook = Hook::set(cluster, &scene.namespace, "infrastructure", spec).await?;
    let layers = Layers::of(&scene)?;
    layers.layer("app", json!({})).await?;
    let without = |source: &crds::LayerSource| source.missing.is_some();
    layers
        .until("app", "without its directory", |status| {
            status.source.as_ref().is_some_and(without)
        })
        .await?;

    // A push without a webhook, as if it was lost. Meanwhile others send forged webhooks.
    let commit = gitea
        .commit(
            "infrastructure",
            "main",
            "app/main.tf",
            &layers.kept("app", 1),
        )
        .await?;
    let before = answered(&layers).await?;
    refused(&hook).await?;
    layers
        .approve("app", &commit)
        .await
        .with_context(|| gitea.log())?;
    ensure!(
        layers.text("app").as_deref() == Some("round 1"),
        "{:?}",
        layers.text("app")
    );
    ensure!(
        answered(&layers).await? == before,
        "somebody told of the push"
    );

    // From here on only webhooks trigger a poll.
    scene.kubectl(&[
        "patch",
        "terraformrepository",
        "infrastructure",
        "--type=merge",
        "-p",
        r#"{"spec":{"interval":"24h"}}"#,
    ])?;
    let seen = |repository: &TerraformRepository| {
        repository
            .status
            .as_ref()
            .is_some_and(|status| status.observed_generation == repository.metadata.generation)
    };
    layers
        .repository("looked at with its interval", seen)
        .await?;
    let (url, secret) = hook.settings();
    gitea.hook("infrastructure", url, secret).await?;
    let commit = gitea
        .commit(
            "infrastructure",
            "main",
            "app/main.tf",
            &layers.kept("app", 2),
        )
        .await?;
    layers
        .approve("app", &commit)
        .await
        .with_context(|| gitea.log())?;
    ensure!(
        layers.text("app").as_deref() == Some("round 2"),
        "{:?}",
        layers.text("app")
    );
    let after = answered(&layers).await?;
    ensure!(
        after > before,
        "the push was found without being told of: {after}"
    );

    let body = br#"{"ref": "refs/heads/main"}"#.to_vec();
    let signed = hook.signature(&body);
    let answer = hook.deliver("signed here", body, Some(&signed)).await?;
    ensure!(answer == (202, "accepted".to_owned()), "{answer:?}");
    let requested = |repository: &TerraformRepository| {
        repository.annotations().get(names::RECONCILE) > Some(&after)
    };
    layers
        .repository("requested by what was signed", requested)
        .await
        .map(drop)
}

/// Unauthenticated and oversized webhooks.
async fn refused(hook: &Hook) -> Result<()> {
    let body = b"{}".to_vec();
    let (right, other) = (hook.signature(&body), hook.signature(b"{ }"));
    for (what, body, signature, wanted) in [
        ("unsigned", body.clone(), None, (401, "noProof")),
        (
            "with the signature of another body",
            body.clone(),
            Some(&other),
            (401, "wrongProof"),
        ),
        (
            "changed on its way",
            b"{}\n".to_vec(),
            Some(&right),
            (401, "wrongProof"),
        ),
    ] {
        let (code, verdict) = hook
            .deliver(what, body, signature.map(String::as_str))
            .await?;
        ensure!(
            (code, verdict.as_str()) == wanted,
            "a delivery that is {what}: {code} {verdict}"
        );
    }
    // The response comes before the whole body is sent.
    let (code, _) = hook.exchange((25 << 20) + 1, &body).await?;
    ensure!(code == "413", "a delivery that is too large: {code}");
    Ok(())
}

/// The last handled request, once none is pending.
async fn answered(layers: &Layers) -> Result<String> {
    let request =
        |repository: &TerraformRepository| repository.annotations().get(names::RECONCILE).cloned();
    let answer = |repository: &TerraformRepository| {
        repository.status.as_ref()?.last_handled_reconcile.clone()
    };
    let done = |repository: &TerraformRepository| {
        request(repository).is_some() && request(repository) == answer(repository)
    };
    let repository = layers.repository("with its request answered", done).await?;
    request(&repository).context("no request")
}
