//! Memory of the agent during the hold, and of the controller: anonymous pages, without mapped files.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::lab::{Lab, run_waits, watched};
use super::stacks::Stack;
use super::table::Table;
use harness::cluster::NAMESPACE;

pub(super) async fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let run = lab.run(&namespace, "holds", Stack::Nothing, "Manual")?;
    let (_, _, run) = watched(lab.runs(&namespace), &run, run_waits).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pod = run.status.and_then(|status| status.attempt).context("a run without an attempt")?.pod_name;
    let agent = of_pod(&lab.pods(&namespace).get(&pod).await?, "runner-agent")?;
    let controller = of_pod(&of_component(lab, "controller").await?, "controller")?;
    let store = rss(datastore(lab).await?)?;
    table.bound("agent while it holds, RssAnon", format!("{:.1} MiB", mib(agent)), "at most 16 MiB", agent <= 16 << 10);
    table.plain("datastore at rest, RssAnon", format!("{:.1} MiB", mib(store)));
    let runs = Api::<crds::TerraformRun>::all(lab.client.0.clone()).list(&ListParams::default()).await?.items.len();
    let figure = format!("controller with {runs} stored runs, RssAnon");
    table.bound(&figure, format!("{:.1} MiB", mib(controller)), "at most 100 MiB", controller <= 100 << 10);
    Ok(())
}

fn mib(kib: u32) -> f64 {
    f64::from(kib) / 1024.0
}

/// RssAnon in KiB of a pod's process whose program has that name.
fn of_pod(pod: &Pod, program: &str) -> Result<u32> {
    rss(process(pod, program)?)
}

/// A pod's process whose program has that name.
pub(super) fn process(pod: &Pod, program: &str) -> Result<i32> {
    let uid = pod.uid().context("a pod without UID")?;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let base = entry.path();
        if in_group(&base, &uid) && program_of(&base) == program {
            return entry.file_name().to_string_lossy().parse().context("a process without a number");
        }
    }
    anyhow::bail!("no process {program} in the pod {}", pod.name_any())
}

/// RssAnon of a process, in KiB.
pub(super) fn rss(pid: i32) -> Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon in /proc")?;
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).context("RssAnon is no number")
}

/// The process of the datastore.
pub(super) async fn datastore(lab: &Lab) -> Result<i32> {
    process(&of_component(lab, "datastore").await?, "controller")
}

async fn of_component(lab: &Lab, component: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(lab.client.0.clone(), NAMESPACE);
    let listed = pods.list(&ListParams::default().labels(&format!("app.kubernetes.io/component={component}"))).await?;
    listed
        .items
        .into_iter()
        .find(|pod| pod.metadata.deletion_timestamp.is_none())
        .with_context(|| format!("no pod of the {component}"))
}

/// The path of a cgroup contains the pod's UID, with underscores under systemd.
fn in_group(process: &Path, uid: &str) -> bool {
    let group = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    group.contains(uid) || group.contains(&uid.replace('-', "_"))
}

fn program_of(process: &Path) -> String {
    let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(first).rsplit('/').next().unwrap_or_default().to_owned()
}
