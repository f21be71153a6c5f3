//! From an approval to the start of `apply` in a pod that holds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::names;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::lab::{Lab, run_waits, watched};
use super::samples::{Samples, Unit};
use super::stacks::Stack;
use super::table::Table;
use crate::ledger::{self, what};

/// Who annotate a run at once while it is approved, in the second figure.
const WRITERS: usize = 30;

/// Measures it, one run after the other: in calm, and while others annotate the run as fast as the API server answers.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let (mut since_sent, mut since_acknowledged, mut busy) = (Samples::default(), Samples::default(), Samples::default());
    for n in 0..times {
        let (sent, acknowledged) = approved(lab, &namespace, &format!("held-{n}"), 0).await?;
        since_sent.push(sent);
        since_acknowledged.push(acknowledged);
        busy.push(approved(lab, &namespace, &format!("busy-{n}"), WRITERS).await?.1);
    }
    table.plain("approval sent to apply started, held pod", since_sent.spread(Unit::Millis));
    let met = since_acknowledged.max() <= 0.2;
    table.bound(
        "approval acknowledged to apply started, held pod",
        since_acknowledged.spread(Unit::Millis),
        "at most 200 ms",
        met,
    );
    let calm = since_acknowledged.median();
    let ratio: Samples = busy.values().map(|value| value / calm).collect();
    table.bound(
        &format!("the same while {WRITERS} annotate the run, beside calm"),
        ratio.spread(Unit::Ratio),
        "at most 3",
        ratio.max() <= 3.0,
    );
    Ok(())
}

/// Approves a plan that waits: seconds from the request, and from its answer, to the start of `apply`.
async fn approved(lab: &Lab, namespace: &str, name: &str, writers: usize) -> Result<(f64, f64)> {
    let run = lab.run(namespace, name, Stack::Nothing, "Manual")?;
    let (_, _, run) = watched(lab.runs(namespace), &run, run_waits).await?;
    let status = run.status.unwrap_or_default();
    let (plan, attempt) = (status.plan.context("no plan")?, status.attempt.context("no attempt")?);
    let writers: Vec<_> = (0..writers)
        .map(|index| {
            let (runs, name) = (lab.runs(namespace), name.to_owned());
            tokio::spawn(async move {
                for n in 0_u64.. {
                    let patch = Patch::Merge(json!({"metadata": {"annotations": {format!("team/{index}"): n.to_string()}}}));
                    let _ = runs.patch(&name, &PatchParams::default(), &patch).await;
                }
            })
        })
        .collect();
    // A person needs longer; the controller's proof of the gate may be a minute old, as it may be then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let annotations = json!({names::APPROVE: plan.checksum, names::APPROVED_BY: "admin"});
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let sent = Timestamp::now();
    lab.runs(namespace).patch(name, &PatchParams::default(), &patch).await.context("the approval was refused")?;
    let acknowledged = Timestamp::now();
    let applied = apply_start(lab, &attempt.pod_name).await;
    writers.iter().for_each(tokio::task::JoinHandle::abort);
    let applied = applied?;
    Ok((applied.duration_since(sent).as_secs_f64(), applied.duration_since(acknowledged).as_secs_f64()))
}

/// When the tool of a pod began its apply, by its own clock, which is this machine's.
pub(super) async fn apply_start(lab: &Lab, pod: &str) -> Result<Timestamp> {
    let begun = Instant::now();
    loop {
        let of_pod: Vec<_> = lab.state.ledger().into_iter().filter(|entry| entry.who == pod).collect();
        if let Some(entry) = ledger::select(&of_pod, what::COMMAND_START, Some("apply")).first() {
            return entry.at.parse().context("an entry without a time");
        }
        ensure!(begun.elapsed() < Duration::from_secs(30), "no apply in {pod} within 30 s of its approval");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
