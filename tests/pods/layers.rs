//! Layers of repositories: real git, `controller sources`, real OpenTofu, and manual changes.

use std::{ops::Deref, time::Duration};

use anyhow::{Context as _, Result, ensure};
use crds::{LayerState, RunResult, TerraformLayer, TerraformLayerStatus, TerraformRepository, names};
use harness::{cluster::objects, wait};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use servers::{large, repo::Repo};

use crate::{
    guide::Reader,
    suite::{LATER, Scene, Test, merge},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("layers::drift_is_found_shown_and_applied_when_approved", drift),
        Test::new("layers::relevant_commits_are_planned_and_others_are_not", commits),
        Test::new("layers::an_automatic_one_keeps_up_and_prunes_its_history", automatic),
        Test::new("layers::a_deleted_branch_stops_no_other", branches),
        Test::new("layers::the_younger_of_two_on_one_state_is_refused", one_state),
        Test::new("layers::nothing_begins_while_suspended_or_frozen", held_up),
        Test::new("layers::what_it_made_is_destroyed_with_it", deleted),
        Test::new("layers::large_files_come_with_the_revision", large_files),
    ]
}

/// The layers of a namespace, all of the repository `infrastructure`, and their real objects, which are texts at URLs.
#[derive(Clone)]
pub(crate) struct Layers {
    scene: Scene,
}

impl Layers {
    pub(crate) fn of(scene: &Scene) -> Self {
        Self { scene: scene.clone() }
    }

    /// A stack whose object stores the number of a round.
    pub(crate) fn kept(&self, object: &str, round: usize) -> String {
        let url = self.scene.suite.objects.url(&self.object(object));
        module(&format!("round {round}")).replace("variable \"url\" {}\n\n", "").replace("var.url", &format!("\"{url}\""))
    }

    fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.scene.namespace)
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.scene.suite.objects.get(&self.object(name))
    }

    fn repositories(&self) -> Api<TerraformRepository> {
        Api::namespaced(self.scene.suite.client.clone(), &self.scene.namespace)
    }

    pub(crate) fn layers(&self) -> Api<TerraformLayer> {
        Api::namespaced(self.scene.suite.client.clone(), &self.scene.namespace)
    }

    pub(crate) async fn layer(&self, name: &str, spec: Value) -> Result<()> {
        let mut whole = json!({"repository": {"name": "infrastructure"}, "path": "app"});
        merge(&mut whole, spec);
        objects::create(&self.layers(), json!({"metadata": {"name": name}, "spec": whole})).await?;
        Ok(())
    }

    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        done: impl Fn(&TerraformLayerStatus) -> bool,
    ) -> Result<TerraformLayerStatus> {
        let look = |layer: &TerraformLayer| done(&layer.status.clone().unwrap_or_default());
        let found = wait::object(&self.layers(), name, what, LATER, look).await;
        let seen = || self.scene.kubectl(&["describe", "terraformlayers,terraformrepositories"]).unwrap_or_default();
        Ok(found.with_context(seen)?.status.unwrap_or_default())
    }

    /// Waits for a plan of a commit, and runs the layer's next step.
    pub(crate) async fn approve(&self, name: &str, revision: &str) -> Result<TerraformLayerStatus> {
        let planned = |status: &TerraformLayerStatus| {
            status.pending.is_some() && status.last_plan.as_ref().is_some_and(|plan| plan.revision == revision)
        };
        let waits = self.until(name, &format!("planned at {revision}"), planned).await?;
        ensure!(waits.state == Some(LayerState::ApplyNeeded), "{waits:?}");
        self.do_next(&waits)?;
        let applied = |status: &TerraformLayerStatus| {
            status.state == Some(LayerState::Idle) && status.last_apply.as_ref().is_some_and(|apply| apply.revision == revision)
        };
        self.until(name, &format!("applied at {revision}"), applied).await
    }

    fn do_next(&self, status: &TerraformLayerStatus) -> Result<()> {
        self.scene.paste(status.next_step.as_deref().context("no next step")?).map(drop)
    }

    pub(crate) async fn repository(
        &self,
        what: &str,
        done: impl Fn(&TerraformRepository) -> bool,
    ) -> Result<TerraformRepository> {
        wait::object(&self.repositories(), "infrastructure", what, LATER, done).await
    }

    /// Waits until the head of a branch was polled and all its consequences are done.
    async fn seen(&self, branch: &str, revision: &str) -> Result<()> {
        let at = |repository: &TerraformRepository| {
            let refs = repository.status.as_ref().map(|status| status.refs.as_slice()).unwrap_or_default();
            let of = refs.iter().find(|of| of.name == branch).and_then(|of| of.commit.as_ref());
            of.is_some_and(|commit| commit.revision == revision)
        };
        self.repository(&format!("seen with {branch} at {revision}"), at).await.map(drop)
    }

    async fn run_names(&self) -> Result<Vec<String>> {
        let runs = self.scene.runs().list(&ListParams::default()).await?;
        Ok(runs.items.iter().map(kube::ResourceExt::name_any).collect())
    }
}

