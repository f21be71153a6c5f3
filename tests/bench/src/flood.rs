//! Sends a plan of 50,000 resources and a log of 2 GiB through agent and datastore. Measures the memory of both, and checks that all data
//! can be read back.

use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{RunResult, TerraformRunStatus};
use kube::api::PostParams;
use serde_json::{Value, json};

use super::bundles::Peak;
use super::lab::Lab;
use super::memory;
use super::table::Table;

const RESOURCES: u32 = 50_000;
const LOG_MIB: u64 = 2048;

pub(super) async fn measure(lab: &Lab, quick: bool, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let script = json!({"resources": RESOURCES});
    let (took, agent, store) = pass(lab, &namespace, "large-plan", script, "Plan").await?;
    let text = size(lab, &namespace, "large-plan", "plan")?;
    let json = size(lab, &namespace, "large-plan", "planjson")?;
    ensure!(
        text > u64::from(RESOURCES) * 20 && json > u64::from(RESOURCES) * 100,
        "the plan came back short: {text} and {json} bytes"
    );
    let sizes = format!("{:.1} s; text {:.1} MiB, JSON {:.1} MiB read back", took.as_secs_f64(), mib(text), mib(json));
    table.plain(&format!("plan of {RESOURCES} resources"), sizes);
    memory_rows(table, agent, store);

    let megabytes = if quick { LOG_MIB / 8 } else { LOG_MIB };
    let script = json!({"resources": 1, "commands": {"apply": [{"flood_mb": megabytes}, "default"]}});
    let (took, agent, store) = pass(lab, &namespace, "large-log", script, "Apply").await?;
    let log = size(lab, &namespace, "large-log", "log?phase=apply")?;
    ensure!(log >= megabytes << 20, "the log came back short: {log} bytes");
    table.plain(&format!("log of {megabytes} MiB"), format!("{:.1} s; {:.0} MiB read back", took.as_secs_f64(), mib(log)));
    memory_rows(table, agent, store);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn memory_rows(table: &mut Table, agent: u32, store: u32) {
    let text = |kib: u32| format!("{:.1} MiB", f64::from(kib) / 1024.0);
    table.bound("  agent, RssAnon at most", text(agent), "at most 32 MiB", agent <= 32 << 10);
    table.bound("  datastore, RssAnon at most", text(store), "at most 32 MiB", store <= 32 << 10);
}

/// Plays a script; returns its duration, and the peak memory of agent and datastore in KiB.
async fn pass(lab: &Lab, namespace: &str, name: &str, script: Value, operation: &str) -> Result<(Duration, u32, u32)> {
    let mut whole = json!({"name": format!("{namespace}/{name}")});
    whole.as_object_mut().context("no object")?.extend(script.as_object().context("no object")?.clone());
    let files = json!({"main.tf": "# played by a script\n", "pawl-script.json": whole.to_string()});
    let spec = json!({"source": {"inline": {"files": files}}, "tool": {"name": "OpenTofu", "version": "0.0.1"}, "operation": operation,
        "backend": {"type": "http", "config": lab.state.backend_config(&format!("{namespace}/{name}"))},
        "approval": {"mode": "Automatic"}});
    let begun = Instant::now();
    let run = crds::TerraformRun::new(name, serde_json::from_value(spec)?);
    lab.runs(namespace).create(&PostParams::default(), &run).await?;
    let store = Peak::watch(lab).await?;
    let mut agent = None;
    loop {
        let status = lab.runs(namespace).get(name).await?.status.unwrap_or_default();
        if agent.is_none()
            && let Some(attempt) = &status.attempt
            && status.adopted.is_some()
            && let Ok(pod) = lab.pods(namespace).get(&attempt.pod_name).await
        {
            agent = memory::process(&pod, "runner-agent").ok().map(Peak::of);
        }
        if status.is_terminal() {
            ensure!(is_well(&status), "{name} ended {:?}: {:?}", status.result, status.failure);
            return Ok((begun.elapsed(), agent.map(Peak::end).unwrap_or_default(), store.end()));
        }
        ensure!(begun.elapsed() < Duration::from_secs(900), "{name} does not end: {status:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn is_well(status: &TerraformRunStatus) -> bool {
    matches!(status.result, Some(RunResult::Applied | RunResult::Planned))
}

/// Reads data back; returns the number of bytes.
fn size(lab: &Lab, namespace: &str, name: &str, rest: &str) -> Result<u64> {
    let path = format!("/apis/read.pawl.run/v1alpha1/namespaces/{namespace}/terraformruns/{name}/{rest}");
    let mut child = lab.cluster.kubectl_command(&["get", "--raw", &path]).stdout(Stdio::piped()).spawn()?;
    let mut out = child.stdout.take().context("no output")?;
    let (mut buffer, mut total) = (vec![0; 1 << 20], 0);
    loop {
        let count = out.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        total += count as u64;
    }
    ensure!(child.wait()?.success(), "{rest} of {name} cannot be read");
    Ok(total)
}
