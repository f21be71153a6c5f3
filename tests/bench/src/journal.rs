//! Measures from the creation of an object to its line in the stored journal, which outlives the pod.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{TerraformRun, apply_log::Line};
use jiff::Timestamp;
use kube::api::PostParams;
use serde_json::json;

use super::lab::Lab;
use super::samples::{Samples, Unit};
use super::stacks::Stack;
use super::table::Table;
use ledger::what;

const RUN: &str = "journal";
/// Delay between objects: longer than the measured time.
const BETWEEN_MS: u64 = 1500;

/// Measures the objects of one run one by one. Reading with `kubectl` takes part of the time.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let id = format!("{namespace}/{RUN}");
    let script = json!({"name": id, "ledger": lab.state.ledger_url(), "resources": times, "apply_ms": BETWEEN_MS});
    let files = json!({"main.tf": "# played by a script\n", "pawl-script.json": script.to_string()});
    let spec = json!({"source": {"inline": {"files": files}}, "tool": {"name": "OpenTofu", "version": Stack::Nothing.version("")},
        "backend": {"type": "http", "config": lab.state.backend_config(&id)}, "approval": {"mode": "Automatic"}});
    let run = TerraformRun::new(RUN, serde_json::from_value(spec)?);
    lab.runs(&namespace).create(&PostParams::default(), &run).await?;
    let path = format!("/apis/read.pawl.run/v1alpha1/namespaces/{namespace}/terraformruns/{RUN}/journal");
    let mut late = Samples::default();
    for count in 1..=times {
        let begun = Instant::now();
        let seen = loop {
            // There is no journal before the apply begins.
            let text = lab.cluster.kubectl(&["get", "--raw", &path]).unwrap_or_default();
            let seen = Timestamp::now();
            let complete = text.lines().filter(|line| matches!(Line::parse(line.as_bytes()), Some(Line::Complete(_))));
            if complete.count() >= count {
                break seen;
            }
            ensure!(begun.elapsed() < Duration::from_secs(120), "the journal of {id} has not {count} objects:\n{text}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let of_run: Vec<_> = lab.state.ledger().into_iter().filter(|entry| entry.text("script") == Some(id.as_str())).collect();
        let made = ledger::select(&of_run, what::RESOURCE, None);
        let made: Timestamp = made.get(count - 1).context("nothing was made")?.at.parse().context("an entry without a time")?;
        late.push(seen.duration_since(made).as_secs_f64());
    }
    let met = late.max() <= 1.0;
    table.bound("object made to its line in the journal", late.spread(Unit::Millis), "at most 1 s", met);
    Ok(())
}
