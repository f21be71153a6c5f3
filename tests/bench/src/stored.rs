//! Data that agents send to the datastore: how late a journal is, how fast objects are sent and read, and the memory of agent and datastore
//! meanwhile and at rest.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crds::{Phase, RunResult, TerraformRun, apply_log::Line, datastore as words};
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tool_versions::Digest;

use super::lab::{Lab, PATIENCE, Stack, run_waits, watched};
use super::table::{Limit, Table, Unit, mib, number};
use super::usage::{Peak, memory, process};
use harness::cluster::command::run;
use harness::wait;
use ledger::what;

const MIB: u64 = 1 << 20;
/// Delay between objects of the journal: longer than the measured time.
const BETWEEN_MS: u64 = 1500;
/// Size of the large plan.
const RESOURCES: u64 = 50_000;
const LOG_MIB: u64 = 2048;

/// Adds a figure in KiB that must not exceed a bound.
fn kib(table: &mut Table, figure: &str, found: u64, most: u64) {
    table.bound(figure, mib(found), &format!("at most {} MiB", most >> 10), found <= most);
}

/// Memory of the agent during the hold, of the datastore, and of the controller.
pub(super) async fn at_rest(lab: &Lab, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let run = lab.run(&namespace, "holds", Stack::Nothing, "Manual")?;
    let (_, _, run) = watched(lab.runs(&namespace), &run, run_waits).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pod = run.status.and_then(|status| status.attempt).context("a run without an attempt")?.pod_name;
    let agent = memory(process(&lab.pods(&namespace).get(&pod).await?, "runner-agent")?)?.own;
    let controller = memory(process(&lab.component("controller").await?, "controller")?)?.own;
    let store = memory(process(&lab.component("datastore").await?, "controller")?)?.own;
    kib(table, "agent while it holds, RssAnon", agent, 16 << 10);
    table.plain("datastore at rest, RssAnon", mib(store));
    let runs = Api::<TerraformRun>::all(lab.client.clone()).list(&ListParams::default()).await?.items.len();
    kib(table, &format!("controller with {runs} stored runs, RssAnon"), controller, 100 << 10);
    Ok(())
}

/// Measures from the creation of each object of a run to its line in the stored journal, which outlives the pod. Reading with `kubectl`
/// takes part of the time.
pub(super) async fn journal(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    const RUN: &str = "journal";
    const FIGURE: &str = "object made to its line in the journal";
    let namespace = lab.namespace().await?;
    let id = format!("{namespace}/{RUN}");
    let script = json!({"resources": times, "apply_ms": BETWEEN_MS});
    lab.create(&namespace, RUN, script, json!({"approval": {"mode": "Automatic"}})).await?;
    for count in 1..=times {
        let begun = Instant::now();
        let seen = loop {
            // There is no journal before the apply begins.
            let text = run(lab.read(&namespace, RUN, "journal")).unwrap_or_default();
            let seen = Timestamp::now();
            let complete = text.lines().filter(|line| matches!(Line::parse(line.as_bytes()), Some(Line::Complete(_))));
            if complete.count() >= count {
                break seen;
            }
            ensure!(begun.elapsed() < PATIENCE, "the journal of {id} has not {count} objects:\n{text}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let of_run: Vec<_> = lab.state.ledger().into_iter().filter(|entry| entry.text("script") == Some(id.as_str())).collect();
        let made = ledger::select(&of_run, what::RESOURCE, None);
        let made: Timestamp = made.get(count - 1).context("nothing was made")?.at.parse().context("an entry without a time")?;
        table.sample(FIGURE, Unit::Millis, seen.duration_since(made).as_secs_f64());
    }
    table.limit(FIGURE, Limit::Max(1.0));
    Ok(())
}

/// Sends objects of 1 MiB, 100 MiB and 1 GiB to the datastore and back with `curl`, alternating.
pub(super) async fn bundles(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    need("curl")?;
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (authority, content, out) = (path("ca.crt"), path("content"), path("out"));
    let store = lab.cluster.reach_datastore().await?;
    std::fs::write(&authority, &store.authority)?;
    let peak = Peak::of_datastore(lab).await?;
    let host = format!("{}.{}.svc", harness::cluster::datastore::SERVICE, harness::cluster::NAMESPACE);
    let resolve = format!("{host}:{}:{}", store.address.port(), store.address.ip());
    for (size, times) in [(MIB, times * 3), (100 * MIB, times), (1024 * MIB, 1)] {
        let mut random = std::io::Read::take(std::fs::File::open("/dev/urandom")?, size);
        std::io::copy(&mut random, &mut std::fs::File::create(&content)?)?;
        let digest = sum_of(&content)?;
        for n in 0..times {
            let namespace = lab.namespace().await?;
            let name = format!("size-{}-{n}", size / MIB);
            let (token, nonce) = open(lab, &namespace, &name).await?;
            let url = format!("https://{host}{}/objects/plan", words::attempt_path(&namespace, &name, 1));
            let headers = [
                format!("Authorization: Bearer {token}"),
                format!("{}: {nonce}", words::HEADER_NONCE),
                format!("{}: {digest}", words::HEADER_DIGEST),
            ];
            for (way, option, file, headers) in [("to", "-T", &content, &headers[..]), ("from", "-o", &out, &headers[..2])] {
                let mut curl = Command::new("curl");
                curl.args(["-sS", "--fail-with-body", "-w", "%{stderr}time %{time_total}\n"]);
                curl.args(["--cacert", &authority, "--resolve", &resolve, option, file, &url]);
                curl.args(headers.iter().flat_map(|header| ["-H", header]));
                table.sample(&format!("{} MiB {way} the datastore", size / MIB), Unit::Millis, timed(&mut curl)?);
            }
            ensure!(sum_of(&out)? == digest, "what came back is not what was sent");
            // Its data is deleted with it.
            lab.runs(&namespace).delete(&name, &DeleteParams::default()).await?;
        }
    }
    table.close();
    kib(table, "datastore meanwhile, RssAnon at most", peak.end(), 32 << 10);
    Ok(())
}

/// Opens an attempt without data in the datastore, whose pod's rights the benchmark uses. Returns the pod's token and its nonce.
async fn open(lab: &Lab, namespace: &str, name: &str) -> Result<(String, String)> {
    lab.create(namespace, name, json!({"ledger": null, "commands": {"plan": ["hang"]}}), Value::Null).await?;
    let plans = |run: &TerraformRun| run.status.as_ref().is_some_and(|status| status.phase == Some(Phase::Plan));
    let run = wait::object(&lab.runs(namespace), name, "planning", Duration::from_secs(60), plans).await?;
    let status = run.status.unwrap_or_default();
    let pod = lab.pods(namespace).get(&status.attempt.context("no attempt")?.pod_name).await?;
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).context("no account")?;
    let token = lab.cluster.pod_token(namespace, &account, Some(&pod.name_any()), Some(words::AUDIENCE))?;
    Ok((token, status.adopted.context("not adopted")?.nonce))
}

/// Runs curl; returns the time of the transfer in seconds, by curl's own clock.
fn timed(curl: &mut Command) -> Result<f64> {
    let output = curl.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "curl: {said} {}", String::from_utf8_lossy(&output.stdout));
    let time = said.lines().find_map(|line| line.strip_prefix("time ")).context("curl does not say how long it took")?;
    time.trim().parse().context("no time")
}

