//! Data that agents send to the datastore: how late a journal is, how fast objects are sent and read, and the memory of agent and datastore
//! meanwhile and at rest.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRun, apply_log::Line, datastore as words};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use tool_versions::Digest;

use super::lab::{Lab, Namespace, PATIENCE, Stack, run_waits, watched};
use super::table::{Limit, Table, Unit, mib, number};
use super::usage::{Peak, memory, process};
use harness::cluster::{NAMESPACE, command::run, datastore::SERVICE};
use harness::wait;
use ledger::{Entry, what};

const MIB: u64 = 1 << 20;
/// Delay between objects of the journal: longer than the measured time.
const BETWEEN_MS: u64 = 1500;
/// Size of the large plan.
const RESOURCES: u64 = 50_000;
const LOG_MIB: u64 = 2048;

/// Adds a figure in KiB that must not exceed a bound.
fn kib(table: &mut Table, figure: &str, found: u64, most: u64) {
    table.bound(
        figure,
        mib(found),
        &format!("at most {} MiB", most >> 10),
        found <= most,
    );
}

/// Memory of the agent during the hold, of the datastore, and of the controller.
pub(super) async fn at_rest(lab: &Lab, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let run = namespace.run("holds", Stack::Nothing, "Manual")?;
    let (_, _, run) = watched(&namespace.runs, &run, run_waits).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pod = run
        .status
        .and_then(|status| status.attempt)
        .context("a run without an attempt")?
        .pod_name;
    let own = |pod: &Pod, program| anyhow::Ok(memory(process(pod, program)?)?.own);
    let agent = own(&namespace.pods.get(&pod).await?, "runner-agent")?;
    let controller = own(&lab.component("controller").await?, "controller")?;
    let store = own(&lab.component("datastore").await?, "controller")?;
    kib(table, "agent while it holds, RssAnon", agent, 16 << 10);
    table.plain("datastore at rest, RssAnon", mib(store));
    let runs: Api<TerraformRun> = Api::all(lab.client.clone());
    let count = runs.list(&ListParams::default()).await?.items.len();
    let figure = format!("controller with {count} stored runs, RssAnon");
    kib(table, &figure, controller, 100 << 10);
    Ok(())
}

