//! An upgrade as an operator makes it, from an earlier commit and in the middle of work: `cargo run --release --bin upgrade`.
//!
//! Chart, controller and agent of the commit are built from its own tree and installed. Under them runs have ended, wait with and without
//! their pod, apply, and stand in line; then `helm upgrade` brings those of this checkout, and all of it has to go on.

mod former;
mod lab;

use std::future::Future;

use anyhow::{Context, Result, bail, ensure};
use crds::{Phase, RunResult, TerraformRunStatus, conditions};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use former::Former;
use harness::cluster::{
    Cluster,
    chart::{PawlImages, Values},
    gobuild::IN_PODS,
    images::{Image, Profile},
    report,
    victims::GATE,
};
use lab::Lab;

const CLUSTER: &str = "upgrade";

#[derive(Clone, Debug)]
pub struct Options {
    /// The commit that is upgraded from.
    pub from: String,
    /// Leave the cluster up.
    pub keep: bool,
}

/// Upgrades, and prints what was looked at.
///
/// # Errors
/// When the commit or the cluster cannot be had, or something did not go on.
pub async fn run(options: &Options) -> Result<()> {
    let former = Former::build(&options.from)?;
    let ours = PawlImages::build(IN_PODS, Profile::Same)?;
    let lab = Lab::up().await?;
    let mut table = Table::default();
    let began = begin(&lab, &former).await;
    if let Ok(before) = &began {
        Box::pin(look(&lab, &former, &ours, before, &mut table)).await;
    }
    let failed = table.0.iter().filter(|(_, failure)| failure.is_some()).count();
    if began.is_err() || failed > 0 {
        println!("{}", lab.evidence());
    }
    if options.keep {
        println!("the cluster stays up: {}", lab.cluster.env());
    } else {
        Cluster::down_by_name(CLUSTER)?;
    }
    began.with_context(|| format!("{} itself did not come so far", options.from))?;
    println!("upgrade from {}:", options.from);
    for row in &table.0 {
        println!("{}", line(row));
    }
    println!("{} passed, {failed} failed", table.0.len() - failed);
    if failed > 0 {
        bail!("{failed} of {} did not go on", table.0.len());
    }
    Ok(())
}

