//! Limits of open attempts, and frozen namespaces: the controller's own loops on a real API server without nodes.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use controller::{cluster::Cluster, policies, run::Context, settings::Settings, watches::Watches};
use crds::{TerraformRepository, TerraformRun, clock::ServerClock, conditions, names, reason};
use harness::{cluster::objects, guide, wait};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use serving::health::Readiness;
use tokio::{sync::watch, task::JoinHandle};

use crate::world::{PATIENCE, World, tests};

tests! {
    Guarded: bound_holds_and_next_run_begins_at_once,
    Guarded: repository_bounds_its_runs,
    Guarded: frozen_namespace_begins_no_run,
}

/// A controller of one namespace.
struct Lab {
    world: World,
    namespace: String,
    tasks: Vec<JoinHandle<()>>,
    _stop: watch::Sender<bool>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Lab {
    async fn new(world: World, settings: Settings) -> Result<Self> {
        let namespace = world.namespace().await?;
        Self::of(world, namespace, settings).await
    }

    async fn of(world: World, namespace: String, settings: Settings) -> Result<Self> {
        let ctx = Arc::new(Context::new(
            Cluster::new(
                world.process("pawl-controller").await?,
                settings,
                ServerClock::default(),
            ),
            None,
        ));
        let (stop, stopped) = watch::channel(false);
        let scope = Some(namespace.clone());
        let watches = Watches::new(ctx.clone());
        let readiness = Arc::new(Readiness::awaiting(4));
        let tasks = vec![
            tokio::spawn(watches.repositories(scope.as_deref(), &readiness, stopped.clone())),
            tokio::spawn(watches.namespaces(&readiness, stopped.clone())),
            tokio::spawn(policies::watch::run(
                ctx.cluster.clone(),
                ctx.policies.clone(),
                stopped.clone(),
            )),
            tokio::spawn(watches.run(scope, &readiness, stopped)),
        ];
        Ok(Self {
            world,
            namespace,
            tasks,
            _stop: stop,
        })
    }

    async fn create(&self, name: &str, source: &Value, trigger: Option<&str>) -> Result<()> {
        let annotations = trigger.map(|trigger| json!({names::TRIGGER: trigger}));
        let spec = json!({"operation": "Plan", "stack": "net", "source": source});
        let run = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
        objects::create(&self.world.runs(&self.namespace), run)
            .await
            .map(drop)
            .context("create")
    }

    /// Waits until `done` holds for the runs. Fails if more than `bound` attempts are open meanwhile.
    async fn until(
        &self,
        what: &str,
        bound: usize,
        done: impl Fn(&[View]) -> bool,
    ) -> Result<Vec<View>> {
        let look = async || {
            let runs = self
                .world
                .runs(&self.namespace)
                .list(&ListParams::default())
                .await?;
            let views: Vec<_> = runs.into_iter().map(View::of).collect();
            ensure!(
                count(&views) <= bound,
                "more than {bound} attempts are open: {views:?}"
            );
            Ok(if done(&views) {
                Ok(views)
            } else {
                Err(format!("{views:?}"))
            })
        };
        wait::until(what, PATIENCE, look).await
    }

    /// Runs a line of the guide in this namespace.
    fn does(&self, line: &str) -> Result<()> {
        let line = line
            .split('#')
            .next()
            .unwrap_or_default()
            .replace(" team", &format!(" {}", self.namespace));
        let words: Vec<_> = line.split_whitespace().skip(1).collect();
        self.world.access.kubectl(&words).map(drop)
    }
}

/// The read parts of a run: its condition Succeeded has reason and message.
#[derive(Debug)]
struct View {
    name: String,
    open: bool,
    reason: String,
    text: String,
    message: String,
    next_step: String,
}

impl View {
    fn of(run: TerraformRun) -> Self {
        let (name, status) = (run.name_any(), run.status.unwrap_or_default());
        let mut succeeded = status
            .conditions
            .into_iter()
            .filter(|c| c.type_ == conditions::SUCCEEDED);
        let (reason, text) = succeeded
            .next()
            .map(|c| (c.reason, c.message))
            .unwrap_or_default();
        let (message, next_step) = (
            status.message.unwrap_or_default(),
            status.next_step.unwrap_or_default(),
        );
        Self {
            name,
            open: status.attempt.is_some_and(|attempt| attempt.open),
            reason,
            text,
            message,
            next_step,
        }
    }
}

fn count(runs: &[View]) -> usize {
    runs.iter().filter(|run| run.open).count()
}

fn all_open(runs: &[View]) -> bool {
    count(runs) == runs.len()
}

fn find<'a>(runs: &'a [View], name: &str) -> Option<&'a View> {
    runs.iter().find(|run| run.name == name)
}

fn inline() -> Value {
    json!({"inline": {"files": {"main.tf": ""}}})
}