fn sum_of(path: &str) -> Result<String> {
    Ok(format!("sha256:{}", Digest::read(std::fs::File::open(Path::new(path))?)?))
}

/// Fails if a tool for the comparison is missing.
pub(super) fn need(program: &str) -> Result<()> {
    if Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    bail!("{program} is not there to compare with; install it")
}

/// Sends a plan of 50,000 resources and a log of 2 GiB through agent and datastore, and checks that all data can be read back.
pub(super) async fn flood(lab: &Lab, quick: bool, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let script = json!({"ledger": null, "resources": RESOURCES});
    let (took, memory) = pass(lab, &namespace, "large-plan", script, "Plan").await?;
    let text = size(lab, &namespace, "large-plan", "plan")?;
    let json = size(lab, &namespace, "large-plan", "planjson")?;
    ensure!(text > RESOURCES * 20 && json > RESOURCES * 100, "the plan came back short: {text} and {json} bytes");
    let sizes = format!("{took:.1} s; text {}, JSON {} read back", mib(text >> 10), mib(json >> 10));
    table.plain(&format!("plan of {RESOURCES} resources"), sizes);
    memory_rows(table, memory);

    let megabytes = if quick { LOG_MIB / 8 } else { LOG_MIB };
    let script = json!({"ledger": null, "commands": {"apply": [{"flood_mb": megabytes}, "default"]}});
    let (took, memory) = pass(lab, &namespace, "large-log", script, "Apply").await?;
    let log = size(lab, &namespace, "large-log", "log?phase=apply")?;
    ensure!(log >= megabytes << 20, "the log came back short: {log} bytes");
    table.plain(&format!("log of {megabytes} MiB"), format!("{took:.1} s; {:.0} MiB read back", number(log) / number(MIB)));
    memory_rows(table, memory);
    Ok(())
}

fn memory_rows(table: &mut Table, [agent, store]: [u64; 2]) {
    kib(table, "  agent, RssAnon at most", agent, 32 << 10);
    kib(table, "  datastore, RssAnon at most", store, 32 << 10);
}

/// Plays a script; returns its duration in seconds, and the peak memory of agent and datastore in KiB.
async fn pass(lab: &Lab, namespace: &str, name: &str, script: Value, operation: &str) -> Result<(f64, [u64; 2])> {
    let begun = Instant::now();
    lab.create(namespace, name, script, json!({"operation": operation, "approval": {"mode": "Automatic"}})).await?;
    let store = Peak::of_datastore(lab).await?;
    let mut agent = None;
    loop {
        let status = lab.runs(namespace).get(name).await?.status.unwrap_or_default();
        if agent.is_none()
            && let Some(attempt) = &status.attempt
            && status.adopted.is_some()
            && let Ok(pod) = lab.pods(namespace).get(&attempt.pod_name).await
        {
            agent = process(&pod, "runner-agent").ok().map(Peak::of);
        }
        if status.is_terminal() {
            let is_well = matches!(status.result, Some(RunResult::Applied | RunResult::Planned));
            ensure!(is_well, "{name} ended {:?}: {:?}", status.result, status.failure);
            let peaks = [agent.map(Peak::end).unwrap_or_default(), store.end()];
            return Ok((begun.elapsed().as_secs_f64(), peaks));
        }
        ensure!(begun.elapsed() < Duration::from_secs(900), "{name} does not end: {status:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Reads data back; returns the number of bytes.
fn size(lab: &Lab, namespace: &str, name: &str, rest: &str) -> Result<u64> {
    let mut child = lab.read(namespace, name, rest).stdout(Stdio::piped()).spawn()?;
    let total = std::io::copy(&mut child.stdout.take().context("no output")?, &mut std::io::sink())?;
    ensure!(child.wait()?.success(), "{rest} of {name} cannot be read");
    Ok(total)
}
