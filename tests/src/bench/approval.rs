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

/// Measures it, one run after the other.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let (mut since_sent, mut since_acknowledged) = (Samples::default(), Samples::default());
    for n in 0..times {
        let name = format!("held-{n}");
        let run = lab.run(&namespace, &name, Stack::Nothing, "Manual")?;
        let (_, _, run) = watched(lab.runs(&namespace), &run, run_waits).await?;
        let status = run.status.unwrap_or_default();
        let (plan, attempt) = (status.plan.context("no plan")?, status.attempt.context("no attempt")?);
        // A person needs longer; the controller's proof of the gate may be a minute old, as it may be then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let annotations = json!({names::APPROVE: plan.checksum, names::APPROVED_BY: "admin"});
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let sent = Timestamp::now();
        lab.runs(&namespace).patch(&name, &PatchParams::default(), &patch).await.context("the approval was refused")?;
        let acknowledged = Timestamp::now();
        let applied = apply_start(lab, &attempt.pod_name).await?;
        since_sent.push(applied.duration_since(sent).as_secs_f64());
        since_acknowledged.push(applied.duration_since(acknowledged).as_secs_f64());
    }
    table.plain("approval sent to apply started, held pod", since_sent.spread(Unit::Millis));
    let met = since_acknowledged.max() <= 0.2;
    table.bound(
        "approval acknowledged to apply started, held pod",
        since_acknowledged.spread(Unit::Millis),
        "at most 200 ms",
        met,
    );
    Ok(())
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