/// Layers and their repository.
pub(crate) struct Stage {
    layers: Layers,
    pub(crate) repo: Repo,
}

impl Deref for Stage {
    type Target = Layers;

    fn deref(&self) -> &Layers {
        &self.layers
    }
}

impl Stage {
    /// A repository with one stack, which stores a text at a URL by means of a module next to it.
    pub(crate) async fn set(scene: &Scene) -> Result<Self> {
        let name = format!("{}/infrastructure", scene.namespace);
        let repo = scene.suite.git.create(&name)?;
        let stage = Self { layers: Layers::of(scene), repo };
        stage.commit(
            "main",
            &[("modules/text/main.tf", &module("one")), ("app/main.tf", &stage.app("app")), ("docs/a.md", "a")],
        )?;
        let spec = json!({"url": scene.suite.git.url(&name), "interval": "1h",
            "defaults": {"tool": {"name": "OpenTofu", "version": "1.10.6"}}});
        objects::create(&stage.repositories(), json!({"metadata": {"name": "infrastructure"}, "spec": spec})).await?;
        Ok(stage)
    }

    fn app(&self, object: &str) -> String {
        let url = self.scene.suite.objects.url(&self.object(object));
        format!("module \"text\" {{\n  source = \"../modules/text\"\n  url    = \"{url}\"\n}}\n")
    }

    /// Runs a block of the guide for the layer `app`; returns its output.
    fn does(&self, block: &str) -> Result<String> {
        let reader = Reader::new(&self.scene)?;
        reader.paste(&reader.here(block)?.replace("tfl/network", "tfl/app"))
    }

    fn commit(&self, branch: &str, files: &[(&str, &str)]) -> Result<String> {
        self.repo.commit(branch, files)
    }

    /// Commits, and requests like a webhook.
    async fn push(&self, branch: &str, files: &[(&str, &str)]) -> Result<String> {
        let commit = self.commit(branch, files)?;
        self.request().await?;
        Ok(commit)
    }

