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
use harness::cluster::{objects, report};

/// Time limit for a busy machine.
const WITHIN: Duration = Duration::from_secs(300);

/// Plays the layer's part of the story.
pub(super) async fn play(act: &Act<'_>, client: &Client, servers: &Servers) -> Result<Ended> {
    let scene = Scene::new(act, client, servers);
    let step = Step::begin(7, "layer");
    stack::greet(servers, "Hello")?;
    scene.create().await?;
    let planned = |status: &TerraformLayerStatus| status.pending.is_some() || is_at_rest(status);
    let status = scene.until("planned", planned).await?;
    let url = servers.git_url(REPOSITORY);
    step.done(&format!(
        "{NAMESPACE}/{LAYER} follows main of {url}, directory {LAYER}"
    ));
    screen::line(&format!(
        "to push to it from this machine: git clone {}",
        servers.repository(REPOSITORY).display()
    ));
    if status.pending.is_some() {
        // An earlier demo left another text.
        let ended = scene.carry(&status, 7).await?;
        if ended != Ended::Applied {
            return Ok(ended);
        }
    }

    let step = Step::begin(8, "commit");
    let text = format!("Good morning, at {}", jiff::Timestamp::now().as_second());
    let commit = stack::greet(servers, &text)?;
    scene.request().await?;
    let planned = |status: &TerraformLayerStatus| {
        let plan = status
            .last_plan
            .as_ref()
            .filter(|_| status.pending.is_some());
        plan.is_some_and(|plan| plan.revision == commit)
    };
    let status = scene.until("planned at the new commit", planned).await?;
    step.done(&format!(
        "{} pushed; its plan was not requested",
        &commit[..8]
    ));
    let ended = scene.carry(&status, 8).await?;
    if ended != Ended::Applied {
        return Ok(ended);
    }

    let step = Step::begin(9, "drift");
    servers.change_by_hand(LAYER, "changed by hand").await?;
    let (url, plan) = (servers.object_url(LAYER), names::PLAN);
    screen::line(&format!(
        "the object of {LAYER} is changed: curl -X PUT -d 'changed by hand' {url}"
    ));
    screen::line(&format!(
        "$ kubectl annotate -n {NAMESPACE} layer {LAYER} {plan}=now   (or wait for the next check)"
    ));
    objects::merge(&scene.layers, LAYER, &annotation(plan, "now")).await?;
    let drifted =
        |status: &TerraformLayerStatus| status.drift.is_some() && status.pending.is_some();
    let status = scene.until("found to have drifted", drifted).await?;
    let drift = status.drift.as_ref().context("a layer without drift")?;
    step.done(&format!("found: {}", drift.objects.join(", ")));
    let ended = scene.carry(&status, 9).await?;
    if ended == Ended::Applied {
        let corrected =
            |status: &TerraformLayerStatus| status.drift.is_none() && is_at_rest(status);
        scene.until("as it should be", corrected).await?;
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
        let layers = Api::namespaced(client.clone(), NAMESPACE);
        Self {
            act,
            servers,
            layers,
            repositories: Api::namespaced(client.clone(), NAMESPACE),
        }
    }

    /// Creates repository and layer, unless they exist.
    async fn create(&self) -> Result<()> {
        let repository = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRepository", "metadata": {"name": REPOSITORY},
            "spec": {"url": self.servers.git_url(REPOSITORY), "defaults": {"tool": {"name": "OpenTofu"}}}});
        let variable = json!({"name": "url", "value": self.servers.object_url(LAYER)});
        let layer = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformLayer", "metadata": {"name": LAYER},
            "spec": {"repository": {"name": REPOSITORY}, "ref": "main", "path": LAYER, "template": {"variables": [variable]}}});
        let applied = PatchParams::apply("pawl-demo").force();
        let repository = Patch::Apply(repository);
        let made = self
            .repositories
            .patch(REPOSITORY, &applied, &repository)
            .await;
        made.context("cannot make the repository")?;
        self.request().await?;
        let made = self
            .layers
            .patch(LAYER, &applied, &Patch::Apply(layer))
            .await;
        made.context("cannot make the layer").map(drop)
    }

    /// Requests a look at the repository after a push, like a webhook.
    async fn request(&self) -> Result<()> {
        let patch = annotation(names::RECONCILE, &jiff::Timestamp::now().to_string());
        objects::merge(&self.repositories, REPOSITORY, &patch).await?;
        Ok(())
    }

    async fn carry(&self, status: &TerraformLayerStatus, step: u8) -> Result<Ended> {
        let pending = status.pending.as_ref().context("no plan waits")?;
        let run = self.act.runs.get(&pending.run).await?;
        self.act.play(&run, step).await
    }

    async fn until(
        &self,
        what: &str,
        done: impl Fn(&TerraformLayerStatus) -> bool,
    ) -> Result<TerraformLayerStatus> {
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
                let within = report::duration(WITHIN);
                let look = format!(
                    "{} && kubectl describe -n {NAMESPACE} layer,tfrepo",
                    super::ENV
                );
                bail!("layer {LAYER} is not {what} after {within}: {said}; look at it: {look}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Whether the layer has planned its newest content and is idle.
fn is_at_rest(status: &TerraformLayerStatus) -> bool {
    let planned = status.last_plan.as_ref().map(|plan| &plan.content);
    status.state == Some(LayerState::Idle)
        && planned.is_some()
        && planned == status.source.as_ref().map(|source| &source.content)
}

fn annotation(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}
