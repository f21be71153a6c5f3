//! Limits of open attempts, and frozen namespaces: the controller's own loops on a real API server without nodes.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use controller::{
    cluster::Cluster,
    policies,
    run::{self, Context},
    settings::Settings,
    watches,
};
use crds::{TerraformRepository, TerraformRun, clock::ServerClock, conditions, names, reason};
use harness::{cluster::objects, guide, wait};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use serving::health::Readiness;
use tokio::{sync::watch, task::JoinHandle};

use crate::world::{PATIENCE, Test, World};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("slots::a_bound_holds_and_who_is_next_begins_at_once", true, bound),
        Test::new("slots::a_repository_bounds_its_runs", true, repository),
        Test::new("slots::a_frozen_namespace_lets_nothing_begin", true, frozen),
    ]
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
        let mut config = world.access.config().await?;
        config.auth_info.impersonate = Some("system:serviceaccount:pawl-system:pawl-controller".into());
        config.auth_info.impersonate_groups = Some(vec!["system:serviceaccounts".into(), "system:authenticated".into()]);
        config.default_namespace = "pawl-system".into();
        let ctx = Arc::new(Context::new(Cluster::new(Client::try_from(config)?, settings, ServerClock::default()), None));
        let (stop, stopped) = watch::channel(false);
        let scope = Some(namespace.clone());
        let tasks = vec![
            tokio::spawn(watches::repositories(scope.as_deref(), ctx.clone(), stopped.clone())),
            tokio::spawn(watches::namespaces(ctx.clone(), stopped.clone())),
            tokio::spawn(policies::watch::run(ctx.cluster.clone(), ctx.policies.clone(), stopped.clone())),
            tokio::spawn(run::watch::run(scope, ctx, Arc::new(Readiness::awaiting(2)), stopped)),
        ];
        Ok(Self { world, namespace, tasks, _stop: stop })
    }

    async fn create(&self, name: &str, source: &Value, trigger: Option<&str>) -> Result<()> {
        let annotations = trigger.map(|trigger| json!({names::TRIGGER: trigger}));
        let spec = json!({"operation": "Plan", "stack": "net", "source": source});
        let run = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
        objects::create(&self.world.runs(&self.namespace), run).await.map(drop).context("create")
    }

    /// Waits until `done` holds for the runs. Fails if more than `bound` attempts are open meanwhile.
    async fn until(&self, what: &str, bound: usize, done: impl Fn(&[TerraformRun]) -> bool) -> Result<Vec<TerraformRun>> {
        let look = async || {
            let runs = self.world.runs(&self.namespace).list(&ListParams::default()).await?.items;
            let open = runs.iter().filter(|run| is_open(run)).count();
            ensure!(open <= bound, "{open} attempts are open, and {bound} may be");
            let said: Vec<_> = runs.iter().map(|run| (run.name_any(), is_open(run), said(run))).collect();
            Ok(if done(&runs) { Ok(runs) } else { Err(format!("{said:?}")) })
        };
        wait::until(what, PATIENCE, look).await
    }

    /// Runs a line of the guide in this namespace.
    fn does(&self, line: &str) -> Result<()> {
        let words = line.split('#').next().unwrap_or_default().split_whitespace();
        let words: Vec<_> = words.skip(1).map(|word| if word == "team" { self.namespace.as_str() } else { word }).collect();
        self.world.access.kubectl(&words).map(drop)
    }
}

fn is_open(run: &TerraformRun) -> bool {
    run.status.as_ref().and_then(|status| status.attempt.as_ref()).is_some_and(|attempt| attempt.open)
}

/// Reason and message of the condition Succeeded.
fn said(run: &TerraformRun) -> Option<(String, String)> {
    let conditions = &run.status.as_ref()?.conditions;
    conditions.iter().find(|c| c.type_ == conditions::SUCCEEDED).map(|c| (c.reason.clone(), c.message.clone()))
}

fn waits(run: &TerraformRun, reason: &str) -> bool {
    said(run).is_some_and(|(said, _)| said == reason)
}

fn inline() -> Value {
    json!({"inline": {"files": {"main.tf": ""}}})
}

async fn bound(world: World) -> Result<()> {
    const BOUND: usize = 2;
    let settings = Settings { max_concurrent_runs_per_namespace: Some(2), ..Settings::default() };
    let lab = Lab::new(world, settings).await?;
    for name in ["a", "b", "c", "d", "e"] {
        lab.create(name, &inline(), Some("Drift")).await?;
    }
    let settled = |runs: &[TerraformRun]| {
        runs.iter().filter(|run| is_open(run)).count() == BOUND
            && runs.iter().all(|run| is_open(run) || waits(run, reason::SLOTS_FULL))
    };
    let runs = lab.until("two open and three in the line", BOUND, settled).await?;
    for run in runs.iter().filter(|run| !is_open(run)) {
        let (_, text) = said(run).context("it says nothing")?;
        let whole = format!(": 2 of 2 attempts in namespace {} are open", lab.namespace);
        ensure!(text.starts_with("waits for a slot, ") && text.ends_with(&whole), "{text}");
        ensure!(run.status.as_ref().is_some_and(|status| status.message.as_deref() == Some(text.as_str())), "its message");
    }
    // A person's run is next.
    lab.create("person", &inline(), None).await?;
    let says = |runs: &[TerraformRun]| runs.iter().any(|run| run.name_any() == "person" && waits(run, reason::SLOTS_FULL));
    let mut runs = lab.until("said by the person's run", BOUND, says).await?;
    for left in (0..6_usize).rev() {
        let victim = runs.iter().find(|run| is_open(run)).context("none is open")?.name_any();
        lab.world.runs(&lab.namespace).delete(&victim, &DeleteParams::default()).await?;
        let next =
            |runs: &[TerraformRun]| runs.len() == left && runs.iter().filter(|run| is_open(run)).count() == left.min(BOUND);
        runs = lab.until("gone, with another in its place", BOUND, next).await?;
        let person = runs.iter().find(|run| run.name_any() == "person");
        ensure!(left < 5 || person.is_some_and(is_open), "somebody came before the person");
    }
    Ok(())
}

