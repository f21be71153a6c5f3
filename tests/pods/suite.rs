//! One cluster with Pawl, a Git server, a state server and a ledger, and a namespace per test.

mod scene;

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    pin::Pin,
    process::Output,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use crds::TerraformRunStatus;
use harness::cluster::{Audit, Cluster, chart::Values, gobuild::all_suites, objects, rights::Log};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use ledger::Entry;
use serde_json::{Value, json};
use servers::{git::GitServer, objects::ObjectServer, state::StateServer, webhook};

use crate::releases::Releases;

pub(crate) use harness::cluster::victims::GATE;
pub(crate) use scene::Scene;

pub(crate) type Body = Box<dyn FnOnce(Scene) -> Pin<Box<dyn Future<Output = Result<()>>>> + Send>;

pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) body: Body,
}

impl Test {
    pub(crate) fn new<F>(name: &'static str, body: impl FnOnce(Scene) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<()>> + 'static,
    {
        Self {
            name,
            body: Box::new(|scene| Box::pin(body(scene))),
        }
    }
}

/// The reason why the suite cannot run here, or `None`. With `CI=true` nothing is skipped: a missing prerequisite is a failure.
pub(crate) fn left_out() -> Option<&'static str> {
    (!all_suites()).then_some("run `cargo ci` as root on Linux")
}

pub(crate) struct Suite {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    /// The requests of this run.
    pub(crate) audit: Log,
    pub(crate) git: GitServer,
    pub(crate) state: StateServer,
    pub(crate) objects: ObjectServer,
    pub(crate) releases: Releases,
    /// The chart's values.
    pub(crate) values: Values,
    _files: tempfile::TempDir,
    prefix: String,
    next: AtomicU32,
    took: Mutex<Vec<(Duration, String)>>,
}

/// Time limit on a busy machine for steps that usually take a second.
pub(crate) const SOON: Duration = Duration::from_secs(400);
/// Time limit for steps with a retry or a wait of Pawl.
pub(crate) const LATER: Duration = Duration::from_secs(460);
/// [`LATER`] as an option of `kubectl`.
pub(crate) const TIMEOUT: &str = "--timeout=460s";

/// Labels of the controller's pods.
pub(crate) const OF_CONTROLLER: &str = "app.kubernetes.io/component=controller";

/// A [`GATE`] as a step of a script. An interrupt does not end it.
pub(crate) fn gate() -> Value {
    json!({"exec": ["sh", "-c", GATE]})
}

/// A script's `count` resources, with the names that the number alone would give. The last one waits at a gate.
pub(crate) fn gated(count: usize) -> Value {
    let steps = |n: usize| {
        if n + 1 == count {
            vec![gate()]
        } else {
            Vec::new()
        }
    };
    (0..count)
        .map(|n| json!({"address": format!("terraform_data.r[{n}]"), "steps": steps(n)}))
        .collect()
}

impl Suite {
    pub(crate) async fn up(name: &str) -> Result<Self> {
        // The two parts of the suite have a cluster each: tests that remove the API server, the policies or Pawl itself cannot run with
        // others.
        let cluster = Cluster::up(name, Audit::Objects).await?;
        let audit = Log::begin(&cluster);
        let files = tempfile::tempdir()?;
        let releases = Releases::start(&cluster, files.path()).await?;
        // A cluster from an earlier run has its namespaces.
        let prefix = format!("t{:x}", jiff::Timestamp::now().as_second() % 0xf_ffff);
        let mut values = releases.values();
        values.insert(
            "sharedStates".to_owned(),
            serde_json::to_string(&[["a", "b"].map(|word| sharing(&prefix, word))])?,
        );
        values.extend(webhook::values());
        // Repair foreign changes soon, because a test waits for it.
        values.insert(
            "outputs".to_owned(),
            json!({"repairSeconds": 2}).to_string(),
        );
        cluster.install(&values).await?;
        let host = SocketAddr::new(IpAddr::V4(cluster.host()), 0);
        let git = GitServer::start(host, files.path()).await?;
        let state = StateServer::start(host).await?;
        let objects = ObjectServer::start(host).await?;
        Ok(Self {
            client: cluster.client().await?,
            audit,
            cluster,
            git,
            state,
            objects,
            releases,
            values,
            _files: files,
            prefix,
            next: AtomicU32::new(0),
            took: Mutex::default(),
        })
    }

