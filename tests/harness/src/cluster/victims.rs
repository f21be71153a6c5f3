//! Processes to kill: those of a pod as seen from this machine, and the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{
    processes::{Processes, Record},
    whole::Cluster,
};

const APISERVER: &str = "kube-apiserver";

/// A command that runs until [`open_gate`], so that a test controls when it ends.
pub const GATE: &str = "until [ -e /tmp/open ]; do sleep 0.2; done";

/// Opens the [`GATE`] in an agent's pod, now or before it is reached. Returns false if no agent runs in the pod.
pub fn open_gate(pod: &Pod) -> Result<bool> {
    let agent = of_pod(pod)?
        .into_iter()
        .find(|(_, line)| line.contains("runner-agent run"));
    Ok(agent
        .is_some_and(|(pid, _)| std::fs::write(format!("/proc/{pid}/root/tmp/open"), "").is_ok()))
}

/// Like [`processes`], for a pod object.
pub fn of_pod(pod: &Pod) -> Result<Vec<(i32, String)>> {
    processes(pod.metadata.uid.as_deref().context("a pod without UID")?)
}

/// Processes in the cgroups of a pod: id and command line.
pub fn processes(pod_uid: &str) -> Result<Vec<(i32, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("cannot read /proc")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let base = Path::new("/proc").join(pid.to_string());
        let group = std::fs::read_to_string(base.join("cgroup")).unwrap_or_default();
        if group.contains(pod_uid) || group.contains(&pod_uid.replace('-', "_")) {
            let line = std::fs::read(base.join("cmdline")).unwrap_or_default();
            found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    Ok(found)
}

/// Whether all containers of a pod have ended.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Signals the processes of a pod whose command line contains `text`. Returns their number.
pub fn signal_in_pod(pod_uid: &str, text: &str, signal: Signal) -> Result<usize> {
    let mut reached = 0;
    for (pid, _) in processes(pod_uid)?
        .into_iter()
        .filter(|(_, line)| line.contains(text))
    {
        // The process may have ended already.
        reached += usize::from(kill(Pid::from_raw(pid), signal).is_ok());
    }
    Ok(reached)
}

/// A stopped kubelet, which accepts connections but answers none. Drop resumes it.
#[derive(Debug)]
pub struct HeldKubelet(Vec<Record>);

impl Drop for HeldKubelet {
    fn drop(&mut self) {
        for record in &self.0 {
            // It may have ended with its cluster.
            let _ = record.signal(Signal::SIGCONT);
        }
    }
}

impl Cluster {
    /// Stops the kubelet with SIGSTOP. Containers on its node continue to run.
    pub fn hold_kubelet(&self) -> Result<HeldKubelet> {
        let found: Vec<Record> = self
            .processes()
            .living()
            .into_iter()
            .filter(|record| record.name == "kubelet")
            .collect();
        for record in &found {
            record.signal(Signal::SIGSTOP)?;
        }
        Ok(HeldKubelet(found))
    }

    /// Kills the API server and restarts it after `away` with the same flags and `more`.
    pub async fn restart_apiserver(&self, away: Duration, more: &[String]) -> Result<()> {
        let processes = self.processes();
        let (program, mut flags) = command_line(processes, APISERVER)?;
        flags.extend(
            more.iter()
                .filter(|flag| !flags.contains(flag))
                .cloned()
                .collect::<Vec<_>>(),
        );
        processes.end(APISERVER, Duration::ZERO)?;
        tokio::time::sleep(away).await;
        // A multi-threaded process becomes a zombie before its last thread releases the port.
        let address = self
            .server
            .strip_prefix("https://")
            .context("the API server's address is no URL")?;
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let started = processes.spawn(APISERVER, Path::new(&program), &flags)?;
        self.wait_ready(processes, &[started]).await
    }

    /// Restarts the Kubernetes components that back off for up to a minute after an outage of the API server, since waiting for them tests
    /// nothing of Pawl.
    pub async fn restart_watchers(&self) -> Result<()> {
        let processes = self.processes();
        for name in ["kube-scheduler", "kube-controller-manager"] {
            let (program, flags) = command_line(processes, name)?;
            processes.end(name, Duration::ZERO)?;
            // The old process may not have released its port yet.
            let mut tries = 0;
            loop {
                let started = processes.spawn(name, Path::new(&program), &flags)?;
                tokio::time::sleep(Duration::from_millis(700)).await;
                tries += 1;
                match processes.check(&started) {
                    Ok(()) => break,
                    Err(error) if tries == 10 => return Err(error),
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// Program and flags of a running component.
fn command_line(processes: &Processes, name: &str) -> Result<(String, Vec<String>)> {
    let record = processes
        .living()
        .into_iter()
        .find(|record| record.name == name)
        .with_context(|| format!("no {name} runs"))?;
    let line = std::fs::read(format!("/proc/{}/cmdline", record.pid))
        .with_context(|| format!("cannot read the command line of {name}"))?;
    let mut words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned());
    let Some(program) = words.next() else {
        bail!("{name} has no command line")
    };
    Ok((program, words.collect()))
}
