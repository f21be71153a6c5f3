//! Removes a cluster in any state, with the same steps for `down` and for a cluster whose owner was killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::processor::tell_pods;

use super::cache;
use super::network::Network;
use super::processes::Processes;

const CGROUPS: &str = "/sys/fs/cgroup";

/// Ends all processes of a state directory and removes it. Idempotent.
pub fn clear(state: &Path) -> Result<()> {
    let processes = Processes::new(state, None);
    let network = Network::of(state);
    // Kubelet first: it would restart the others.
    processes.end("kubelet", Duration::from_secs(5))?;
    for name in [
        "kube-proxy",
        "coredns",
        "kube-scheduler",
        "kube-controller-manager",
        "kube-apiserver",
        "etcd",
    ] {
        processes.end(name, Duration::ZERO)?;
    }
    processes.end("containerd", Duration::from_secs(3))?;
    processes.end("containerd-shim-runc-v2", Duration::ZERO)?;
    processes.end("nsenter", Duration::ZERO)?;
    if let Some(network) = network {
        // Container processes outlive their shims. They are found by the cluster's cgroup.
        end_cgroup(&network.name())?;
    }
    unmount_below(state)?;
    remove_shared(state)?;
    if let Some(network) = network {
        network.remove()?;
    }
    cache::remove(state)
}

/// Creates the parent cgroup of all pods of a cluster, in each hierarchy of the machine.
pub fn create_cgroup(name: &str) -> Result<()> {
    for root in hierarchies()? {
        let path = root.join(name);
        cache::create_dir(&path)?;
        // cgroup v1: no process can be added to a new group until these are set.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (root.join(file), path.join(file));
            if let (Ok(value), Ok(own)) = (fs::read_to_string(&from), fs::read_to_string(&to))
                && own.trim().is_empty()
                && !root.join("cgroup.controllers").exists()
            {
                cache::write(&to, value.trim())?;
            }
        }
        // cgroup v2: delegate all controllers of the root.
        if let Ok(controllers) = fs::read_to_string(path.join("cgroup.controllers")) {
            let all: Vec<String> = controllers
                .split_whitespace()
                .map(|name| format!("+{name}"))
                .collect();
            // Kubelet reports missing controllers with a better message.
            let _ = fs::write(path.join("cgroup.subtree_control"), all.join(" "));
        }
    }
    Ok(())
}

fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = Path::new(CGROUPS);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.to_owned()]);
    }
    let entries = fs::read_dir(root)
        .with_context(|| format!("cannot read {CGROUPS}; the cluster needs cgroups"))?;
    Ok(entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect())
}

fn end_cgroup(name: &str) -> Result<()> {
    tell_pods(name);
    for root in hierarchies()? {
        let top = root.join(name);
        let started = Instant::now();
        while top.exists() {
            let mut groups = Vec::new();
            collect(&top, &mut groups);
            for group in &groups {
                for pid in fs::read_to_string(group.join("cgroup.procs"))
                    .unwrap_or_default()
                    .lines()
                {
                    if let Ok(pid) = pid.parse() {
                        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                    }
                }
                // Fails while a process is still ending; retried below.
                let _ = fs::remove_dir(group);
            }
            if started.elapsed() > Duration::from_secs(10) {
                bail!(
                    "the cgroup {} does not get empty; look at its cgroup.procs",
                    top.display()
                );
            }
            if top.exists() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    Ok(())
}

/// Collects a group and its descendants, deepest first.
fn collect(group: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), into);
        }
    }
    into.push(group.to_owned());
}

fn unmount_below(state: &Path) -> Result<()> {
    let below = format!("{}/", state.display());
    let mut points: Vec<String> = mount_points()?
        .into_iter()
        .filter(|point| point.starts_with(&below))
        .collect();
    points.reverse();
    for point in points {
        umount2(point.as_str(), MntFlags::MNT_DETACH)
            .with_context(|| format!("cannot unmount {point}"))?;
    }
    Ok(())
}

fn mount_points() -> Result<Vec<String>> {
    let text =
        fs::read_to_string("/proc/self/mountinfo").context("cannot read the list of mounts")?;
    Ok(text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| point.replace("\\040", " "))
        .collect())
}

/// Removes the files of containers outside the state directory: the socket of the shim, in a directory that all containerds share, and the
/// network namespace of the pod. The container's directory names both.
fn remove_shared(state: &Path) -> Result<()> {
    let containers = state.join("containerd/run/io.containerd.runtime.v2.task/k8s.io");
    for entry in fs::read_dir(containers).into_iter().flatten().flatten() {
        let address = fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        if let Some(path) = address.trim().strip_prefix("unix://") {
            cache::remove(Path::new(path))?;
        }
        let id = entry.file_name().to_string_lossy().into_owned();
        for note in fs::read_dir("/var/lib/cni/results")
            .into_iter()
            .flatten()
            .flatten()
        {
            if note.file_name().to_string_lossy().contains(&id) {
                cache::remove(&note.path())?;
            }
        }
        let config = fs::read(entry.path().join("config.json")).unwrap_or_default();
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap_or_default();
        let namespaces = config["linux"]["namespaces"]
            .as_array()
            .into_iter()
            .flatten();
        for path in namespaces
            .filter(|one| one["type"] == "network")
            .filter_map(|one| one["path"].as_str())
        {
            if Path::new(path)
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"cni-"))
            {
                // A mount on an empty file. On an error only the file is left.
                let _ = umount2(path, MntFlags::MNT_DETACH);
                cache::remove(Path::new(path))?;
            }
        }
    }
    Ok(())
}
