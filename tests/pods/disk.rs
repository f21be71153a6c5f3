//! Full disks. A pod's volumes are as large as its node's disk, so a file system of one page is mounted over a directory, in the pod's
//! mount namespace only.

use std::{
    fs::File,
    io::{self, ErrorKind},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use crds::{Changed, FailureClass, Phase, RunResult, apply_log::state, names, reason};
use ledger::what;
use serde_json::json;

use crate::suite::{GATE, LATER, Scene, Test, automatic, holds, stderr};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("disk::plan_on_a_full_disk_is_retried", plan),
        Test::new("disk::state_on_a_full_disk_is_not_lost", apply),
    ]
}

/// Mounts a full file system over a directory of a run's newest pod, until the pod ends.
async fn fill(scene: &Scene, name: &str, dir: &str) -> Result<()> {
    let found = Scene::processes(&scene.pod(name).await?)?;
    let (agent, _) = found
        .into_iter()
        .find(|(_, line)| line.contains("runner-agent run"))
        .context("no agent")?;
    let output = Command::new("nsenter")
        .arg(format!("--mount=/proc/{agent}/ns/mnt"))
        .args([
            "mount",
            "-n",
            "-t",
            "tmpfs",
            "-o",
            "size=4k,mode=0777",
            "full",
            dir,
        ])
        .output()?;
    ensure!(
        output.status.success(),
        "nothing can be mounted at {dir}: {}",
        stderr(&output)
    );
    let written = io::copy(
        &mut io::repeat(b'x'),
        &mut File::create(format!("/proc/{agent}/root{dir}/all-of-it"))?,
    );
    ensure!(
        written
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::StorageFull),
        "{dir} is not full: {written:?}"
    );
    Ok(())
}

async fn plan(scene: Scene) -> Result<()> {
    let script =
        json!({"resources": 1, "commands": {"plan": [{"only": [1], "exec": ["sh", "-c", GATE]}]}});
    scene.scripted("a", script, automatic()).await?;
    scene
        .until_ledger("a", what::COMMAND_START, Some("plan"))
        .await?;
    // The tool writes the plan here.
    fill(&scene, "a", "/pawl/work/out").await?;
    scene.open("a").await?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    let told = |words: &[&str]| {
        status
            .history
            .iter()
            .any(|line| words.iter().all(|word| line.contains(word)))
    };
    ensure!(
        told(&["Plan", reason::DISK_FULL, "No space left on device"]) && told(&["Retry"]),
        "{:?}",
        status.history
    );
    ensure!(status.attempt.context("no attempt")?.tries == 2 && status.failure.is_none());
    ensure!(scene.starts("a", "plan") == 2 && scene.starts("a", "apply") == 1);
    Ok(())
}

const MAIN: &str = "resource \"terraform_data\" \"made\" {\n  input = \"not to be lost\"\n}\n";

async fn apply(scene: Scene) -> Result<()> {
    scene
        .real(
            "a",
            MAIN,
            json!({"backend": null, "stack": "net", "approval": {"holdFor": "1h"}}),
        )
        .await?;
    scene.phase("a", Phase::AwaitingApproval).await?;
    // The state is buffered here until the datastore has it.
    fill(&scene, "a", "/pawl/kept/state").await?;
    scene.approve("a").await?;
    let status = scene
        .fails("a", FailureClass::Transient, reason::STATE_NOT_SAVED, LATER)
        .await?;
    let failure = status.failure.context("no failure")?;
    ensure!(
        failure.changes == Changed::Some && status.claim.is_some(),
        "{failure:?}"
    );
    let command = names::errored_state_command(&scene.namespace, "a");
    holds(&failure.message, &command)?;
    let saved = scene.paste(&command)?;
    ensure!(state::read(saved.as_bytes())?.objects.len() == 1, "{saved}");
    // The log is complete: it does not need that directory.
    holds(
        &scene.read("terraformruns/a/log")?,
        "terraform_data.made: Creation complete",
    )
}