    /// An additional namespace for a test.
    pub(crate) async fn beside(&self, scene: &Scene, word: &str) -> Result<Scene> {
        self.made(scene, format!("{}-{word}", scene.namespace))
            .await
    }

    /// One of the two namespaces that share states, `a` or `b`, for one test.
    pub(crate) async fn sharing(&self, scene: &Scene, word: &str) -> Result<Scene> {
        self.made(scene, sharing(&self.prefix, word)).await
    }

    async fn made(&self, scene: &Scene, namespace: String) -> Result<Scene> {
        objects::namespace(&self.client, &namespace).await?;
        Ok(Scene {
            suite: scene.suite.clone(),
            namespace,
        })
    }

    /// Files of the store whose path contains all texts.
    pub(crate) fn stored(&self, texts: &[&str]) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut dirs = vec![self.cluster.datastore()];
        while let Some(dir) = dirs.pop() {
            for entry in
                std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?
            {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    dirs.push(entry.path());
                } else if texts
                    .iter()
                    .all(|text| entry.path().to_string_lossy().contains(text))
                {
                    found.push(entry.path());
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// The slowest tests, to help make the suite faster.
    pub(crate) fn slowest(&self) -> String {
        let mut took = self
            .took
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        took.sort_by(|a, b| b.cmp(a));
        let seconds =
            |(took, name): &(Duration, String)| format!("{name} {:.0}", took.as_secs_f64());
        let sum: f64 = took.iter().map(|(took, _)| took.as_secs_f64()).sum();
        let longest = took
            .iter()
            .take(25)
            .map(seconds)
            .collect::<Vec<_>>()
            .join(", ");
        format!(
            "slowest of {} tests, in seconds of {sum:.0}: {longest}",
            took.len()
        )
    }

    pub(crate) fn down(&self) -> Result<()> {
        if std::env::var_os("PAWL_KEEP").is_some() {
            println!("the cluster stays up: {}", self.cluster.env());
            return Ok(());
        }
        Cluster::down_by_name(self.cluster.name())
    }

    /// Runs a test in its own namespace, then checks the ledgers for violations.
    pub(crate) async fn run(self: &Arc<Self>, name: &str, body: Body) -> Result<()> {
        let namespace = format!(
            "{}-{}",
            self.prefix,
            self.next.fetch_add(1, Ordering::Relaxed)
        );
        objects::namespace(&self.client, &namespace).await?;
        let scene = Scene {
            suite: self.clone(),
            namespace: namespace.clone(),
        };
        let begun = Instant::now();
        let result = body(scene).await;
        self.took
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((begun.elapsed(), name.to_owned()));
        let entries: Vec<Entry> = self
            .state
            .ledger()
            .into_iter()
            .filter(|e| scene::belongs(e, &namespace))
            .collect();
        let violations = ledger::violations(&entries);
        let result = result.and_then(|()| {
            ensure!(violations.is_empty(), "must never happen: {violations:?}");
            Ok(())
        });
        result.with_context(|| {
            let seen = self
                .cluster
                .kubectl(&["-n", &namespace, "describe", "terraformruns"])
                .unwrap_or_default();
            let pods = self
                .cluster
                .kubectl(&["-n", &namespace, "get", "pods,events"])
                .unwrap_or_default();
            let ledger: Vec<_> = entries.iter().map(Entry::line).collect();
            format!(
                "{name} in namespace {namespace}\n{seen}\n{pods}\n{}",
                ledger.concat()
            )
        })
    }
}

fn sharing(prefix: &str, word: &str) -> String {
    format!("{prefix}-share-{word}")
}

/// The spec of a run that applies without a person.
pub(crate) fn automatic() -> Value {
    json!({"approval": {"mode": "Automatic"}})
}

/// An object with the values of another, which win.
pub(crate) fn with(mut object: Value, more: Value) -> Value {
    merge(&mut object, more);
    object
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// The condition of a type, if it has this status and reason.
pub(crate) fn condition<'a>(
    run: &'a TerraformRunStatus,
    type_: &str,
    status: &str,
    reason: &str,
) -> Option<&'a Condition> {
    run.conditions
        .iter()
        .find(|c| c.type_ == type_ && c.status == status && c.reason == reason)
}

/// Fails unless `text` contains `part`.
pub(crate) fn holds(text: &str, part: &str) -> Result<()> {
    if text.contains(part) {
        return Ok(());
    }
    bail!("`{part}` is missing in:\n{text}")
}

/// The stderr of a command.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
