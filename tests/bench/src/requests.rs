//! API requests of a run by client, and of idle runs.

use std::time::Duration;

use anyhow::{Context, Result};
use crds::{TerraformRun, names};
use kube::ResourceExt as _;
use serde_json::json;

use super::audit::{self, Kind, Request};
use super::lab::{Lab, Namespace, PATIENCE, Stack, run_succeeded, run_waits, watched};
use super::table::{Limit, Table, Unit, number};
use harness::cluster::{NAMESPACE, objects};
use harness::wait;

/// How long an idle cluster is observed.
const REST: Duration = Duration::from_secs(30);
const WRITES: &str = "writes of an Automatic run by agent and controller";
const ALL: &str = "requests of an Automatic run by agent and controller, of any kind";

pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let mut last = Vec::new();
    // The first run proves the policies by dry runs, and the proof is valid for a minute. Dry runs are counted separately.
    for n in 0..=times {
        last = of_one_run(lab, &namespace, &format!("run-{n}")).await?;
        if n > 0 {
            let writes = last
                .iter()
                .filter(|request| request.kind == Kind::Write)
                .count();
            table.sample(WRITES, Unit::Count, number(writes as u64));
            table.sample(ALL, Unit::Count, number(last.len() as u64));
        }
    }
    table.limit(WRITES, Limit::Max(12.0));
    table.close();
    for (client, is) in [("agent", false), ("controller", true)] {
        for kind in Kind::ALL {
            let of: Vec<_> = last
                .iter()
                .filter(|r| is_controller(r) == is && r.kind == kind)
                .collect();
            if !of.is_empty() {
                table.plain(
                    &format!("  {client}, {kind:?}"),
                    format!("{}: {}", of.len(), audit::counted(of.iter().copied())),
                );
            }
        }
    }
    timeline(last);
    at_rest(lab, &namespace, table).await
}

/// The requests of agent and controller from the creation of a run until the clean-up after its end.
async fn of_one_run(lab: &Lab, namespace: &Namespace<'_>, name: &str) -> Result<Vec<Request>> {
    let log = &lab.cluster.audit_log;
    let place = audit::end(log)?;
    let run = namespace.run(name, Stack::Nothing, "Automatic")?;
    let (_, _, run) = watched(&namespace.runs, &run, run_succeeded).await?;
    let pod = run
        .status
        .and_then(|status| status.attempt)
        .context("a run without an attempt")?
        .pod_name;
    let is_closed = |run: &TerraformRun| {
        run.status
            .as_ref()
            .and_then(|s| s.attempt.as_ref())
            .is_some_and(|a| !a.open)
    };
    wait::object(&namespace.runs, name, "closed", PATIENCE, is_closed).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let of_us = |request: &Request| {
        is_controller(request) || request.user.ends_with(&format!(":{pod}")) || made(request, name)
    };
    Ok(audit::since(log, place)?
        .into_iter()
        .filter(|request| of_us(request) && !is_ours(request))
        .collect())
}

/// The benchmark itself is the administrator.
fn is_ours(request: &Request) -> bool {
    !request.user.starts_with("system:serviceaccount:")
}

fn is_controller(request: &Request) -> bool {
    request
        .user
        .starts_with(&format!("system:serviceaccount:{NAMESPACE}:"))
}

/// Whether it is about a run, whoever sent it: no request escapes the count by its user name.
fn made(request: &Request, run: &str) -> bool {
    request.what.contains("terraformruns") && request.what.ends_with(&format!("/{run}"))
}

/// Prints the time of each request, for profiling.
fn timeline(mut requests: Vec<Request>) {
    requests.sort_by_key(|request| request.at);
    let Some(first) = requests.first().map(|request| request.at) else {
        return;
    };
    eprintln!("requests of the last run, milliseconds after the first:");
    for request in requests {
        let millis = request.at.duration_since(first).as_millis();
        let client = if is_controller(&request) {
            "controller"
        } else {
            "agent"
        };
        eprintln!(
            "  {millis:>6}  {client:10} {:?} {} {}",
            request.kind, request.what, request.code
        );
    }
}

/// One ended and one waiting run: counts requests other than watches while nothing happens.
async fn at_rest(lab: &Lab, namespace: &Namespace<'_>, table: &mut Table) -> Result<()> {
    let run = namespace.run("waits", Stack::Nothing, "Manual")?;
    watched(&namespace.runs, &run, run_waits).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let place = audit::end(&lab.cluster.audit_log)?;
    tokio::time::sleep(REST).await;
    let requests = audit::since(&lab.cluster.audit_log, place)?;
    let accounts = format!("system:serviceaccount:{}:", namespace.name);
    let of_us = |request: &&Request| is_controller(request) || request.user.starts_with(&accounts);
    let of_us: Vec<_> = requests.iter().filter(of_us).collect();
    let beside = of_us
        .iter()
        .filter(|r| !matches!(r.kind, Kind::Watch | Kind::Own))
        .count();
    let what = if of_us.is_empty() {
        String::new()
    } else {
        format!(": {}", audit::counted(of_us.iter().copied()))
    };
    let figure = format!(
        "requests for runs, beside watches, in {} s, one run ended and one waiting",
        REST.as_secs()
    );
    table.bound(&figure, format!("{beside}{what}"), "none", beside == 0);
    // It would hold its pod for the rest of the benchmark.
    let cancel = json!({"metadata": {"annotations": {names::CANCEL: "measured"}}});
    objects::merge(&namespace.runs, &run.name_any(), &cancel).await?;
    Ok(())
}