    async fn request(&self) -> Result<()> {
        let word = jiff::Timestamp::now().to_string();
        let patch = Patch::Merge(json!({"metadata": {"annotations": {names::RECONCILE: word}}}));
        self.repositories().patch("infrastructure", &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

fn module(text: &str) -> String {
    format!(
        "terraform {{\n  required_providers {{\n    object = {{ source = \"pawl/object\" }}\n  }}\n}}\n\n\
         variable \"url\" {{}}\n\nresource \"object_text\" \"it\" {{\n  url     = var.url\n  content = \"{text}\"\n}}\n"
    )
}

async fn commits(scene: Scene) -> Result<()> {
    let stage = Stage::set(&scene).await?;
    let first = stage.repo.resolve("main")?.context("no commit")?;
    stage.layer("app", json!({})).await?;
    let status = stage.approve("app", &first).await?;
    ensure!(stage.text("app").as_deref() == Some("one"), "{status:?}");
    let runs = stage.run_names().await?;
    ensure!(runs.len() == 1, "{runs:?}");

    // Changes outside of the layer's directory are not relevant.
    let beside = stage.push("main", &[("docs/a.md", "b"), ("app-old/main.tf", "# not this one\n")]).await?;
    stage.seen("main", &beside).await?;
    let source = stage.layers().get("app").await?.status.and_then(|status| status.source).context("no source")?;
    ensure!(source.revision == first && stage.run_names().await? == runs, "a commit beside it made a run: {source:?}");

    // Changes of a module that it uses are relevant.
    let module_changed = stage.push("main", &[("modules/text/main.tf", &module("two"))]).await?;
    stage.approve("app", &module_changed).await?;
    ensure!(stage.text("app").as_deref() == Some("two"));

    // A reset branch has another tree, which is planned.
    stage.repo.reset("main", Some(&first))?;
    stage.request().await?;
    stage.approve("app", &first).await?;
    ensure!(stage.text("app").as_deref() == Some("one"));
    let status = stage.repositories().get("infrastructure").await?.status.unwrap_or_default();
    ensure!(status.refs.iter().any(|of| of.forced_from.is_some()), "a push by force is not said: {:?}", status.refs);

    // A newer commit supersedes a waiting plan; a denied one is not planned again automatically.
    let third = stage.push("main", &[("modules/text/main.tf", &module("three"))]).await?;
    let waits = stage
        .until("app", "planned", |s| s.pending.is_some() && s.last_plan.as_ref().is_some_and(|plan| plan.revision == third))
        .await?;
    let old = waits.pending.context("nothing waits")?.run;
    let fourth = stage.push("main", &[("modules/text/main.tf", &module("four"))]).await?;
    let of_fourth = |s: &TerraformLayerStatus| s.pending.as_ref().is_some_and(|p| p.run != old) && revision(s) == Some(&fourth);
    let waits = stage.until("app", "planned anew", of_fourth).await?;
    scene.ends(&old, RunResult::Canceled).await?;
    let newer = waits.pending.context("nothing waits")?.run;
    scene.annotate(&newer, &[(names::DENY, Some("not today"))]).await?;
    scene.ends(&newer, RunResult::Rejected).await?;
    let denied = stage.until("app", "denied", |s| s.pending.is_none() && s.current_run.is_none()).await?;
    let runs = stage.run_names().await?;
    stage.does("plan layer")?;
    stage.until("app", "planned once more", |s| s.pending.as_ref().is_some_and(|p| !runs.contains(&p.run))).await?;
    ensure!(denied.state == Some(LayerState::PlanNeeded) || denied.state == Some(LayerState::ApplyNeeded), "{denied:?}");
    Ok(())
}

fn revision(status: &TerraformLayerStatus) -> Option<&String> {
    status.last_plan.as_ref().map(|plan| &plan.revision)
}

async fn drift(scene: Scene) -> Result<()> {
    let stage = Stage::set(&scene).await?;
    let first = stage.repo.resolve("main")?.context("no commit")?;
    stage.layer("app", json!({"drift": {"interval": "1m"}})).await?;
    stage.approve("app", &first).await?;
    scene.suite.objects.put(&stage.object("app"), "by hand");
    let drifted = stage.until("app", "drifted", |s| s.drift.is_some() && s.pending.is_some()).await?;
    let drift = drifted.drift.as_ref().context("no drift")?;
    ensure!(
        drift.objects.iter().any(|object| object.contains("module.text.object_text.it (changed outside of the code: content)")),
        "{drift:?}"
    );
    let step = drifted.next_step.clone().context("no next step")?;
    let look = async || {
        let described = stage.does("see layer")?;
        Ok(if described.trim_end().ends_with(&step) { Ok(described) } else { Err(described) })
    };
    let described = wait::until(format!("it ends in {step}"), LATER, look).await?;
    ensure!(described.contains("module.text.object_text.it"), "{described}");
    stage.do_next(&drifted)?;
    stage.does("wait for layer")?;
    stage.until("app", "as it was", |s| s.drift.is_none() && s.pending.is_none() && s.state == Some(LayerState::Idle)).await?;
    ensure!(stage.text("app").as_deref() == Some("one"));
    Ok(())
}

async fn automatic(scene: Scene) -> Result<()> {
    let stage = Stage::set(&scene).await?;
    let spec = json!({"remediation": {"onCommit": "Automatic"}, "runHistory": 1});
    stage.layer("app", spec).await?;
    for text in ["two", "three", "four"] {
        let commit = stage.push("main", &[("modules/text/main.tf", &module(text))]).await?;
        let applied = |s: &TerraformLayerStatus| {
            s.state == Some(LayerState::Idle) && s.last_apply.as_ref().is_some_and(|apply| apply.revision == commit)
        };
        stage.until("app", &format!("applied at {commit}"), applied).await?;
        ensure!(stage.text("app").as_deref() == Some(text));
    }
    let kept = async || {
        let runs = stage.run_names().await?;
        Ok(if runs.len() <= 2 { Ok(()) } else { Err(format!("{runs:?}")) })
    };
    wait::until("two runs are kept", LATER, kept).await?;
    // Dry: the plan is shown and cannot be applied.
    stage.layer("dry", json!({"remediation": {"onCommit": "Dry"}, "template": {"stack": "dry"}, "path": "dry"})).await?;
    let commit = stage.push("main", &[("dry/main.tf", &stage.app("dry"))]).await?;
    let shown = stage.until("dry", "planned", |s| revision(s) == Some(&commit) && s.current_run.is_none()).await?;
    ensure!(shown.pending.is_none() && stage.text("dry").is_none(), "{shown:?}");
    Ok(())
}

async fn branches(scene: Scene) -> Result<()> {
    let stage = Stage::set(&scene).await?;
    let first = stage.repo.resolve("main")?.context("no commit")?;
    stage.repo.reset("other", Some(&first))?;
    stage.layer("app", json!({})).await?;
    stage.layer("other", json!({"ref": "other", "template": {"stack": "other"}})).await?;
    stage.until("other", "planned", |s| s.pending.is_some()).await?;
    stage.repo.reset("other", None)?;
    let next = stage.push("main", &[("modules/text/main.tf", &module("two"))]).await?;
    stage.approve("app", &next).await?;
    let status = stage.repositories().get("infrastructure").await?.status.unwrap_or_default();
    let failure = status.refs.iter().find(|of| of.name == "other").and_then(|of| of.failure.as_ref());
    ensure!(failure.is_some_and(|failure| !failure.next_step.is_empty()), "nobody says that the branch went: {:?}", status.refs);
    Ok(())
}

async fn one_state(scene: Scene) -> Result<()> {
    let stage = Stage::set(&scene).await?;
    stage.layer("elder", json!({})).await?;
    stage.until("elder", "planned", |s| s.pending.is_some()).await?;
    // Creation times are in whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    stage.layer("younger", json!({})).await?;
    let refused = |s: &TerraformLayerStatus| s.conditions.iter().any(|c| c.type_ == "Ready" && c.reason == "StateOwned");
    let status = stage.until("younger", "refused", refused).await?;
    let message = status.conditions.iter().find(|c| c.type_ == "Ready").map(|c| c.message.clone()).unwrap_or_default();
    ensure!(message.contains("elder") && status.current_run.is_none() && status.pending.is_none(), "{status:?}");
    stage.layers().delete("elder", &DeleteParams::default()).await?;
    stage.until("younger", "planned", |s| s.pending.is_some()).await.map(drop)
}

async fn held_up(scene: Scene) -> Result<()> {
    let stage = Stage::set(&scene).await?;
    stage.layer("app", json!({"suspend": true})).await?;
    let first = stage.repo.resolve("main")?.context("no commit")?;
    stage.seen("main", &first).await?;
    stage.until("app", "suspended", |s| s.waits_for.as_ref().is_some_and(|why| why.contains("suspend"))).await?;
    ensure!(stage.run_names().await?.is_empty());
    scene.suite.cluster.kubectl(&["annotate", "namespace", &scene.namespace, "pawl.run/freeze=true"])?;
    scene.kubectl(&["patch", "terraformlayer", "app", "--type=merge", "-p", r#"{"spec":{"suspend":false}}"#])?;
    stage
        .until("app", "frozen", |s| s.waits_for.as_ref().is_some_and(|why| why.contains("freeze") || why.contains("frozen")))
        .await?;
    let begun = scene.pods().list(&ListParams::default()).await?.items.len();
    ensure!(begun == 0, "something began in a frozen namespace");
    scene.suite.cluster.kubectl(&["annotate", "namespace", &scene.namespace, "pawl.run/freeze-"])?;
    stage.approve("app", &first).await?;
    stage.does("suspend layer")?;
    let next = stage.push("main", &[("app/main.tf", &format!("{}# two\n", stage.app("app")))]).await?;
    let told = |s: &TerraformLayerStatus| s.source.as_ref().is_some_and(|source| source.revision == next);
    let rests = stage.until("app", "told of a commit", |s| told(s) && s.state == Some(LayerState::PlanNeeded)).await?;
    ensure!(rests.current_run.is_none(), "a suspended layer made a run: {rests:?}");
    stage.do_next(&rests)?;
    stage.until("app", "planned", |s| revision(s) == Some(&next) && s.current_run.is_none()).await.map(drop)
}

async fn large_files(scene: Scene) -> Result<()> {
    let stage = Stage::set(&scene).await?;
    let contents = "what git has a pointer to";
    scene.suite.git.add_large(contents.as_bytes());
    let main = stage.kept("large", 0).replace("\"round 0\"", "file(\"${path.module}/large.bin\")");
    let files = [
        (".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n"),
        ("large/large.bin", &large::pointer(contents.as_bytes())),
        ("large/main.tf", &main),
    ];
    stage.commit("main", &files)?;
    stage.layer("large", json!({"path": "large", "remediation": {"onCommit": "Automatic"}})).await?;
    stage.until("large", "applied", |s| s.last_apply.is_some() && s.state == Some(LayerState::Idle)).await?;
    ensure!(stage.text("large").as_deref() == Some(contents), "{:?}", stage.text("large"));
    Ok(())
}

async fn deleted(scene: Scene) -> Result<()> {
    let stage = Stage::set(&scene).await?;
    let first = stage.repo.resolve("main")?.context("no commit")?;
    stage.layer("app", json!({"deletionPolicy": "Destroy"})).await?;
    stage.approve("app", &first).await?;
    stage.layers().delete("app", &DeleteParams::default()).await?;
    let waits = stage.until("app", "waiting with its destruction", |s| s.pending.is_some()).await?;
    ensure!(stage.text("app").is_some());
    stage.do_next(&waits)?;
    wait::gone(&stage.layers(), "app", LATER).await?;
    ensure!(stage.text("app").is_none(), "it went without what it made");
    Ok(())
}