async fn repository(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let repositories: Api<TerraformRepository> = Api::namespaced(world.admin.clone(), &namespace);
    let spec = json!({"url": "https://git.example.com/infra", "maxConcurrentRuns": 1});
    objects::create(&repositories, json!({"metadata": {"name": "infra"}, "spec": spec})).await?;
    // A controller that starts now knows the limit.
    let lab = Lab::of(world, namespace, Settings::default()).await?;
    let source = json!({"repository": {"name": "infra", "revision": "a".repeat(40), "path": "."}});
    for name in ["a", "b"] {
        lab.create(name, &source, None).await?;
    }
    let one = |runs: &[TerraformRun]| runs.iter().any(is_open) && runs.iter().any(|run| waits(run, reason::SLOTS_FULL));
    let runs = lab.until("one open and one in the line", 1, one).await?;
    let (_, text) = runs.iter().find(|run| !is_open(run)).and_then(said).context("it says nothing")?;
    let (before, of) = ("0 before it when it began to wait", format!("of repository {}/infra", lab.namespace));
    ensure!(text == format!("waits for a slot, {before}: 1 of 1 attempts {of} are open"), "{text}");
    lab.create("c", &inline(), None).await?;
    let other = |runs: &[TerraformRun]| runs.iter().any(|run| run.name_any() == "c" && is_open(run));
    lab.until("open, as it is of no repository", 2, other).await?;
    objects::merge(&repositories, "infra", &json!({"spec": {"maxConcurrentRuns": null}})).await?;
    lab.until("open, as nothing bounds it any more", 3, |runs| runs.iter().all(is_open)).await.map(drop)
}

async fn frozen(world: World) -> Result<()> {
    let lab = Lab::new(world, Settings::default()).await?;
    lab.create("before", &inline(), None).await?;
    lab.until("open", 1, |runs| runs.iter().all(is_open)).await?;
    let guide = guide::block("freeze")?;
    let (freezes, ends) = guide.split_once('\n').context("the guide has two lines")?;
    lab.does(freezes)?;
    // The watch of namespaces is separate from that of runs, so a run may still begin until that watch shows the freeze.
    let mut number = 0;
    let refused = loop {
        number += 1;
        let name = format!("run-{number}");
        lab.create(&name, &inline(), None).await?;
        let decided =
            |runs: &[TerraformRun]| runs.iter().any(|run| run.name_any() == name && (is_open(run) || waits(run, reason::FROZEN)));
        let runs = lab.until("open, or frozen", usize::MAX, decided).await?;
        if let Some(run) = runs.into_iter().find(|run| run.name_any() == name && !is_open(run)) {
            break run;
        }
    };
    let (_, text) = said(&refused).context("it says nothing")?;
    ensure!(text.contains(&format!("namespace {} is frozen by its annotation pawl.run/freeze", lab.namespace)), "{text}");
    let step = refused.status.as_ref().and_then(|status| status.next_step.clone()).unwrap_or_default();
    ensure!(step.contains("pawl.run/freeze-"), "{step}");
    lab.does(ends)?;
    let opened = lab.until("all open, and what was under way still", usize::MAX, |runs| runs.iter().all(is_open)).await?.len();

    // The same for all namespaces: a controller that starts with the chart's value.
    let (world, namespace) = (lab.world.clone(), lab.namespace.clone());
    drop(lab);
    let lab = Lab::of(world.clone(), namespace.clone(), Settings { freeze: true, ..Settings::default() }).await?;
    lab.create("of-all", &inline(), None).await?;
    let waits = |runs: &[TerraformRun]| runs.iter().any(|run| run.name_any() == "of-all" && waits(run, reason::FROZEN));
    let runs = lab.until("frozen", opened, waits).await?;
    ensure!(runs.iter().filter(|run| is_open(run)).count() == opened, "what was under way was ended");
    let text = runs.iter().find(|run| run.name_any() == "of-all").and_then(said).context("it says nothing")?.1;
    ensure!(text.contains("controller.freeze"), "{text}");
    drop(lab);
    let lab = Lab::of(world, namespace, Settings::default()).await?;
    lab.until("all open", usize::MAX, |runs| runs.iter().all(is_open)).await.map(drop)
}