/// What was looked at, and what was wrong with it.
#[derive(Default)]
struct Table(Vec<(&'static str, Option<String>)>);

impl Table {
    /// One that fails keeps none of the others from being looked at.
    async fn look(&mut self, what: &'static str, found: impl Future<Output = Result<()>>) {
        let row = (what, found.await.err().map(|error| format!("{error:#}")));
        report::note("upgrade", &line(&row));
        self.0.push(row);
    }
}

fn line((what, failure): &(&str, Option<String>)) -> String {
    failure.as_ref().map_or_else(|| format!("ok      {what}"), |failure| format!("FAILED  {what}: {failure}"))
}

/// One object, an output, and nothing that is done: `of` tells stacks apart.
fn stack(of: &str) -> String {
    format!(
        "resource \"terraform_data\" \"a\" {{\n  input = \"{of}\"\n}}\noutput \"of\" {{\n  value = terraform_data.a.output\n}}\n"
    )
}

/// An apply that lasts until it is let go on.
fn slow() -> String {
    format!("resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = \"{GATE}\"\n  }}\n}}\n")
}

fn automatic() -> Value {
    json!({"mode": "Automatic"})
}

struct Before {
    first: TerraformRunStatus,
    held: TerraformRunStatus,
    stored: TerraformRunStatus,
    busy: TerraformRunStatus,
    /// What people read, by its path.
    texts: Vec<(&'static str, String)>,
    keys: Value,
    certificate: Value,
}

/// What people read of what the former release stored.
const TEXTS: [&str; 4] =
    ["terraformruns/first/log", "terraformruns/first/plan", "terraformruns/stored/plan", "states/first/download"];

/// All of it under the former release.
async fn begin(lab: &Lab, former: &Former) -> Result<Before> {
    for image in [&former.images.runner, &former.images.controller].into_iter().chain(&former.images.sources) {
        lab.cluster.import(image)?;
    }
    lab.cluster.install_chart_of(&former.checkout, &former.values()).await?;
    lab.create("first", "first", &stack("first"), automatic()).await?;
    lab.create("held", "held", &stack("held"), json!({"mode": "Manual", "holdFor": "2h"})).await?;
    lab.create("stored", "stored", &stack("stored"), json!({"mode": "Manual", "holdFor": "0s"})).await?;
    lab.create("busy", "busy", &slow(), automatic()).await?;
    lab.until("busy", "applying", |status| status.phase == Some(Phase::Apply) && status.claim.is_some()).await?;
    lab.gated("busy").await?;
    lab.create("queued", "busy", &format!("{}{}", slow(), stack("queued")), automatic()).await?;
    lab.until("queued", "in line", stands_in_line).await?;
    let waits = |open: bool| {
        move |status: &TerraformRunStatus| {
            status.phase == Some(Phase::AwaitingApproval) && status.attempt.as_ref().is_some_and(|attempt| attempt.open == open)
        }
    };
    let held = lab.until("held", "held", waits(true)).await?;
    let stored = lab.until("stored", "waiting without a pod", waits(false)).await?;
    let first = lab.ends("first", RunResult::Applied).await?;
    lab.pods_end("first").await?;
    let mut texts = Vec::new();
    for path in TEXTS {
        texts.push((path, lab.read(path).await.with_context(|| format!("cannot read {path}"))?));
    }
    let (keys, certificate) = (lab.secret("keys").await?, lab.secret("tls").await?);
    let busy = lab.status("busy").await?;
    Ok(Before { first, held, stored, busy, texts, keys, certificate })
}

/// The upgrade, and whether all goes on.
async fn look(lab: &Lab, former: &Former, ours: &PawlImages, before: &Before, table: &mut Table) {
    table.look("helm upgrade to this checkout", lab.cluster.install_images(ours, &Values::new())).await;
    table.look("the keys and the certificate are taken over", taken_over(lab, before)).await;
    table.look("logs, plans and states that were stored are read", texts(lab, before)).await;
    table.look("a run that has ended is as it was", ended(lab, before)).await;
    table.look("the apply that is under way keeps its claim, its pod and its state", under_way(lab, before)).await;
    table.look("it ends Applied by the agent that began it", applied(lab, former)).await;
    table.look("the run in line behind it goes on with an agent of this checkout", in_line(lab, ours)).await;
    table.look("the plan that is held is approved and applied in its pod", held(lab, former, before)).await;
    table.look("the plan without a pod is approved and applied in the image that made it", stored(lab, former, before)).await;
    table.look("agents of this checkout find the states that were written", found(lab, ours, "again")).await;
    table.look("a second helm upgrade goes through", lab.cluster.install_images(ours, &Values::new())).await;
    table.look("it changes neither keys nor certificate", taken_over(lab, before)).await;
    table.look("states are found behind it", found(lab, ours, "at-last")).await;
}

fn stands_in_line(status: &TerraformRunStatus) -> bool {
    status.attempt.is_none() && conditions::status(&status.conditions, conditions::STATE_LEASED) == Some(false)
}

/// The former Secrets are as they were, and what is in them is in those that the datastore fills.
async fn taken_over(lab: &Lab, before: &Before) -> Result<()> {
    for (former, own, was) in [("keys", "keyring", &before.keys), ("tls", "certificate", &before.certificate)] {
        ensure!(was.as_object().is_some_and(|entries| !entries.is_empty()), "the former release had nothing in {former}");
        ensure!(lab.secret(former).await? == *was, "the Secret {former} is another one");
        ensure!(lab.secret(own).await? == *was, "the Secret {own} holds something else than {former} did");
    }
    Ok(())
}

async fn texts(lab: &Lab, before: &Before) -> Result<()> {
    for (path, was) in &before.texts {
        ensure!(!was.is_empty(), "there was no {path}");
        let now = lab.read(path).await?;
        ensure!(now == *was, "{path} was\n{was}\nand is\n{now}");
    }
    Ok(())
}

async fn ended(lab: &Lab, before: &Before) -> Result<()> {
    let said = |status: &TerraformRunStatus| {
        let plan = status.plan.as_ref().map(|plan| (plan.checksum.clone(), plan.summary.clone()));
        (status.phase, status.result, status.message.clone(), status.history.clone(), plan)
    };
    let now = lab.status("first").await?;
    ensure!(said(&now) == said(&before.first), "it was {:?} and is {now:?}", before.first);
    Ok(())
}

async fn under_way(lab: &Lab, before: &Before) -> Result<()> {
    let now = lab.status("busy").await?;
    ensure!(now.phase == Some(Phase::Apply) && now.result.is_none() && now.claim == before.busy.claim, "{now:?}");
    ensure!(now.lease == before.busy.lease && now.lease.is_some(), "{:?}", now.lease);
    let queued = lab.status("queued").await?;
    ensure!(stands_in_line(&queued), "the next in line did not wait for it: {queued:?}");
    lab.gated("busy").await
}

/// Whether a run has so many pods, the last of them of that image.
async fn made_by(lab: &Lab, name: &str, attempts: u32, image: &Image) -> Result<()> {
    let status = lab.status(name).await?;
    let attempt = status.attempt.context("no attempt")?;
    ensure!(attempt.number == attempts, "{name} took {} attempts", attempt.number);
    let pods = lab.pods(name).await?;
    let pod =
        pods.iter().find(|pod| pod.name_any() == attempt.pod_name).with_context(|| format!("no pod {}", attempt.pod_name))?;
    let ran = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone()).unwrap_or_default();
    ensure!(ran == image.name, "{} ran {ran}, not {}", attempt.pod_name, image.name);
    Ok(())
}

async fn applied(lab: &Lab, former: &Former) -> Result<()> {
    lab.open("busy").await?;
    lab.ends("busy", RunResult::Applied).await?;
    made_by(lab, "busy", 1, &former.images.runner).await
}

async fn in_line(lab: &Lab, ours: &PawlImages) -> Result<()> {
    let status = lab.ends("queued", RunResult::Applied).await?;
    let summary = status.plan.context("no plan")?.summary;
    ensure!(summary.starts_with("+1 ~0 -0"), "it planned {summary}, not on what the run before it left");
    made_by(lab, "queued", 1, &ours.runner).await
}

/// Approves, and sees applied what waited before the upgrade.
async fn approved(lab: &Lab, name: &str, was: &TerraformRunStatus) -> Result<TerraformRunStatus> {
    lab.approve(name).await?;
    let status = lab.ends(name, RunResult::Applied).await?;
    let checksum = |status: &TerraformRunStatus| status.plan.as_ref().map(|plan| plan.checksum.clone());
    let claimed = status.claim.as_ref().map(|claim| claim.checksum.clone());
    ensure!(checksum(&status) == checksum(was) && claimed == checksum(was), "another plan was applied: {status:?}");
    Ok(status)
}

async fn held(lab: &Lab, former: &Former, before: &Before) -> Result<()> {
    approved(lab, "held", &before.held).await?;
    made_by(lab, "held", 1, &former.images.runner).await
}

async fn stored(lab: &Lab, former: &Former, before: &Before) -> Result<()> {
    let status = approved(lab, "stored", &before.stored).await?;
    ensure!(status.attempt.as_ref().and_then(|attempt| attempt.restores) == Some(1), "{:?}", status.attempt);
    made_by(lab, "stored", 2, &former.images.runner).await
}

/// A new run of each stack has nothing to do.
async fn found(lab: &Lab, ours: &PawlImages, word: &str) -> Result<()> {
    let busy = format!("{}{}", slow(), stack("queued"));
    for (of, main) in [("first", stack("first")), ("held", stack("held")), ("stored", stack("stored")), ("busy", busy)] {
        let name = format!("{of}-{word}");
        lab.create(&name, of, &main, automatic()).await?;
        lab.ends(&name, RunResult::NoChanges).await.with_context(|| format!("stack {of}"))?;
        made_by(lab, &name, 1, &ours.runner).await?;
    }
    Ok(())
}