/// Measures from the creation of each object of a run to its line in the stored journal, which outlives the pod. Reading with `kubectl`
/// takes part of the time.
pub(super) async fn journal(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    const RUN: &str = "journal";
    const FIGURE: &str = "object made to its line in the journal";
    let namespace = lab.namespace().await?;
    let id = namespace.id(RUN);
    let script = json!({"resources": times, "apply_ms": BETWEEN_MS});
    let automatic = json!({"approval": {"mode": "Automatic"}});
    namespace.create(RUN, &script, &automatic).await?;
    for count in 1..=times {
        let begun = Instant::now();
        let seen = loop {
            // There is no journal before the apply begins.
            let text = run(namespace.read(RUN, "journal")).unwrap_or_default();
            let seen = Timestamp::now();
            let is_complete =
                |line: &&str| matches!(Line::parse(line.as_bytes()), Some(Line::Complete(_)));
            if text.lines().filter(is_complete).count() >= count {
                break seen;
            }
            let late = begun.elapsed() > PATIENCE;
            ensure!(
                !late,
                "the journal of {id} has not {count} objects:\n{text}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let is_made =
            |entry: &Entry| entry.what == what::RESOURCE && entry.text("script") == Some(&id);
        let made = lab
            .state
            .ledger()
            .into_iter()
            .filter(is_made)
            .nth(count - 1);
        let made: Timestamp = made.context("nothing was made")?.at.parse()?;
        let late = seen.duration_since(made).as_secs_f64();
        table.sample(FIGURE, Unit::Millis, late);
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
    let host = format!("{SERVICE}.{NAMESPACE}.svc");
    let resolve = format!("{host}:{}:{}", store.address.port(), store.address.ip());
    for (size, times) in [(MIB, times * 3), (100 * MIB, times), (1024 * MIB, 1)] {
        let mut random = std::io::Read::take(std::fs::File::open("/dev/urandom")?, size);
        std::io::copy(&mut random, &mut std::fs::File::create(&content)?)?;
        let digest = sum_of(&content)?;
        for n in 0..times {
            let namespace = lab.namespace().await?;
            let name = format!("size-{}-{n}", size / MIB);
            let (token, nonce) = open(lab, &namespace, &name).await?;
            let path = words::attempt_path(&namespace.name, &name, 1);
            let url = format!("https://{host}{path}/objects/plan");
            let headers = [
                format!("Authorization: Bearer {token}"),
                format!("{}: {nonce}", words::HEADER_NONCE),
                format!("{}: {digest}", words::HEADER_DIGEST),
            ];
            for (way, option, file, headers) in [
                ("to", "-T", &content, &headers[..]),
                ("from", "-o", &out, &headers[..2]),
            ] {
                let mut curl = Command::new("curl");
                curl.args(["--cacert", &authority, "--resolve", &resolve]);
                curl.args(headers.iter().flat_map(|header| ["-H", header]));
                let took = timed(curl.args([option, file, &url]))?;
                let figure = format!("{} MiB {way} the datastore", size / MIB);
                table.sample(&figure, Unit::Millis, took);
            }
            ensure!(
                sum_of(&out)? == digest,
                "the datastore returned other content"
            );
            // Its data is deleted with it.
            namespace
                .runs
                .delete(&name, &DeleteParams::default())
                .await?;
        }
    }
    table.close();
    let most = peak.end();
    kib(
        table,
        "datastore meanwhile, RssAnon at most",
        most,
        32 << 10,
    );
    Ok(())
}

/// Opens an attempt without data in the datastore, whose pod's rights the benchmark uses. Returns the pod's token and its nonce.
async fn open(lab: &Lab, namespace: &Namespace<'_>, name: &str) -> Result<(String, String)> {
    let script = json!({"ledger": null, "commands": {"plan": ["hang"]}});
    namespace.create(name, &script, &Value::Null).await?;
    let is_planning = |run: &TerraformRun| {
        run.status.as_ref().and_then(|status| status.phase) == Some(Phase::Plan)
    };
    let run = wait::object(&namespace.runs, name, "planning", PATIENCE, is_planning).await?;
    let status = run.status.unwrap_or_default();
    let pod = status.attempt.context("no attempt")?.pod_name;
    let spec = namespace.pods.get(&pod).await?.spec;
    let account = spec
        .and_then(|spec| spec.service_account_name)
        .context("no account")?;
    let token =
        lab.cluster
            .pod_token(&namespace.name, &account, Some(&pod), Some(words::AUDIENCE))?;
    Ok((token, status.adopted.context("not adopted")?.nonce))
}

/// Runs curl; returns the time of the transfer in seconds, by curl's own clock.
fn timed(curl: &mut Command) -> Result<f64> {
    let time = run(curl.args(["-sS", "--fail-with-body", "-w", "\ntime %{time_total}\n"]))?;
    let time = time.lines().find_map(|line| line.strip_prefix("time "));
    time.context("curl printed no time")?
        .trim()
        .parse()
        .context("no time")
}

fn sum_of(path: &str) -> Result<String> {
    let digest = Digest::read(std::fs::File::open(path)?)?;
    Ok(format!("sha256:{digest}"))
}

/// Fails if a tool for the comparison is missing.
pub(super) fn need(program: &str) -> Result<()> {
    let version = run(Command::new(program).arg("--version"));
    version
        .map(drop)
        .with_context(|| format!("{program} is not there to compare with; install it"))
}

/// Sends a plan of 50,000 resources and a log of 2 GiB through agent and datastore, and checks that all data can be read back.
pub(super) async fn flood(lab: &Lab, quick: bool, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let script = json!({"ledger": null, "resources": RESOURCES});
    let (took, memory) = pass(lab, &namespace, "large-plan", &script, "Plan").await?;
    let text = size(&namespace, "large-plan", "plan")?;
    let json = size(&namespace, "large-plan", "planjson")?;
    let whole = text > RESOURCES * 20 && json > RESOURCES * 100;
    ensure!(whole, "the plan came back short: {text} and {json} bytes");
    let (text, json) = (mib(text >> 10), mib(json >> 10));
    let sizes = format!("{took:.1} s; text {text}, JSON {json} read back");
    table.plain(&format!("plan of {RESOURCES} resources"), sizes);
    memory_rows(table, memory);

    let megabytes = if quick { LOG_MIB / 8 } else { LOG_MIB };
    let commands = json!({"apply": [{"flood_mb": megabytes}, "default"]});
    let script = json!({"ledger": null, "commands": commands});
    let (took, memory) = pass(lab, &namespace, "large-log", &script, "Apply").await?;
    let log = size(&namespace, "large-log", "log?phase=apply")?;
    ensure!(log >= megabytes << 20, "a short log: {log} bytes");
    let read = format!(
        "{took:.1} s; {:.0} MiB read back",
        number(log) / number(MIB)
    );
    table.plain(&format!("log of {megabytes} MiB"), read);
    memory_rows(table, memory);
    Ok(())
}

fn memory_rows(table: &mut Table, [agent, store]: [u64; 2]) {
    kib(table, "  agent, RssAnon at most", agent, 32 << 10);
    kib(table, "  datastore, RssAnon at most", store, 32 << 10);
}

/// Plays a script; returns its duration in seconds, and the peak memory of agent and datastore in KiB.
async fn pass(
    lab: &Lab,
    namespace: &Namespace<'_>,
    name: &str,
    script: &Value,
    operation: &str,
) -> Result<(f64, [u64; 2])> {
    let begun = Instant::now();
    let more = json!({"operation": operation, "approval": {"mode": "Automatic"}});
    namespace.create(name, script, &more).await?;
    let store = Peak::of_datastore(lab).await?;
    let mut agent = None;
    loop {
        let status = namespace.runs.get(name).await?.status.unwrap_or_default();
        if agent.is_none()
            && let Some(attempt) = &status.attempt
            && status.adopted.is_some()
            && let Ok(pod) = namespace.pods.get(&attempt.pod_name).await
        {
            agent = process(&pod, "runner-agent").ok().map(Peak::of);
        }
        if status.is_terminal() {
            let is_well = matches!(status.result, Some(RunResult::Applied | RunResult::Planned));
            ensure!(is_well, "{name} ended: {status:?}");
            let peaks = [agent.map(Peak::end).unwrap_or_default(), store.end()];
            return Ok((begun.elapsed().as_secs_f64(), peaks));
        }
        let late = begun.elapsed() > Duration::from_secs(900);
        ensure!(!late, "{name} does not end: {status:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Reads data back; returns the number of bytes.
fn size(namespace: &Namespace<'_>, name: &str, rest: &str) -> Result<u64> {
    let mut child = namespace.read(name, rest).stdout(Stdio::piped()).spawn()?;
    let mut out = child.stdout.take().context("no output")?;
    let total = std::io::copy(&mut out, &mut std::io::sink())?;
    ensure!(child.wait()?.success(), "{rest} of {name} cannot be read");
    Ok(total)
}
