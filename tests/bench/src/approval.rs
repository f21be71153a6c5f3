//! Measures from an approval to the start of `apply` in a pod in its hold.
//!
//! The approver, and each client that annotates meanwhile, is a user with the chart's roles and its own connection, as in production: the
//! API server does not limit administrators.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{TerraformRun, names};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::lab::{Lab, run_waits, watched};
use super::samples::{Samples, Unit};
use super::stacks::Stack;
use super::table::Table;
use ledger::what;

/// Number of clients that annotate a run in parallel during its approval.
const WRITERS: u32 = 30;

/// A longer wait indicates a defect, not a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Rate of their writes.
#[derive(Clone, Copy)]
enum Pace {
    /// No writes.
    Calm,
    /// Like loops that sleep for a second.
    EachSecond,
    /// Annotates as fast as the API server responds. The API server stores one write of an object at a time, so each write, ours included,
    /// waits for the others.
    Unresting,
}

/// Durations of an approval, in seconds.
struct Approved {
    since_sent: f64,
    since_acknowledged: f64,
    /// Mean duration of the other clients' writes meanwhile.
    write: f64,
}

const APPROVER: &str = "approver";

/// Users with the rights of their roles in a namespace.
struct People {
    namespace: String,
    approver: Api<TerraformRun>,
    writers: Vec<Api<TerraformRun>>,
}

impl People {
    async fn of(lab: &Lab) -> Result<Self> {
        let namespace = lab.namespace().await?;
        let bind = |role: &str, whom: &str| {
            lab.cluster.kubectl(&["create", "rolebinding", role, &format!("--clusterrole={role}"), whom, "-n", &namespace])
        };
        bind("pawl-author", "--group=team")?;
        bind("pawl-approver", &format!("--user={APPROVER}"))?;
        let mut writers = Vec::new();
        for index in 0..WRITERS {
            let client = lab.cluster.impersonate(&format!("writer-{index}"), &["team", "system:authenticated"]).await?;
            writers.push(Api::namespaced(client, &namespace));
        }
        let client = lab.cluster.impersonate(APPROVER, &["system:authenticated"]).await?;
        Ok(Self { approver: Api::namespaced(client, &namespace), namespace, writers })
    }
}

/// Measures one run after the other: without other writes, and while others annotate the run.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let people = People::of(lab).await?;
    let (mut since_sent, mut since_acknowledged) = (Samples::default(), Samples::default());
    let (mut each_second, mut unresting, mut writes) = (Samples::default(), Samples::default(), Samples::default());
    for n in 0..times {
        let calm = approved(lab, &people, &format!("held-{n}"), Pace::Calm).await?;
        since_sent.push(calm.since_sent);
        since_acknowledged.push(calm.since_acknowledged);
        each_second.push(approved(lab, &people, &format!("busy-{n}"), Pace::EachSecond).await?.since_acknowledged);
        let busiest = approved(lab, &people, &format!("busiest-{n}"), Pace::Unresting).await?;
        unresting.push(busiest.since_acknowledged);
        writes.push(busiest.write);
    }
    table.plain("approval sent to apply started, held pod", since_sent.spread(Unit::Millis));
    let met = since_acknowledged.max() <= 0.1;
    table.bound(
        "approval acknowledged to apply started, held pod",
        since_acknowledged.spread(Unit::Millis),
        "at most 100 ms",
        met,
    );
    let calm = since_acknowledged.median();
    for (how, busy) in [("each second", each_second), ("without rest", unresting)] {
        let ratio: Samples = busy.values().map(|value| value / calm).collect();
        table.bound(
            &format!("the same while {WRITERS} annotate the run {how}, beside calm"),
            ratio.spread(Unit::Ratio),
            "at most 3",
            ratio.max() <= 3.0,
        );
    }
    table.plain("  what each write of theirs without rest takes", writes.spread(Unit::Seconds));
    Ok(())
}

/// Approves a waiting plan, and waits for the start of `apply`.
async fn approved(lab: &Lab, people: &People, name: &str, pace: Pace) -> Result<Approved> {
    let run = lab.run(&people.namespace, name, Stack::Nothing, "Manual")?;
    let (_, _, run) = watched(lab.runs(&people.namespace), &run, run_waits).await?;
    let status = run.status.unwrap_or_default();
    let (plan, attempt) = (status.plan.context("no plan")?, status.attempt.context("no attempt")?);
    let (count, rest) = match pace {
        Pace::Calm => (0, Duration::ZERO),
        Pace::EachSecond => (people.writers.len(), Duration::from_secs(1)),
        Pace::Unresting => (people.writers.len(), Duration::ZERO),
    };
    let taken = Arc::new(Mutex::new(Samples::default()));
    let writers: Vec<_> = (0_u32..)
        .zip(&people.writers[..count])
        .map(|(index, runs)| {
            let (runs, name, taken) = (runs.clone(), name.to_owned(), taken.clone());
            tokio::spawn(async move {
                // Spread their writes.
                tokio::time::sleep(rest / WRITERS * index).await;
                for n in 0_u64.. {
                    let patch = Patch::Merge(json!({"metadata": {"annotations": {format!("team/{index}"): n.to_string()}}}));
                    let begun = Instant::now();
                    let _ = runs.patch(&name, &PatchParams::default(), &patch).await;
                    taken.lock().unwrap_or_else(PoisonError::into_inner).push(begun.elapsed().as_secs_f64());
                    tokio::time::sleep(rest).await;
                }
            })
        })
        .collect();
    // A person needs more than this second. The controller's proof of the policies may be up to a minute old here, as in production.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let annotations = json!({names::APPROVE: plan.checksum, names::APPROVED_BY: APPROVER});
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let sent = Timestamp::now();
    people.approver.patch(name, &PatchParams::default(), &patch).await.context("the approval was refused")?;
    let acknowledged = Timestamp::now();
    let applied = apply_start(lab, &attempt.pod_name).await;
    writers.iter().for_each(tokio::task::JoinHandle::abort);
    let (applied, taken) = (applied?, taken.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Approved {
        since_sent: applied.duration_since(sent).as_secs_f64(),
        since_acknowledged: applied.duration_since(acknowledged).as_secs_f64(),
        write: taken.median(),
    })
}

/// When the tool of a pod began its apply, by its own clock, which is this machine's.
pub(super) async fn apply_start(lab: &Lab, pod: &str) -> Result<Timestamp> {
    let begun = Instant::now();
    loop {
        let of_pod: Vec<_> = lab.state.ledger().into_iter().filter(|entry| entry.who == pod).collect();
        if let Some(entry) = ledger::select(&of_pod, what::COMMAND_START, Some("apply")).first() {
            return entry.at.parse().context("an entry without a time");
        }
        ensure!(begun.elapsed() < PATIENCE, "no apply in {pod} within {PATIENCE:?} of its approval");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
