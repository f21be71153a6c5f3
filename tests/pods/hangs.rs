//! Processes that hang or stay behind: the status reports it, the run ends with class and reason, and no process is left. The agent's tests
//! cover a plan that hangs (`quiet`) and a prompt (`attempt`). `tools` covers, with Terragrunt, that the provider and not the tool is killed
//! when a *person* ends an apply.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{Changed, FailureClass, Phase, RunResult, TerraformRunStatus, reason};
use jiff::Timestamp;
use ledger::what;
use serde_json::json;

use crate::suite::{LATER, Scene, Test, automatic, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "hangs::hanging_provider_ends_the_apply_at_its_deadline",
            behind_the_claim,
        ),
        Test::new(
            "hangs::daemon_that_holds_the_output_delays_5_s_at_most",
            daemon,
        ),
    ]
}

/// A cloud's error for expired credentials, which its provider then retries forever.
const EXPIRED: &str = "ExpiredToken: the security token included in the request is expired";

/// Waits until the status reports a quiet apply, and checks the output of `describe`.
async fn silent(scene: &Scene) -> Result<()> {
    let says = |status: &TerraformRunStatus| {
        status
            .progress
            .as_ref()
            .and_then(|progress| progress.quiet_since.clone())
    };
    let status = scene
        .until("a", "silent", LATER, |s| {
            says(s).is_some() || s.is_terminal()
        })
        .await?;
    let seen = Timestamp::now();
    let since = says(&status)
        .with_context(|| format!("it ended and was never silent: {:?}", status.failure))?
        .0;
    let lasted = seen.duration_since(since).as_secs();
    ensure!((60..90).contains(&lasted), "said after {lasted} s");
    let describe = scene.kubectl(&["describe", "terraformrun", "a"])?;
    holds(&describe, "Quiet Since:")?;
    let words = format!(
        "apply has printed nothing new since {}",
        since.strftime("%H:%M:%S")
    );
    [
        words.as_str(),
        ", at terraform_data.b; ",
        "it ends at the deadline at ",
    ]
    .iter()
    .try_for_each(|part| holds(&describe, part))
}

/// Waits until the pod ends, and checks that only the pause container is left until the kubelet has seen it.
async fn clean(scene: &Scene) -> Result<()> {
    // Waits for the end of the pod.
    scene.log("a").await?;
    let left: Vec<_> = Scene::processes(&scene.pod("a").await?)?
        .into_iter()
        .filter(|(_, line)| !line.contains("pause"))
        .collect();
    ensure!(left.is_empty(), "processes are left: {left:?}");
    Ok(())
}

async fn behind_the_claim(scene: Scene) -> Result<()> {
    // The tool's own progress line comes every second and is not activity.
    let script = json!({"progress_ms": 1000, "resources": [
        {"address": "terraform_data.a"},
        {"address": "terraform_data.b", "steps": [{"print_err": EXPIRED}, {"provider": {"seconds": 3600, "ignore_signals": true}}]},
    ]});
    let spec = json!({"approval": {"mode": "Automatic"}, "timeouts": {"apply": "90s"},
        "runner": {"terminationGracePeriodSeconds": 30}});
    scene.scripted("a", script, spec).await?;
    silent(&scene).await?;
    ensure!(scene.status("a").await?.phase == Some(Phase::Apply));
    let status = scene
        .fails("a", FailureClass::Timeout, reason::DEADLINE_EXCEEDED, LATER)
        .await?;
    let failure = status.failure.context("no failure")?;
    ensure!(failure.changes == Changed::Some, "{failure:?}");
    holds(&failure.message, "; nothing had happened for 1m")?;
    let ledger = scene.ledger("a");
    // The only signal went to the tool, and none to its provider.
    let (all, own) = (
        ledger::select(&ledger, what::SIGNAL, None),
        ledger::select(&ledger, what::SIGNAL, Some("apply")),
    );
    ensure!(
        all.len() == 1 && own.first().and_then(|signal| signal.text("signal")) == Some("SIGINT"),
        "{all:?}"
    );
    // The tool was not killed: it recorded the created objects and released its lock.
    ensure!(
        ledger::select(&ledger, what::COMMAND_END, Some("apply")).len() == 1,
        "the tool was killed"
    );
    scene.saved("a")?;
    let log = scene.log("a").await?;
    ensure!(
        log.matches("terraform_data.b: Still creating...").count() > 30,
        "there were no heartbeats:\n{log}"
    );
    clean(&scene).await
}

async fn daemon(scene: Scene) -> Result<()> {
    // A daemon in its own session that ignores signals and holds the tool's stdout and stderr open.
    let spawn = json!({"spawn": {"seconds": 3600, "daemon": true, "hold_stdout": true, "ignore_signals": true, "beat_ms": 200}});
    let commands = json!({"plan": [spawn, "default", {"print": "last words of plan"}],
        "apply": [spawn, "default", {"print": "last words of apply"}]});
    let script = json!({"resources": 1, "commands": commands});
    scene.scripted("a", script, automatic()).await?;
    let status = scene.ends("a", RunResult::Applied).await?;
    for name in ["plan", "apply"] {
        let step = status
            .steps
            .iter()
            .find(|step| step.name == name)
            .with_context(|| format!("no step {name}"))?;
        let took = step
            .finished_at
            .as_ref()
            .context("no end")?
            .0
            .duration_since(step.started_at.0)
            .as_secs();
        // Output is read for at most 5 s after the tool's end.
        ensure!((4..120).contains(&took), "{name} took {took} s");
    }
    let ledger = scene.ledger("a");
    let ends = ledger::select(&ledger, what::COMMAND_END, Some("plan"));
    let planned = ends
        .first()
        .and_then(|end| end.seq)
        .context("no end of plan")?;
    let applied = ledger::select(&ledger, what::COMMAND_START, Some("apply"))
        .first()
        .and_then(|start| start.seq);
    let applied = applied.context("no start of apply")?;
    // The daemon must outlive the tool, otherwise this test proves nothing, and it must end before the apply.
    let pids = |from: u64, to: u64| {
        let alive = ledger::select(&ledger, what::BACKGROUND, None).into_iter();
        let within = alive.filter(|entry| entry.seq.is_some_and(|seq| seq > from && seq < to));
        within
            .filter_map(|entry| entry.number("pid"))
            .collect::<std::collections::BTreeSet<u64>>()
    };
    let first = pids(planned, applied);
    ensure!(first.len() == 1, "one daemon outlives the plan: {first:?}");
    ensure!(
        pids(applied, u64::MAX).is_disjoint(&first),
        "the daemon of the plan was there during the apply"
    );
    let log = scene.log("a").await?;
    for part in [
        "last words of plan\n",
        "terraform_data.r[0]: Creation complete",
        "last words of apply\n",
        "pawl: applied +1 ~0 -0",
    ] {
        holds(&log, part)?;
    }
    clean(&scene).await?;
    let count = scene.ledger("a").len();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    ensure!(scene.ledger("a").len() == count, "something still lives");
    Ok(())
}
