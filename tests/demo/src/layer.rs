//! A layer: planned automatically after a push, approved by a person, and checked for drift after a manual change.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use crds::{LayerState, TerraformLayer, TerraformLayerStatus, TerraformRepository, names};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::act::{Act, Ended};
use super::screen::{self, Step};
use super::servers::Servers;
use super::stack::{self, LAYER, NAMESPACE, REPOSITORY};
use harness::cluster::report;

/// Time limit for a busy machine.
const WITHIN: Duration = Duration::from_secs(300);

/// Plays the layer's part of the story.
pub(super) async fn play(act: &Act<'_>, client: &Client, servers: &Servers) -> Result<Ended> {
    let scene = Scene::new(act, client, servers);
    let step = Step::begin(7, "layer");
    stack::greet(servers, "Hello")?;
    scene.create().await?;
    let pending = scene.until("planned", |status| status.pending.is_some() || is_at_rest(status)).await?;
    step.done(&format!("{NAMESPACE}/{LAYER} follows main of {}, directory {LAYER}", servers.git_url(REPOSITORY)));
    if pending.pending.is_some() {
        // An earlier demo left another text.
        let ended = scene.carry(&pending, 7).await?;
        if ended != Ended::Applied {
            return Ok(ended);
        }
    }

    let step = Step::begin(8, "commit");
    let commit = stack::greet(servers, &format!("Good morning, at {}", jiff::Timestamp::now().as_second()))?;
    scene.request().await?;
    let planned = |status: &TerraformLayerStatus| {
        status.pending.is_some() && status.last_plan.as_ref().is_some_and(|plan| plan.revision == commit)
    };
    let pending = scene.until("planned at the new commit", planned).await?;
    step.done(&format!("{} pushed; its plan starts without a request", &commit[..8]));
    let ended = scene.carry(&pending, 8).await?;
    if ended != Ended::Applied {
        return Ok(ended);
    }

    let step = Step::begin(9, "drift");
    servers.change_by_hand(LAYER, "changed by hand").await?;
    screen::line(&format!("somebody changed what {LAYER} made: curl -X PUT -d 'changed by hand' {}", servers.object_url(LAYER)));
    screen::line(&format!("$ kubectl annotate -n {NAMESPACE} layer {LAYER} {}=now   (or wait for the next check)", names::PLAN));
    scene.annotate_layer().await?;
    let drifted = scene.until("found to have drifted", |status| status.drift.is_some() && status.pending.is_some()).await?;
    let drift = drifted.drift.as_ref().context("a layer without drift")?;
    step.done(&format!("found: {}", drift.objects.join(", ")));
    let ended = scene.carry(&drifted, 9).await?;
    if ended == Ended::Applied {
        scene.until("as it should be", |status| status.drift.is_none() && is_at_rest(status)).await?;
        act.describe("terraformlayer", LAYER)?;
    }
    Ok(ended)
}

struct Scene<'a> {
    act: &'a Act<'a>,
    servers: &'a Servers,
    layers: Api<TerraformLayer>,
    repositories: Api<TerraformRepository>,
}

impl<'a> Scene<'a> {
    fn new(act: &'a Act<'a>, client: &Client, servers: &'a Servers) -> Self {
        let (layers, repositories) = (Api::namespaced(client.clone(), NAMESPACE), Api::namespaced(client.clone(), NAMESPACE));
        Self { act, servers, layers, repositories }
    }

    /// Creates repository and layer, unless they exist.
    async fn create(&self) -> Result<()> {
        let repository = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRepository", "metadata": {"name": REPOSITORY},
            "spec": {"url": self.servers.git_url(REPOSITORY), "defaults": {"tool": {"name": "OpenTofu"}}}});
        let variable = json!({"name": "url", "value": self.servers.object_url(LAYER)});
        let layer = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformLayer", "metadata": {"name": LAYER},
            "spec": {"repository": {"name": REPOSITORY}, "ref": "main", "path": LAYER, "template": {"variables": [variable]}}});
        let applied = PatchParams::apply("pawl-demo").force();
        self.repositories.patch(REPOSITORY, &applied, &Patch::Apply(repository)).await.context("cannot make the repository")?;
        self.request().await?;
        self.layers.patch(LAYER, &applied, &Patch::Apply(layer)).await.context("cannot make the layer")?;
        Ok(())
    }

    /// Pending after a push, like a webhook.
    async fn request(&self) -> Result<()> {
        let patch = annotation(names::RECONCILE, &jiff::Timestamp::now().to_string());
        self.repositories.patch(REPOSITORY, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn annotate_layer(&self) -> Result<()> {
        self.layers.patch(LAYER, &PatchParams::default(), &annotation(names::PLAN, "now")).await?;
        Ok(())
    }

    async fn carry(&self, status: &TerraformLayerStatus, step: u8) -> Result<Ended> {
        let pending = status.pending.as_ref().context("no plan waits")?;
        self.act.play(&self.act.runs.get(&pending.run).await?, step).await
    }

    async fn until(&self, what: &str, done: impl Fn(&TerraformLayerStatus) -> bool) -> Result<TerraformLayerStatus> {
        let deadline = tokio::time::Instant::now() + WITHIN;
        let mut said = String::new();
        loop {
            let status = self.layers.get(LAYER).await?.status.unwrap_or_default();
            if done(&status) {
                return Ok(status);
            }
            let waits = status.waits_for.clone().unwrap_or_default();
            if waits != said && !waits.is_empty() {
                screen::line(&waits);
            }
            said = waits;
            if tokio::time::Instant::now() > deadline {
                bail!(
                    "layer {LAYER} is not {what} after {}: {said}; look at it: {} && kubectl describe -n {NAMESPACE} layer,tfrepo",
                    report::duration(WITHIN),
                    super::ENV
                );
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Whether the layer has planned its newest content and is idle.
fn is_at_rest(status: &TerraformLayerStatus) -> bool {
    let planned = status.last_plan.as_ref().map(|plan| &plan.content);
    status.state == Some(LayerState::Idle) && planned.is_some() && planned == status.source.as_ref().map(|source| &source.content)
}

fn annotation(key: &str, value: &str) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"annotations": {key: value}}}))
}
