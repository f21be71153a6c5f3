//! API requests of a run by client, and of idle runs.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use crds::names;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::audit::{self, Kind, Request};
use super::lab::{Lab, run_succeeded, run_waits, watched};
use super::samples::{Samples, Unit};
use super::stacks::Stack;
use super::table::Table;
use harness::cluster::NAMESPACE;

/// How long an idle cluster is observed.
const REST: Duration = Duration::from_secs(30);

pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let (mut writes, mut all) = (Samples::default(), Samples::default());
    let mut last = Vec::new();
    // The first run proves the policies by dry runs, and the proof is valid for a minute. Dry runs are counted separately.
    for n in 0..=times {
        let requests = of_one_run(lab, &namespace, &format!("run-{n}")).await?;
        if n == 0 {
            continue;
        }
        let number = |kind: Option<Kind>| requests.iter().filter(|r| kind.is_none_or(|kind| r.kind == kind)).count();
        writes.push(as_value(number(Some(Kind::Write))));
        all.push(as_value(number(None)));
        last = requests;
    }
    let met = writes.max() <= 12.0;
    table.bound("writes of an Automatic run by agent and controller", writes.spread(Unit::Count), "at most 12", met);
    table.plain("requests of an Automatic run by agent and controller, of any kind", all.spread(Unit::Count));
    for (client, is) in [("agent", false), ("controller", true)] {
        for kind in Kind::ALL {
            let of: Vec<_> = last.iter().filter(|r| is_controller(r) == is && r.kind == kind).collect();
            if !of.is_empty() {
                table.plain(&format!("  {client}, {kind:?}"), format!("{}: {}", of.len(), audit::counted(of.iter().copied())));
            }
        }
    }
    timeline(&last);
    at_rest(lab, &namespace, table).await
}

/// The requests of agent and controller from the creation of a run until the clean-up after its end.
async fn of_one_run(lab: &Lab, namespace: &str, name: &str) -> Result<Vec<Request>> {
    let log = &lab.cluster.audit_log;
    let place = audit::end(log)?;
    let run = lab.run(namespace, name, Stack::Nothing, "Automatic")?;
    let (_, _, run) = watched(lab.runs(namespace), &run, run_succeeded).await?;
    let pod = run.status.and_then(|status| status.attempt).context("a run without an attempt")?.pod_name;
    closed(lab, namespace, name).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let of_us = |request: &Request| is_controller(request) || request.user.ends_with(&format!(":{pod}")) || made(request, name);
    Ok(audit::since(log, place)?.into_iter().filter(|request| of_us(request) && !is_ours(request)).collect())
}

async fn closed(lab: &Lab, namespace: &str, name: &str) -> Result<()> {
    for _ in 0..300 {
        let status = lab.runs(namespace).get(name).await?.status.unwrap_or_default();
        if status.attempt.is_some_and(|attempt| !attempt.open) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("the attempt of {name} is not closed 30 s after its end")
}

/// The benchmark itself is the administrator.
fn is_ours(request: &Request) -> bool {
    !request.user.starts_with("system:serviceaccount:")
}

fn is_controller(request: &Request) -> bool {
    request.user.starts_with(&format!("system:serviceaccount:{NAMESPACE}:"))
}

/// Whether it is about a run, whoever sent it: no request escapes the count by its user name.
fn made(request: &Request, run: &str) -> bool {
    request.what.contains("terraformruns") && request.what.ends_with(&format!("/{run}"))
}

/// Prints the time of each request, for profiling.
fn timeline(requests: &[Request]) {
    let Some(first) = requests.iter().map(|request| request.at).min() else { return };
    let mut sorted: Vec<_> = requests.iter().collect();
    sorted.sort_by_key(|request| request.at);
    eprintln!("requests of the last run, milliseconds after the first:");
    for request in sorted {
        let millis = request.at.duration_since(first).as_millis();
        let client = if is_controller(request) { "controller" } else { "agent" };
        eprintln!("  {millis:>6}  {client:10} {:?} {} {}", request.kind, request.what, request.code);
    }
}

/// One ended and one waiting run: counts requests other than watches while nothing happens.
async fn at_rest(lab: &Lab, namespace: &str, table: &mut Table) -> Result<()> {
    let run = lab.run(namespace, "waits", Stack::Nothing, "Manual")?;
    watched(lab.runs(namespace), &run, run_waits).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let place = audit::end(&lab.cluster.audit_log)?;
    tokio::time::sleep(REST).await;
    let requests = audit::since(&lab.cluster.audit_log, place)?;
    let of_us = |r: &&Request| is_controller(r) || r.user.starts_with(&format!("system:serviceaccount:{namespace}:"));
    let of_us: Vec<_> = requests.iter().filter(of_us).collect();
    let beside = of_us.iter().filter(|r| !matches!(r.kind, Kind::Watch | Kind::Own)).count();
    let what = if of_us.is_empty() { String::new() } else { format!(": {}", audit::counted(of_us.iter().copied())) };
    let figure = format!("requests for runs, beside watches, in {} s, one run ended and one waiting", REST.as_secs());
    table.bound(&figure, format!("{beside}{what}"), "none", beside == 0);
    // It would hold its pod for the rest of the benchmark.
    let annotations: Value = json!({"metadata": {"annotations": {names::CANCEL: "measured"}}});
    let patch = kube::api::Patch::Merge(annotations);
    lab.runs(namespace).patch(&run.name_any(), &kube::api::PatchParams::default(), &patch).await?;
    Ok(())
}

/// For small numbers only.
fn as_value(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}
