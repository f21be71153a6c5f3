//! Layers of a repository that receives commits while Pawl's components die. The forge sends one webhook per push and does not retry. Lost
//! webhooks are found by the next poll of the refs.

mod verdict;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use crds::{TerraformLayer, TerraformRun, names};
use kube::{
    ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use reqwest::StatusCode;
use serde_json::json;
use tempfile::TempDir;

use super::{
    cluster_faults,
    kinds::Kind,
    lab::{Lab, merge, runner},
    person,
    strikes::Aim,
};
use crate::history::{History, Violation};
use harness::wait;
use servers::{git::GitServer, repo::Repo, webhook::Hook};

use verdict::Kept;

/// The repository's name, also in the cluster.
const STACKS: &str = "stacks";
/// Time limit for layers after the last kill. It covers the longest backoff for an unavailable server, and the remaining plans.
const PATIENCE: Duration = Duration::from_secs(300);

/// A forge with one repository, and a layer for each of its directories.
pub(super) struct Forge {
    /// `None` while it is down.
    git: Mutex<Option<GitServer>>,
    address: SocketAddr,
    root: TempDir,
    repo: Repo,
    hook: Hook,
    pushed: Mutex<Pushed>,
}

#[derive(Debug, Default)]
struct Pushed {
    /// The newest round of each layer: a number in its newest relevant commit.
    rounds: Vec<u64>,
    relevant: u64,
    others: u64,
    /// Pushes whose webhook was accepted.
    told: u64,
}

impl Forge {
    /// Creates the repository and this many layers. Every second is Automatic, and two of three store their state in the datastore.
    pub(super) async fn set(lab: &Lab, layers: u64) -> Result<Self> {
        let root = tempfile::tempdir()?;
        let git = GitServer::start(
            SocketAddr::new(IpAddr::V4(lab.cluster.host()), 0),
            root.path(),
        )
        .await?;
        let repo = git.create(STACKS)?;
        let count = usize::try_from(layers)?;
        let first: Vec<_> = (0..count).flat_map(|n| files(lab, n, 0)).collect();
        commit(&repo, &first)?;
        // The shortest interval allowed. The poll finds pushes whose webhook was lost.
        let spec = json!({"url": git.url(STACKS), "interval": "30s"});
        let hook = Hook::set(&lab.cluster, &lab.namespace, STACKS, spec).await?;
        for n in 0..count {
            let place = if is_managed(n) {
                json!({"stack": name(n)})
            } else {
                json!({"backend": {"type": "http", "config": lab.state.backend_config(&id(lab, n))}})
            };
            let mut spec = json!({
                "repository": {"name": STACKS}, "path": name(n), "runHistory": 50,
                "remediation": {"onCommit": if n.is_multiple_of(2) { "Automatic" } else { "Manual" }},
                "template": {
                    "tool": {"name": "OpenTofu", "version": "0.0.1"},
                    "runner": runner(false),
                },
            });
            merge(&mut spec["template"], &place);
            let layer = TerraformLayer::new(&name(n), serde_json::from_value(spec)?);
            lab.layers()
                .create(&PostParams::default(), &layer)
                .await
                .context("cannot make a layer")?;
        }
        let pushed = Mutex::new(Pushed {
            rounds: vec![0; count],
            ..Pushed::default()
        });
        Ok(Self {
            address: git.addr(),
            git: Mutex::new(Some(git)),
            root,
            repo,
            hook,
            pushed,
        })
    }

    fn pushed(&self) -> MutexGuard<'_, Pushed> {
        self.pushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes relevant and irrelevant commits until the loop is over.
    pub(super) async fn push(self: Arc<Self>, lab: Arc<Lab>, seed: u64) -> Result<()> {
        let mut random = StdRng::seed_from_u64(seed ^ 0x9054);
        while !lab.over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(random.random_range(300..2_500))).await;
            let files = {
                let mut pushed = self.pushed();
                if random.random_bool(0.7) {
                    let n = random.random_range(0..pushed.rounds.len());
                    pushed.rounds[n] += 1;
                    pushed.relevant += 1;
                    files(&lab, n, pushed.rounds[n])
                } else {
                    pushed.others += 1;
                    // Also in a directory next to those of layers, whose name begins with a layer's.
                    let place = if random.random_bool(0.5) {
                        "docs"
                    } else {
                        "l0-old"
                    };
                    vec![(format!("{place}/a.md"), pushed.others.to_string())]
                }
            };
            let commit = commit(&self.repo, &files)?;
            let heard = matches!(self.hook.push(&commit).await, Ok(StatusCode::ACCEPTED));
            self.pushed().told += u64::from(heard);
        }
        Ok(())
    }

    /// Strikes the components that only layers need, until the loop is over. Leaves them up.
    pub(super) async fn strike(self: Arc<Self>, lab: Arc<Lab>, seed: u64) -> Result<()> {
        let mut random = StdRng::seed_from_u64(seed ^ 0xf026);
        while !lab.over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(random.random_range(1_000..9_000))).await;
            let kind = [Kind::Sources, Kind::Server, Kind::GitServer][random.random_range(0..3)];
            let struck = match kind {
                Kind::Sources => cluster_faults::kill(&lab, "sources", "/controller").await,
                Kind::Server => cluster_faults::kill(&lab, "server", "/controller").await,
                _ => {
                    let gone = self
                        .git
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .take();
                    drop(gone);
                    tokio::time::sleep(Duration::from_millis(random.random_range(0..6_000))).await;
                    // The socket is released a moment after its server.
                    let start = async || Ok(GitServer::start(self.address, self.root.path()).await);
                    let again =
                        wait::until("the Git server returns", Duration::from_secs(10), start)
                            .await?;
                    *self.git.lock().unwrap_or_else(PoisonError::into_inner) = Some(again);
                    true
                }
            };
            if struck {
                lab.record.add(kind, None);
            }
        }
        Ok(())
    }

    /// Strikes the pods of layers until the loop is over, one run after the other, in any phase.
    pub(super) async fn haunt(self: Arc<Self>, lab: Arc<Lab>, seed: u64) -> Result<()> {
        let mut random = StdRng::seed_from_u64(seed ^ 0x4a07);
        while !lab.over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(random.random_range(500..2_500))).await;
            let n = random.random_range(0..self.pushed().rounds.len());
            let is_of_layer =
                |run: &TerraformRun| run.labels().get(names::LABEL_LAYER) == Some(&name(n));
            let is_open = |run: &TerraformRun| {
                run.status
                    .as_ref()
                    .is_some_and(|status| !status.is_terminal())
            };
            // A layer has one run at a time.
            let Some(run) = lab.seen.find(|run| is_of_layer(run) && is_open(run)) else {
                continue;
            };
            Aim::draw(&mut random).strike(&lab, &run).await?;
        }
        Ok(())
    }

    /// Stacks whose state is in the datastore.
    pub(super) fn stacks(&self) -> Vec<String> {
        (0..self.pushed().rounds.len())
            .filter(|n| is_managed(*n))
            .map(name)
            .collect()
    }

    /// Answers waiting layers until the loop is over and all of them are at rest, or time out.
    pub(super) async fn tend(self: Arc<Self>, lab: Arc<Lab>) -> Result<()> {
        let mut over = None;
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if lab.over.load(Ordering::Relaxed) {
                let since: &mut Instant = over.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    return Ok(());
                }
            }
            // The API server may be down.
            let Ok(layers) = lab.layers().list(&ListParams::default()).await else {
                continue;
            };
            for layer in &layers.items {
                attend(&lab, layer).await;
            }
            if over.is_some()
                && self
                    .kept(&lab, &layers.items)
                    .await
                    .iter()
                    .all(Kept::is_at_rest)
            {
                return Ok(());
            }
        }
    }

    async fn kept(&self, lab: &Lab, layers: &[TerraformLayer]) -> Vec<Kept> {
        let (rounds, ledger) = (self.pushed().rounds.clone(), lab.state.ledger());
        let mut kept = Vec::new();
        for (n, newest) in rounds.iter().enumerate() {
            let status = layers
                .iter()
                .find(|layer| layer.name_any() == name(n))
                .and_then(|layer| layer.status.clone());
            let state = if is_managed(n) {
                lab.read(&format!("states/{}/download", name(n)))
                    .await
                    .unwrap_or_default()
            } else {
                lab.state
                    .current(&id(lab, n))
                    .unwrap_or_default()
                    .to_string()
            };
            kept.push(Kept::of(
                &id(lab, n),
                *newest,
                status.unwrap_or_default(),
                &ledger,
                &state,
            ));
        }
        kept
    }

    /// All violations of layers.
    pub(super) async fn judge(&self, lab: &Lab, history: &History) -> Result<Vec<Violation>> {
        let layers = lab.all(&lab.layers()).await?;
        Ok(verdict::judge(&self.kept(lab, &layers).await, history))
    }

    /// A line of the report.
    pub(super) fn summary(&self, history: &History) -> String {
        let pushed = self.pushed();
        let runs = history
            .runs
            .values()
            .filter(|versions| verdict::layer_of(versions).is_some())
            .count();
        format!(
            "\nLayers: {}; {} commits for them and {} others, {} of which the server heard of; {runs} of the runs.",
            pushed.rounds.len(),
            pushed.relevant,
            pushed.others,
            pushed.told
        )
    }
}

