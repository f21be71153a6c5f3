//! Sends objects of 1 MiB, 100 MiB and 1 GiB to the datastore and back with `curl`, and measures the datastore's memory meanwhile.

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use crds::{Phase, datastore as words};
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::json;
use tool_versions::Digest;

use super::lab::Lab;
use super::memory;
use super::samples::{Samples, Unit};
use super::table::Table;

const MIB: u64 = 1 << 20;

/// Measures each size, both ways, alternating.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let store = lab.cluster.reach_datastore().await?;
    let authority = dir.path().join("ca.crt");
    std::fs::write(&authority, &store.authority)?;
    let peak = Peak::watch(lab).await?;
    for (size, times) in [(MIB, times * 3), (100 * MIB, times), (1024 * MIB, 1)] {
        let file = dir.path().join("content");
        let digest = content(&file, size)?;
        let mut rates = [Samples::default(), Samples::default()];
        for n in 0..times {
            let target = Target::open(lab, size, n).await?;
            let url = format!("https://{}{}/objects/plan", target.name, target.path);
            let auth = [
                "--cacert".to_owned(),
                authority.display().to_string(),
                "--resolve".to_owned(),
                format!("{}:{}:{}", target.name, store.address.port(), store.address.ip()),
                "-H".to_owned(),
                format!("Authorization: Bearer {}", target.token),
                "-H".to_owned(),
                format!("{}: {}", words::HEADER_NONCE, target.nonce),
            ];
            let sum = ["-H".to_owned(), format!("{}: {digest}", words::HEADER_DIGEST)];
            rates[0].push(curl(&[&auth[..], &sum[..], &["-T".into(), file.display().to_string(), url.clone()]].concat())?);
            let out = dir.path().join("out").display().to_string();
            rates[1].push(curl(&[&auth[..], &["-o".into(), out.clone(), url]].concat())?);
            ensure!(sum_of(Path::new(&out))? == digest, "what came back is not what was sent");
            target.close(lab).await?;
        }
        for (slot, way) in ["to", "from"].into_iter().enumerate() {
            let what = format!("{} MiB {way} the datastore", size / MIB);
            table.plain(&what, rates[slot].spread(Unit::Millis));
        }
    }
    let most = peak.end();
    table.bound(
        "datastore meanwhile, RssAnon at most",
        format!("{:.1} MiB", f64::from(most) / 1024.0),
        "at most 32 MiB",
        most <= 32 << 10,
    );
    Ok(())
}

/// An open attempt without data in the datastore: the bench uses its pod's rights.
struct Target {
    namespace: String,
    run: String,
    name: String,
    path: String,
    token: String,
    nonce: String,
}

impl Target {
    async fn open(lab: &Lab, size: u64, n: usize) -> Result<Self> {
        let namespace = lab.namespace().await?;
        let run = format!("size-{}-{n}", size / MIB);
        let files = json!({"main.tf": "# played by a script\n",
            "pawl-script.json": json!({"name": format!("{namespace}/{run}"), "commands": {"plan": ["hang"]}}).to_string()});
        let spec = json!({"source": {"inline": {"files": files}}, "tool": {"name": "OpenTofu", "version": "0.0.1"},
            "backend": {"type": "http", "config": lab.state.backend_config(&run)}});
        let object = crds::TerraformRun::new(&run, serde_json::from_value(spec)?);
        lab.runs(&namespace).create(&PostParams::default(), &object).await?;
        let begun = Instant::now();
        let status = loop {
            let status = lab.runs(&namespace).get(&run).await?.status.unwrap_or_default();
            if status.phase == Some(Phase::Plan) {
                break status;
            }
            ensure!(begun.elapsed() < Duration::from_secs(60), "the run does not plan: {status:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let pod = lab.pods(&namespace).get(&status.attempt.context("no attempt")?.pod_name).await?;
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).context("no account")?;
        let token = lab.cluster.pod_token(&namespace, &account, Some(&pod.name_any()), Some(words::AUDIENCE))?;
        Ok(Self {
            path: words::attempt_path(&namespace, &run, 1),
            name: format!("{}.{}.svc", harness::cluster::datastore::SERVICE, harness::cluster::NAMESPACE),
            nonce: status.adopted.context("not adopted")?.nonce,
            namespace,
            run,
            token,
        })
    }

    /// Ends the run; its data is deleted with it.
    async fn close(&self, lab: &Lab) -> Result<()> {
        lab.runs(&self.namespace).delete(&self.run, &kube::api::DeleteParams::default()).await?;
        Ok(())
    }
}

/// Runs curl; returns the time of the transfer in seconds, by curl's own clock.
fn curl(args: &[String]) -> Result<f64> {
    let output =
        Command::new("curl").args(["-sS", "--fail-with-body", "-w", "%{stderr}time %{time_total}\n"]).args(args).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "curl: {said} {}", String::from_utf8_lossy(&output.stdout));
    let time = said.lines().find_map(|line| line.strip_prefix("time ")).context("curl does not say how long it took")?;
    time.trim().parse().context("no time")
}

/// Writes a file of incompressible bytes; returns its digest.
fn content(path: &Path, size: u64) -> Result<String> {
    let mut random = std::io::Read::take(std::fs::File::open("/dev/urandom")?, size);
    let mut file = std::fs::File::create(path)?;
    std::io::copy(&mut random, &mut file)?;
    sum_of(path)
}

fn sum_of(path: &Path) -> Result<String> {
    Ok(format!("sha256:{}", Digest::read(std::fs::File::open(path)?)?))
}

/// The datastore's peak memory while this watches it.
pub(super) struct Peak {
    most: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
}

impl Peak {
    pub(super) async fn watch(lab: &Lab) -> Result<Self> {
        let pid = memory::datastore(lab).await?;
        Ok(Self::of(pid))
    }

    pub(super) fn of(pid: i32) -> Self {
        let (most, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (kept, ended) = (most.clone(), stop.clone());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if let Ok(kib) = memory::rss(pid) {
                    kept.fetch_max(kib, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { most, stop }
    }

    /// In KiB.
    pub(super) fn end(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.most.load(Ordering::Relaxed)
    }
}

/// Fails if a tool for the comparison is missing.
pub(super) fn need(program: &str) -> Result<()> {
    if Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    bail!("{program} is not there to compare with; install it")
}
