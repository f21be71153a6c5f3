//! Measures from an approval after the hold to the start of `apply` in a new pod, compared with the start of a bare pod.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{Phase, names};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::approval::apply_start;
use super::lab::Lab;
use super::samples::{Samples, Unit};
use super::stacks::{Commands, Stack};
use super::table::Table;

/// Measures both alternately.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let (mut late, mut bare, mut ratio) = (Samples::default(), Samples::default(), Samples::default());
    for n in 0..times {
        let name = format!("late-{n}");
        let mut run = lab.run(&namespace, &name, Stack::Nothing, "Manual")?;
        run.spec.approval.hold_for = "0s".parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        lab.runs(&namespace).create(&kube::api::PostParams::default(), &run).await?;
        let (checksum, number) = released(lab, &namespace, &name).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let annotations = json!({names::APPROVE: checksum, names::APPROVED_BY: "admin"});
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let sent = Timestamp::now();
        let run = lab.runs(&namespace).patch(&name, &PatchParams::default(), &patch).await.context("the approval was refused")?;
        let pod = names::attempt_name(&name, run.metadata.uid.as_deref().unwrap_or_default(), number + 1);
        let applied = apply_start(lab, &pod).await?.duration_since(sent).as_secs_f64();
        let timing = lab.time_pod(&lab.bare_pod(&namespace, &format!("bare-{n}"), Stack::Nothing, Commands::Plain)?).await?;
        let started = timing.before.as_secs_f64();
        late.push(applied);
        bare.push(started);
        ratio.push(applied / started);
    }
    table.plain("bare pod created to its container started", bare.spread(Unit::Millis));
    table.plain("approval after the hold sent to apply started, new pod", late.spread(Unit::Millis));
    table.bound("  ratio to the bare pod's start", ratio.spread(Unit::Ratio), "at most 1.60", ratio.median() <= 1.6);
    Ok(())
}

/// Waits until the plan waits without a pod; returns its checksum and the attempt's number.
async fn released(lab: &Lab, namespace: &str, name: &str) -> Result<(String, u32)> {
    let begun = Instant::now();
    loop {
        let status = lab.runs(namespace).get(name).await?.status.unwrap_or_default();
        if let (Some(Phase::AwaitingApproval), Some(plan), Some(attempt)) = (status.phase, &status.plan, &status.attempt)
            && !attempt.open
        {
            return Ok((plan.checksum.clone(), attempt.number));
        }
        ensure!(begun.elapsed() < Duration::from_secs(60), "{name} does not wait without a pod: {status:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