/// Approves a waiting plan, and requests a new run after a failure.
async fn attend(lab: &Lab, layer: &TerraformLayer) {
    let status = layer.status.clone().unwrap_or_default();
    if let Some(pending) = &status.pending {
        let plan = lab
            .run(&pending.run)
            .and_then(|run| Some((run.annotations().clone(), run.status?.plan?.checksum)));
        if let Some((annotations, checksum)) = plan
            && annotations.get(names::APPROVE) != Some(&checksum)
        {
            // The plan may have changed; the next look checks it.
            person::annotate(lab, &pending.run, person::approval(&checksum)).await;
        }
    } else if status.failures.is_some() && status.current_run.is_none() {
        let asked = layer.annotations().get(names::PLAN);
        if asked.is_none() || asked == status.last_handled_plan.as_ref() {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {names::PLAN: "now"}}}));
            // The next look retries.
            let _ = lab
                .layers()
                .patch(&layer.name_any(), &PatchParams::default(), &patch)
                .await;
        }
    }
}

/// Whether the state of a layer is in the datastore.
const fn is_managed(n: usize) -> bool {
    !n.is_multiple_of(3)
}

fn name(n: usize) -> String {
    format!("l{n}")
}

/// The name of a layer's state, and the prefix of its script names, before the round.
fn id(lab: &Lab, n: usize) -> String {
    format!("{}/{}", lab.namespace, name(n))
}

/// The directory of a layer in a round. Each round replaces the previous round's object by a new one.
fn files(lab: &Lab, n: usize, round: u64) -> Vec<(String, String)> {
    let script = json!({
        "name": verdict::script(&id(lab, n), round), "ledger": lab.state.ledger_url(),
        "resources": [verdict::resource(round)], "apply_ms": 200,
    });
    let main = "# played by a script\n".to_owned();
    vec![
        (format!("{}/main.tf", name(n)), main),
        (format!("{}/pawl-script.json", name(n)), script.to_string()),
    ]
}

fn commit(repo: &Repo, files: &[(String, String)]) -> Result<String> {
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    repo.commit("main", &files)
}
