//! The kill loop: runs on a real cluster with constant kills, layers that receive commits meanwhile, and a check of audit log and ledger
//! afterwards. `cargo chaos` runs it; a short form is a stage of `cargo ci`.

mod cluster_faults;
pub mod history;
mod kinds;
mod lab;
mod layers;
mod person;
mod report;
mod shelf;
mod states;
mod strikes;
mod workload;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::{TerraformRun, names};
use jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::task::JoinHandle;

use self::history::Violation;
use harness::cluster::{Cluster, chart::Values, report as progress, rights};
use servers::webhook;

use kinds::Kind;
use lab::Lab;
use layers::Forge;

const CLUSTER: &str = "kills";

#[derive(Clone, Debug)]
pub struct Options {
    /// Ends after this number of kills.
    pub kills: u64,
    /// Ends after this time, whatever was killed. Runs in progress are completed.
    pub limit: Duration,
    /// Seed of the choice of kills and times.
    pub seed: u64,
    /// Number of concurrent runs.
    pub workers: u64,
    /// Number of layers that receive commits meanwhile.
    pub layers: u64,
    /// File for a copy of the report, as Markdown.
    pub save: Option<PathBuf>,
    /// Leave the cluster up.
    pub keep: bool,
}

/// Runs the loop, checks, and prints the report.
///
/// # Errors
/// When the cluster cannot start, or an invariant is violated.
pub async fn run(options: &Options) -> Result<()> {
    let values = if options.layers > 0 {
        webhook::values()
    } else {
        Values::new()
    };
    let lab = Arc::new(Lab::up(options.seed, &values).await?);
    let result = Box::pin(strike(&lab, options)).await;
    // The loop of `cargo ci` has layers.
    let granted = rights::judge(
        "kills",
        std::slice::from_ref(&lab.audit),
        options.layers > 0,
    );
    if options.keep {
        println!("the cluster stays up: {}", lab.cluster.env());
    } else {
        Cluster::down_by_name(CLUSTER)?;
    }
    let violations = result?;
    if violations.is_empty() && granted {
        let (kills, seed) = (lab.record.kills(), options.seed);
        println!("test kills::{kills}_kills_with_seed_{seed} ... ok");
        println!("test result: ok. 1 passed; 0 failed");
        return Ok(());
    }
    let (count, seed) = (violations.len(), options.seed);
    println!(
        "test result: FAILED. 0 passed; {} failed",
        count + usize::from(!granted)
    );
    ensure!(count > 0, "the rights of Pawl's processes: see above");
    bail!(
        "{count} violations with seed {seed}; the first: {}",
        violations[0]
    )
}

async fn strike(lab: &Arc<Lab>, options: &Options) -> Result<Vec<Violation>> {
    let since = history::end(&lab.cluster.audit_log)?;
    let forge = match options.layers {
        0 => None,
        count => Some(Arc::new(Forge::set(lab, count).await?)),
    };
    let step = progress::step(
        "kills",
        format!("{} kills, seed {}", options.kills, options.seed),
    );
    let ending = {
        let (lab, kills, limit) = (lab.clone(), options.kills, options.limit);
        tokio::spawn(async move {
            let started = tokio::time::Instant::now();
            let mut told = started;
            while lab.record.kills() < kills && started.elapsed() < limit {
                tokio::time::sleep(Duration::from_millis(200)).await;
                if told.elapsed() > Duration::from_secs(30) {
                    told = tokio::time::Instant::now();
                    let (so_far, seconds) = (lab.record.kills(), started.elapsed().as_secs());
                    println!("kills {so_far} of {kills} after {seconds} s");
                }
            }
            lab.over.store(true, Ordering::Relaxed);
        })
    };
    let seed = options.seed;
    let worker = |n| tokio::spawn(workload::work(lab.clone(), seed, n));
    let workers: Vec<_> = (0..options.workers).map(worker).collect();
    let faults = tokio::spawn(cluster_faults::go_on(lab.clone(), seed));
    let mut followed: Vec<JoinHandle<Result<()>>> = Vec::new();
    if let Some(forge) = &forge {
        followed.push(tokio::spawn(forge.clone().push(lab.clone(), seed)));
        followed.push(tokio::spawn(forge.clone().strike(lab.clone(), seed)));
        followed.push(tokio::spawn(forge.clone().haunt(lab.clone(), seed)));
        followed.push(tokio::spawn(forge.clone().tend(lab.clone())));
    }
    ending.await.context("the clock of the loop failed")?;
    // The faults stop first, so that runs in progress can end.
    faults.await.context("the faults of the cluster failed")??;
    let mut stuck = Vec::new();
    for worker in workers {
        stuck.extend(worker.await.context("a worker failed")??);
    }
    for part in followed {
        part.await.context("a part of the layers' loop failed")??;
    }
    let left = states::close(lab).await?;
    step.done();
    lab.settle().await;
    let now = Timestamp::now();
    let (log, namespaces) = (&lab.cluster.audit_log, [lab.namespace.clone()]);
    let mut history = history::read(log, since, &namespaces, lab::SECRET)?;
    history.ledger = lab.state.ledger();
    history.gaps = lab.record.times(&[Kind::ApiServer]);
    // What is on a journal's way to the datastore.
    let on_its_way = [Kind::Datastore, Kind::ApiServer, Kind::Network];
    history.outages = lab.record.times(&on_its_way);
    let stacks = forge
        .as_ref()
        .map(|forge| forge.stacks())
        .unwrap_or_default();
    history.states = states::known(lab, &stacks).await?;
    let runs = lab.all(&lab.runs()).await?;
    let of_layer = |run: &&TerraformRun| run.labels().contains_key(names::LABEL_LAYER);
    for run in runs.iter().filter(of_layer) {
        lab.keep(&run.name_any()).await;
    }
    history.journals = lab.shelf.journals();
    let status = |run: TerraformRun| {
        (
            run.uid().unwrap_or_default(),
            run.status.unwrap_or_default(),
        )
    };
    history.last = runs.into_iter().map(status).collect();
    let mut violations = history::check(&history, Some(now));
    violations.extend(
        stuck
            .into_iter()
            .map(|(of, text)| Violation::new("L1", of, text)),
    );
    violations.extend(
        left.into_iter()
            .map(|(of, text)| Violation::new("L40", of, text)),
    );
    let leaks = lab.leaks()?.into_iter().chain(lab.shelf.leaks());
    violations.extend(leaks.map(|text| Violation::new("S15", "logs", text)));
    if let Some(forge) = &forge {
        violations.extend(forge.judge(lab, &history).await?);
    }
    let mut text = report::markdown(lab, &history, &violations, options);
    text.extend(forge.iter().map(|forge| forge.summary(&history)));
    println!("{text}");
    if let Some(file) = &options.save {
        std::fs::write(file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    for violation in &violations {
        println!("must never happen: {violation}");
    }
    let of: BTreeSet<_> = violations.iter().map(|violation| &violation.of).collect();
    let evidence = of.into_iter().map(|run| history::evidence(&history, run));
    evidence
        .filter(|text| !text.is_empty())
        .take(3)
        .for_each(|text| print!("{text}"));
    Ok(violations)
}
