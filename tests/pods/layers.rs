//! Layers of repositories: real git, `controller sources`, real OpenTofu, and manual changes.

use anyhow::{Context as _, Result, ensure};
use crds::{
    LayerState, RunResult, TerraformLayer, TerraformLayerStatus, TerraformRepository, names,
};
use harness::{cluster::objects, wait};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use servers::{large, repo::Repo};

use crate::{
    guide::Reader,
    suite::{LATER, Scene, Test, with},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("layers::drift_is_corrected_and_deletion_destroys", drift),
        Test::new("layers::only_relevant_commits_are_planned", commits),
        Test::new(
            "layers::automatic_layer_applies_commits_and_prunes_runs",
            keeps_up,
        ),
    ]
}

/// The layers of a namespace, all of the repository `infrastructure`, and their real objects, which are texts at URLs.
pub(crate) struct Layers {
    scene: Scene,
    /// The repository on the suite's Git server. It stays empty if the layers follow another server.
    pub(crate) repo: Repo,
}

impl Layers {
    pub(crate) fn of(scene: &Scene) -> Result<Self> {
        Ok(Self {
            scene: scene.clone(),
            repo: scene.suite.git.create(&scene.path("infrastructure"))?,
        })
    }

    /// A stack whose object stores the number of a round.
    pub(crate) fn kept(&self, object: &str, round: usize) -> String {
        let url = self.scene.suite.objects.url(&self.scene.path(object));
        module(&format!("round {round}"))
            .replace("variable \"url\" {}\n\n", "")
            .replace("var.url", &format!("\"{url}\""))
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.scene.suite.objects.get(&self.scene.path(name))
    }

    fn repositories(&self) -> Api<TerraformRepository> {
        Api::namespaced(self.scene.suite.client.clone(), &self.scene.namespace)
    }

    fn all(&self) -> Api<TerraformLayer> {
        Api::namespaced(self.scene.suite.client.clone(), &self.scene.namespace)
    }

