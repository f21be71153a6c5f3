//! Measures from a push with a webhook to the waiting plan of a layer, compared with a manual run of the same code.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::{TerraformLayer, TerraformRun, names};
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::lab::{Lab, Namespace, PATIENCE, Stack, run_waits, watched};
use super::table::{Limit, Table, Unit};
use harness::cluster::objects;
use harness::wait;
use servers::{
    git::GitServer,
    repo::Repo,
    webhook::{self, Hook},
};

/// Name of repository and layer.
const STACK: &str = "stack";
const BY_HAND: &str = "run made by hand to its plan that waits";
const PUSHED: &str = "push told of by webhook to the plan that waits";
/// Measures both alternately. Leaves the server in the cluster.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    lab.install(&webhook::values()).await?;
    let followed = Followed::set(lab).await?;
    // The first repetition is a warm-up: it unpacks images and fills caches.
    for n in 0..=times {
        let (commit, told, run, waits) = followed.push(n).await?;
        let hand = followed.by_hand(n, &commit).await?;
        if n > 0 {
            table.sample(BY_HAND, Unit::Seconds, hand);
            table.sample(
                "push told of by webhook to the layer's run",
                Unit::Millis,
                run - told,
            );
            table.sample(PUSHED, Unit::Seconds, waits - told);
        }
    }
    let (by_hand, pushed) = (table.median(BY_HAND), table.median(PUSHED));
    // A push may take one second more than the run made by hand.
    table.limit(PUSHED, Limit::Median(by_hand + 1.0));
    table.close();
    table.plain(
        "  more than the run by hand, of the medians",
        format!("{:+.2} s", pushed - by_hand),
    );
    for (what, size) in [
        ("1 KiB", 1 << 10),
        ("25 MiB, the largest that is taken", 25 << 20),
    ] {
        let figure = format!("last byte of a delivery of {what}, to its 202");
        for _ in 0..=times {
            table.millis(&figure, followed.hook.answers(size).await?);
        }
        table.limit(&figure, Limit::Median(0.05));
    }
    Ok(())
}

/// A followed repository with one layer.
struct Followed<'a> {
    namespace: Namespace<'a>,
    _root: tempfile::TempDir,
    _git: GitServer,
    repo: Repo,
    hook: Hook,
}

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<TerraformRun>>> + Send>>;

impl<'a> Followed<'a> {
    async fn set(lab: &'a Lab) -> Result<Self> {
        let namespace = lab.namespace().await?;
        let root = tempfile::tempdir()?;
        let git = GitServer::start(
            SocketAddr::new(IpAddr::V4(lab.cluster.host()), 0),
            root.path(),
        )
        .await?;
        let repo = git.create(STACK)?;
        repo.commit("main", &[("README.md", "a stack\n")])?;
        // Only webhooks trigger a poll during the measurement.
        let spec = json!({"url": git.url(STACK), "interval": "24h"});
        let hook = Hook::set(&lab.cluster, &namespace.name, STACK, spec).await?;
        let followed = Self {
            namespace,
            _root: root,
            _git: git,
            repo,
            hook,
        };
        let spec = json!({"repository": {"name": STACK}, "path": STACK, "template": followed.template("layer")?});
        let layers: Api<TerraformLayer> =
            Api::namespaced(lab.client.clone(), &followed.namespace.name);
        layers
            .create(
                &PostParams::default(),
                &TerraformLayer::new(STACK, serde_json::from_value(spec)?),
            )
            .await?;
        let is_known = |layer: &TerraformLayer| {
            layer
                .status
                .as_ref()
                .is_some_and(|status| status.source.is_some())
        };
        wait::object(&layers, STACK, "looked at", PATIENCE, is_known).await?;
        Ok(followed)
    }

    /// Common settings of both: tool, resources, and a state of its own.
    fn template(&self, name: &str) -> Result<Value> {
        let spec = self.namespace.run(name, Stack::Tiny, "Manual")?.spec;
        let spec = serde_json::to_value(spec)?;
        Ok(json!({"tool": spec["tool"], "backend": spec["backend"], "runner": spec["runner"]}))
    }

    /// Pushes, and waits for the plan. Returns the commit, and the Unix times of the webhook, of the run's creation, and of its wait.
    async fn push(&self, n: usize) -> Result<(String, f64, f64, f64)> {
        let mut events = self.watch().await?;
        let (main, _) = Stack::Tiny.code();
        let commit = self.repo.commit(
            "main",
            &[(&format!("{STACK}/main.tf"), &format!("# {n}\n{main}"))],
        )?;
        let told = seconds();
        let answer = self.hook.push(&commit).await?;
        ensure!(answer == StatusCode::ACCEPTED, "the server says {answer}");
        let mut made = None;
        let wait = async {
            while let Some(event) = events.next().await {
                let (Event::Apply(run) | Event::InitApply(run)) = event? else {
                    continue;
                };
                if run
                    .spec
                    .source
                    .repository
                    .as_ref()
                    .is_none_or(|source| source.revision != commit)
                {
                    continue;
                }
                let made = *made.get_or_insert_with(seconds);
                if run_waits(&run)? {
                    return Ok((commit.clone(), told, made, seconds(), run.name_any()));
                }
            }
            bail!("the watch of the runs ended")
        };
        let found = tokio::time::timeout(PATIENCE, wait)
            .await
            .context("no plan of the push waits")??;
        let (commit, told, made, waits, name) = found;
        self.deny(&name).await?;
        Ok((commit, told, made, waits))
    }

    /// Watches all runs, and skips the existing ones.
    async fn watch(&self) -> Result<Events> {
        let mut events: Events = Box::pin(watcher(
            self.namespace.runs.clone(),
            watcher::Config::default(),
        ));
        while !matches!(
            events.next().await.context("the watch ended")??,
            Event::InitDone
        ) {}
        Ok(events)
    }

    /// Creates a run of the same commit; returns the seconds until its plan waits.
    async fn by_hand(&self, n: usize, commit: &str) -> Result<f64> {
        let name = format!("by-hand-{n}");
        let mut spec = self.template(&name)?;
        spec["source"] = json!({"repository": {"name": STACK, "revision": commit, "path": STACK}});
        spec["stack"] = name.as_str().into();
        let mut run = TerraformRun::new(&name, serde_json::from_value(spec)?);
        run.metadata.namespace = Some(self.namespace.name.clone());
        let (created, seen, _) = watched(&self.namespace.runs, &run, run_waits).await?;
        self.deny(&name).await?;
        Ok(seen.duration_since(created).as_secs_f64())
    }

    /// Denies the plan, and waits until its pod is gone and its layer has noticed.
    async fn deny(&self, name: &str) -> Result<()> {
        let runs = &self.namespace.runs;
        objects::merge(
            runs,
            name,
            &json!({"metadata": {"annotations": {names::DENY: "measured"}}}),
        )
        .await?;
        let is_over = |run: &TerraformRun| {
            let status = run.status.clone().unwrap_or_default();
            status.is_terminal() && status.attempt.is_none_or(|attempt| !attempt.open)
        };
        wait::object(runs, name, "over", PATIENCE, is_over).await?;
        // Until the kubelet has cleaned up the pod.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        Ok(())
    }
}

fn seconds() -> f64 {
    Timestamp::now()
        .duration_since(Timestamp::UNIX_EPOCH)
        .as_secs_f64()
}
