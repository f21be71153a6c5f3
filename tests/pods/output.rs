//! A large log: the agent's memory stays constant, the log is stored to the last byte, and the cut of a long line is marked.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crds::RunResult;
use serde_json::json;

use crate::suite::{Scene, Test};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "output::large_log_takes_little_memory_and_marks_cuts",
        large,
    )]
}

/// Size of the log, in MiB. More than the agent's memory limit shows that the log is not held in memory. The tests of the spool cover logs
/// above the cap of a phase.
const LOG_MIB: u64 = 256;
/// A line above the limit of lines.
const LINE_MIB: u64 = 64;
/// The agent's maximum memory in KiB, including its program's pages: its limit of 32 MiB, and 64 MiB for a flood.
const MOST_KIB: u64 = 96 << 10;

/// The peak memory of a process in KiB, from the kernel.
fn most(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

async fn large(scene: Scene) -> Result<()> {
    // Each line is searched for a secret, as in a real run; a line that prints it comes first.
    scene.secret("db", &[("password", "correct-horse-battery")])?;
    let steps = json!([{"exec": ["sh", "-c", "echo canary $PASSWORD"]}, {"line_mb": LINE_MIB}, {"print": "between"}, {"flood_mb": LOG_MIB},
        "default", {"print": "last words"}]);
    let script = json!({"resources": 1, "commands": {"apply": steps}});
    let spec = json!({"approval": {"mode": "Automatic"},
        "env": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]});
    scene.scripted("a", script, spec).await?;
    let within = Duration::from_secs(600 + LOG_MIB);
    let started = std::time::Instant::now();
    let (mut agent, mut peak) = (None, 0);
    let status = loop {
        let status = scene.status("a").await?;
        if agent.is_none() && status.adopted.is_some() && !status.is_terminal() {
            let found = Scene::processes(&scene.pod("a").await?)?;
            agent = found
                .into_iter()
                .find(|(_, line)| line.contains("runner-agent run"))
                .map(|(pid, _)| pid);
        }
        // The kernel reports the peak, so the last value counts.
        peak = agent.and_then(most).unwrap_or(peak);
        // The run reports its result before the end of its log is sent; the pod ends after that.
        if status.is_terminal() && status.attempt.as_ref().is_some_and(|attempt| !attempt.open) {
            break status;
        }
        ensure!(
            started.elapsed() < within,
            "no end after {within:?}: {status:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    ensure!(status.result == Some(RunResult::Applied), "{status:?}");
    ensure!(peak > 1 << 10, "the agent was never looked at");
    ensure!(peak <= MOST_KIB, "the agent had {peak} KiB");
    ensure!(status.failure.is_none(), "{status:?}");
    is_whole(&scene)
}

/// Reads the log of the apply from the datastore line by line.
fn is_whole(scene: &Scene) -> Result<()> {
    let path = format!(
        "/apis/read.pawl.run/v1alpha1/namespaces/{}/terraformruns/a/log?phase=apply",
        scene.namespace
    );
    let mut child = scene
        .suite
        .cluster
        .kubectl_command(&["get", "--raw", &path])
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut flood, mut cut, mut other) = (0_u64, None, Vec::new());
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let line = line?;
        if line.starts_with("flood flood") {
            flood += line.len() as u64 + 1;
        } else if line.starts_with("yyyy") {
            cut = line
                .split_once("… [")
                .map(|(kept, mark)| (kept.len() as u64, mark.to_owned()));
        } else {
            other.push(line);
        }
    }
    ensure!(child.wait()?.success(), "the log cannot be read");
    let (kept, mark) = cut.context("the long line has no mark")?;
    ensure!(kept == 1 << 20, "{kept} bytes of the long line are kept");
    ensure!(
        mark == format!(
            "{} more bytes of this line were cut]",
            (LINE_MIB << 20) - kept
        ),
        "{mark}"
    );
    ensure!(
        other.iter().any(|line| line == "canary (sensitive value)"),
        "{other:?}"
    );
    ensure!(
        other.iter().any(|line| line == "between")
            && !other.iter().any(|line| line.contains("correct-horse")),
        "{other:?}"
    );
    // The tool prints whole lines of 103 bytes.
    let printed = (LOG_MIB << 20) / 103 * 103;
    ensure!(flood == printed, "{flood} of {printed} bytes came back");
    ensure!(
        other.iter().any(|line| line == "last words"),
        "the end is missing: {other:?}"
    );
    Ok(())
}