    pub(crate) async fn layer(&self, name: &str, spec: Value) -> Result<()> {
        let spec = with(
            json!({"repository": {"name": "infrastructure"}, "path": "app"}),
            spec,
        );
        objects::create(
            &self.all(),
            json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        done: impl Fn(&TerraformLayerStatus) -> bool,
    ) -> Result<TerraformLayerStatus> {
        let look = |layer: &TerraformLayer| done(&layer.status.clone().unwrap_or_default());
        let found = wait::object(&self.all(), name, what, LATER, look).await;
        let seen = || {
            self.scene
                .kubectl(&["describe", "terraformlayers,terraformrepositories"])
                .unwrap_or_default()
        };
        Ok(found.with_context(seen)?.status.unwrap_or_default())
    }

    /// Waits for a plan of a commit, and runs the layer's next step.
    pub(crate) async fn approve(&self, name: &str, revision: &str) -> Result<TerraformLayerStatus> {
        let planned = |status: &TerraformLayerStatus| {
            status.pending.is_some()
                && status
                    .last_plan
                    .as_ref()
                    .is_some_and(|plan| plan.revision == revision)
        };
        let waits = self
            .until(name, &format!("planned at {revision}"), planned)
            .await?;
        ensure!(waits.state == Some(LayerState::ApplyNeeded), "{waits:?}");
        self.do_next(&waits)?;
        let applied = |status: &TerraformLayerStatus| {
            status.state == Some(LayerState::Idle)
                && status
                    .last_apply
                    .as_ref()
                    .is_some_and(|apply| apply.revision == revision)
        };
        self.until(name, &format!("applied at {revision}"), applied)
            .await
    }

    fn do_next(&self, status: &TerraformLayerStatus) -> Result<()> {
        self.scene
            .paste(status.next_step.as_deref().context("no next step")?)
            .map(drop)
    }

    pub(crate) async fn repository(
        &self,
        what: &str,
        done: impl Fn(&TerraformRepository) -> bool,
    ) -> Result<TerraformRepository> {
        wait::object(&self.repositories(), "infrastructure", what, LATER, done).await
    }

    /// Waits until the head of the branch was polled and all its consequences are done.
    async fn seen(&self, revision: &str) -> Result<()> {
        let at = |repository: &TerraformRepository| {
            let refs = repository
                .status
                .as_ref()
                .map(|status| status.refs.as_slice())
                .unwrap_or_default();
            let of = refs
                .iter()
                .find(|of| of.name == "main")
                .and_then(|of| of.commit.as_ref());
            of.is_some_and(|commit| commit.revision == revision)
        };
        self.repository(&format!("seen at {revision}"), at)
            .await
            .map(drop)
    }

    async fn run_names(&self) -> Result<Vec<String>> {
        let runs = self.scene.runs().list(&ListParams::default()).await?;
        Ok(runs.items.iter().map(kube::ResourceExt::name_any).collect())
    }

    /// A repository with one stack, which stores a text at a URL by means of a module next to it.
    pub(crate) async fn followed(scene: &Scene) -> Result<Self> {
        let layers = Self::of(scene)?;
        let files = [
            ("modules/text/main.tf", &*module("one")),
            ("app/main.tf", &layers.app("app")),
            ("docs/a.md", "a"),
        ];
        layers.repo.commit("main", &files)?;
        let spec = json!({"url": scene.suite.git.url(&scene.path("infrastructure")), "interval": "1h",
            "defaults": {"tool": {"name": "OpenTofu", "version": "1.10.6"}}});
        objects::create(
            &layers.repositories(),
            json!({"metadata": {"name": "infrastructure"}, "spec": spec}),
        )
        .await?;
        Ok(layers)
    }

    fn app(&self, object: &str) -> String {
        let url = self.scene.suite.objects.url(&self.scene.path(object));
        format!("module \"text\" {{\n  source = \"../modules/text\"\n  url    = \"{url}\"\n}}\n")
    }

    /// Runs a block of the guide for the layer `app`; returns its output.
    fn does(&self, block: &str) -> Result<String> {
        let reader = Reader::new(&self.scene)?;
        reader.paste(&reader.here(block)?.replace("tfl/network", "tfl/app"))
    }

    /// Commits, and requests like a webhook.
    async fn push(&self, files: &[(&str, &str)]) -> Result<String> {
        let commit = self.repo.commit("main", files)?;
        self.request().await?;
        Ok(commit)
    }

    async fn request(&self) -> Result<()> {
        let word = jiff::Timestamp::now().to_string();
        let patch = Patch::Merge(json!({"metadata": {"annotations": {names::RECONCILE: word}}}));
        self.repositories()
            .patch("infrastructure", &PatchParams::default(), &patch)
            .await?;
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
    let layers = Layers::followed(&scene).await?;
    let first = layers.repo.resolve("main")?.context("no commit")?;
    layers.layer("app", json!({})).await?;
    let status = layers.approve("app", &first).await?;
    ensure!(layers.text("app").as_deref() == Some("one"), "{status:?}");
    let runs = layers.run_names().await?;
    ensure!(runs.len() == 1, "{runs:?}");

    // A suspended layer is told of a commit, and plans it when it is resumed.
    layers.does("suspend layer")?;
    let next = layers
        .push(&[("app/main.tf", &format!("{}# two\n", layers.app("app")))])
        .await?;
    let told = |s: &TerraformLayerStatus| {
        s.source
            .as_ref()
            .is_some_and(|source| source.revision == next)
    };
    let rests = layers
        .until("app", "told of a commit", |s| {
            told(s) && s.state == Some(LayerState::PlanNeeded)
        })
        .await?;
    ensure!(
        rests.current_run.is_none() && layers.run_names().await? == runs,
        "a suspended layer made a run: {rests:?}"
    );
    layers.do_next(&rests)?;
    layers
        .until("app", "planned", |s| {
            revision(s) == Some(&next) && s.current_run.is_none()
        })
        .await?;
    let runs = layers.run_names().await?;

    // Changes outside of the layer's directory are not relevant.
    let beside = layers
        .push(&[("docs/a.md", "b"), ("app-old/main.tf", "# not this one\n")])
        .await?;
    layers.seen(&beside).await?;
    let source = layers
        .all()
        .get("app")
        .await?
        .status
        .and_then(|status| status.source)
        .context("no source")?;
    ensure!(
        source.revision == next && layers.run_names().await? == runs,
        "a commit beside it made a run: {source:?}"
    );

    // Changes of a module that it uses are relevant.
    let module_changed = layers
        .push(&[("modules/text/main.tf", &module("two"))])
        .await?;
    layers.approve("app", &module_changed).await?;
    ensure!(layers.text("app").as_deref() == Some("two"));

    // A reset branch has another tree, which is planned.
    layers.repo.reset("main", Some(&first))?;
    layers.request().await?;
    layers.approve("app", &first).await?;
    ensure!(layers.text("app").as_deref() == Some("one"));

    // A newer commit supersedes a waiting plan; a denied one is not planned again automatically.
    let third = layers
        .push(&[("modules/text/main.tf", &module("three"))])
        .await?;
    let waits = layers
        .until("app", "planned", |s| {
            s.pending.is_some()
                && s.last_plan
                    .as_ref()
                    .is_some_and(|plan| plan.revision == third)
        })
        .await?;
    let old = waits.pending.context("nothing waits")?.run;
    let fourth = layers
        .push(&[("modules/text/main.tf", &module("four"))])
        .await?;
    let of_fourth = |s: &TerraformLayerStatus| {
        s.pending.as_ref().is_some_and(|p| p.run != old) && revision(s) == Some(&fourth)
    };
    let waits = layers.until("app", "planned anew", of_fourth).await?;
    scene.ends(&old, RunResult::Canceled).await?;
    let newer = waits.pending.context("nothing waits")?.run;
    scene
        .annotate(&newer, &[(names::DENY, Some("not today"))])
        .await?;
    scene.ends(&newer, RunResult::Rejected).await?;
    let denied = layers
        .until("app", "denied", |s| {
            s.pending.is_none() && s.current_run.is_none()
        })
        .await?;
    let runs = layers.run_names().await?;
    layers.does("plan layer")?;
    layers
        .until("app", "planned once more", |s| {
            s.pending.as_ref().is_some_and(|p| !runs.contains(&p.run))
        })
        .await?;
    ensure!(
        denied.state == Some(LayerState::PlanNeeded)
            || denied.state == Some(LayerState::ApplyNeeded),
        "{denied:?}"
    );
    Ok(())
}

fn revision(status: &TerraformLayerStatus) -> Option<&String> {
    status.last_plan.as_ref().map(|plan| &plan.revision)
}

async fn drift(scene: Scene) -> Result<()> {
    let layers = Layers::followed(&scene).await?;
    let first = layers.repo.resolve("main")?.context("no commit")?;
    layers
        .layer(
            "app",
            json!({"drift": {"interval": "1m"}, "deletionPolicy": "Destroy"}),
        )
        .await?;
    layers.approve("app", &first).await?;
    scene.suite.objects.put(&scene.path("app"), "by hand");
    let drifted = layers
        .until("app", "drifted", |s| {
            s.drift.is_some() && s.pending.is_some()
        })
        .await?;
    let drift = drifted.drift.as_ref().context("no drift")?;
    ensure!(
        drift.objects.iter().any(|object| object
            .contains("module.text.object_text.it (changed outside of the code: content)")),
        "{drift:?}"
    );
    let step = drifted.next_step.clone().context("no next step")?;
    let look = async || {
        let described = layers.does("see layer")?;
        Ok(if described.trim_end().ends_with(&step) {
            Ok(described)
        } else {
            Err(described)
        })
    };
    let described = wait::until(format!("it ends in {step}"), LATER, look).await?;
    ensure!(
        described.contains("module.text.object_text.it"),
        "{described}"
    );
    layers.do_next(&drifted)?;
    layers.does("wait for layer")?;
    layers
        .until("app", "as it was", |s| {
            s.drift.is_none() && s.pending.is_none() && s.state == Some(LayerState::Idle)
        })
        .await?;
    ensure!(layers.text("app").as_deref() == Some("one"));

    // The layer is deleted when its destruction is approved.
    layers.all().delete("app", &DeleteParams::default()).await?;
    let waits = layers
        .until("app", "waiting with its destruction", |s| {
            s.pending.is_some()
        })
        .await?;
    ensure!(layers.text("app").is_some());
    layers.do_next(&waits)?;
    wait::gone(&layers.all(), "app", LATER).await?;
    ensure!(layers.text("app").is_none(), "it went without what it made");
    Ok(())
}

async fn keeps_up(scene: Scene) -> Result<()> {
    let layers = Layers::followed(&scene).await?;
    let spec =
        json!({"remediation": {"onCommit": "Automatic"}, "runHistory": 1, "appliedHistory": 1});
    layers.layer("app", spec).await?;
    for text in ["two", "three", "four"] {
        let commit = layers
            .push(&[("modules/text/main.tf", &module(text))])
            .await?;
        let applied = |s: &TerraformLayerStatus| {
            s.state == Some(LayerState::Idle)
                && s.last_apply
                    .as_ref()
                    .is_some_and(|apply| apply.revision == commit)
        };
        layers
            .until("app", &format!("applied at {commit}"), applied)
            .await?;
        ensure!(layers.text("app").as_deref() == Some(text));
    }
    let kept = async || {
        let runs = layers.run_names().await?;
        Ok(if runs.len() <= 2 {
            Ok(())
        } else {
            Err(format!("{runs:?}"))
        })
    };
    wait::until("two runs are kept", LATER, kept).await?;
    // A stack whose only input is a large file, fetched with the `git-lfs` of the image of `sources`.
    let contents = "what git has a pointer to";
    scene.suite.git.add_large(contents.as_bytes());
    let main = layers
        .kept("large", 0)
        .replace("\"round 0\"", "file(\"${path.module}/large.bin\")");
    let files = [
        (
            ".gitattributes",
            "*.bin filter=lfs diff=lfs merge=lfs -text\n",
        ),
        ("large/large.bin", &large::pointer(contents.as_bytes())),
        ("large/main.tf", &main),
    ];
    layers.push(&files).await?;
    let automatic = json!({"path": "large", "remediation": {"onCommit": "Automatic"}, "template": {"stack": "large"}});
    layers.layer("large", automatic).await?;
    layers
        .until("large", "applied", |s| {
            s.last_apply.is_some() && s.state == Some(LayerState::Idle)
        })
        .await?;
    ensure!(
        layers.text("large").as_deref() == Some(contents),
        "{:?}",
        layers.text("large")
    );
    // Dry: the plan is shown and cannot be applied.
    layers.layer("dry", json!({"remediation": {"onCommit": "Dry"}, "template": {"stack": "dry"}, "path": "dry"})).await?;
    let commit = layers.push(&[("dry/main.tf", &layers.app("dry"))]).await?;
    let shown = layers
        .until("dry", "planned", |s| {
            revision(s) == Some(&commit) && s.current_run.is_none()
        })
        .await?;
    ensure!(
        shown.pending.is_none() && layers.text("dry").is_none(),
        "{shown:?}"
    );
    Ok(())
}