async fn bound_holds_and_next_run_begins_at_once(world: World) -> Result<()> {
    const BOUND: usize = 2;
    let settings = Settings {
        max_concurrent_runs_per_namespace: Some(2),
        ..Settings::default()
    };
    let lab = Lab::new(world, settings).await?;
    for name in ["a", "b", "c", "d", "e"] {
        lab.create(name, &inline(), Some("Drift")).await?;
    }
    let settled = |runs: &[View]| {
        count(runs) == BOUND
            && runs
                .iter()
                .all(|run| run.open || run.reason == reason::SLOTS_FULL)
    };
    let runs = lab
        .until("two open and three in the line", BOUND, settled)
        .await?;
    for run in runs.iter().filter(|run| !run.open) {
        let whole = format!(
            "waits for a slot: 2 of 2 attempts in namespace {} are open",
            lab.namespace
        );
        ensure!(run.text == whole, "{run:?}");
        ensure!(run.message == run.text, "{run:?}");
    }
    // A person's run is next.
    lab.create("person", &inline(), None).await?;
    let queued =
        |runs: &[View]| find(runs, "person").is_some_and(|run| run.reason == reason::SLOTS_FULL);
    let mut runs = lab.until("queued, the person's run", BOUND, queued).await?;
    for left in (0..6_usize).rev() {
        let victim = &runs
            .iter()
            .find(|run| run.open)
            .context("none is open")?
            .name;
        lab.world
            .runs(&lab.namespace)
            .delete(victim, &DeleteParams::default())
            .await?;
        let next = |runs: &[View]| runs.len() == left && count(runs) == left.min(BOUND);
        runs = lab
            .until("gone, with another in its place", BOUND, next)
            .await?;
        ensure!(
            left < 5 || find(&runs, "person").is_some_and(|run| run.open),
            "another came before the person: {runs:?}"
        );
    }
    Ok(())
}

async fn repository_bounds_its_runs(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let repositories: Api<TerraformRepository> = Api::namespaced(world.admin.clone(), &namespace);
    let spec = json!({"url": "https://git.example.com/infra", "maxConcurrentRuns": 1});
    objects::create(
        &repositories,
        json!({"metadata": {"name": "infra"}, "spec": spec}),
    )
    .await?;
    // A controller that starts now knows the limit.
    let lab = Lab::of(world, namespace, Settings::default()).await?;
    let source = json!({"repository": {"name": "infra", "revision": "a".repeat(40), "path": "."}});
    for name in ["a", "b"] {
        lab.create(name, &source, None).await?;
    }
    let one =
        |runs: &[View]| count(runs) == 1 && runs.iter().any(|run| run.reason == reason::SLOTS_FULL);
    let runs = lab.until("one open and one in the line", 1, one).await?;
    let queued = runs
        .iter()
        .find(|run| !run.open)
        .context("none is queued")?;
    let full = format!(
        "1 of 1 attempts of repository {}/infra are open",
        lab.namespace
    );
    ensure!(
        queued.text == format!("waits for a slot: {full}"),
        "{queued:?}"
    );
    lab.create("c", &inline(), None).await?;
    let other = |runs: &[View]| find(runs, "c").is_some_and(|run| run.open);
    lab.until("open, as it is of no repository", 2, other)
        .await?;
    objects::merge(
        &repositories,
        "infra",
        &json!({"spec": {"maxConcurrentRuns": null}}),
    )
    .await?;
    lab.until("open, as nothing bounds it any more", 3, all_open)
        .await
        .map(drop)
}

async fn frozen_namespace_begins_no_run(world: World) -> Result<()> {
    let lab = Lab::new(world, Settings::default()).await?;
    lab.create("before", &inline(), None).await?;
    lab.until("open", 1, all_open).await?;
    let guide = guide::block("freeze")?;
    let (freezes, ends) = guide.split_once('\n').context("the guide has two lines")?;
    lab.does(freezes)?;
    // The watch of namespaces is separate from that of runs, so a run may still begin until that watch shows the freeze.
    let mut number = 0;
    loop {
        number += 1;
        let name = format!("run-{number}");
        lab.create(&name, &inline(), None).await?;
        let decided = |runs: &[View]| {
            find(runs, &name).is_some_and(|run| run.open || run.reason == reason::FROZEN)
        };
        let runs = lab.until("open, or frozen", usize::MAX, decided).await?;
        let Some(run) = find(&runs, &name).filter(|run| !run.open) else {
            continue;
        };
        let frozen = format!(
            "namespace {} is frozen by its annotation pawl.run/freeze",
            lab.namespace
        );
        ensure!(
            run.text.contains(&frozen) && run.next_step.contains("pawl.run/freeze-"),
            "{run:?}"
        );
        break;
    }
    lab.does(ends)?;
    let opened = lab
        .until(
            "all open, and what was under way still",
            usize::MAX,
            all_open,
        )
        .await?
        .len();

    // The same for all namespaces: a controller that starts with the chart's value.
    let (world, namespace) = (lab.world.clone(), lab.namespace.clone());
    drop(lab);
    let freeze = Settings {
        freeze: true,
        ..Settings::default()
    };
    let lab = Lab::of(world.clone(), namespace.clone(), freeze).await?;
    lab.create("of-all", &inline(), None).await?;
    let frozen =
        |runs: &[View]| find(runs, "of-all").is_some_and(|run| run.reason == reason::FROZEN);
    let runs = lab.until("frozen", opened, frozen).await?;
    ensure!(count(&runs) == opened, "open attempts were ended: {runs:?}");
    ensure!(
        find(&runs, "of-all").is_some_and(|run| run.text.contains("controller.freeze")),
        "{runs:?}"
    );
    drop(lab);
    let lab = Lab::of(world, namespace, Settings::default()).await?;
    lab.until("all open", usize::MAX, all_open).await.map(drop)
}
