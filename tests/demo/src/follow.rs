//! Follows a run, and prints its progress for a person.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use crds::{Phase, TerraformRun, TerraformRunStatus, conditions};
use futures::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{ENV, screen, stack::NAMESPACE};
use harness::cluster::report;

/// A watched run.
#[derive(Debug)]
pub(super) struct Follower {
    name: String,
    seen: watch::Receiver<TerraformRunStatus>,
    task: JoinHandle<()>,
    /// Number of printed lines.
    lines: usize,
    pending_since: Option<Instant>,
    said: String,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    pub(super) fn start(runs: Api<TerraformRun>, run: &TerraformRun) -> Self {
        let name = run.name_any();
        let (sender, seen) = watch::channel(run.status.clone().unwrap_or_default());
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let task = tokio::spawn(async move {
            // The watcher reconnects by itself after an error; only events count.
            let mut stream = watcher(runs, config)
                .default_backoff()
                .applied_objects()
                .map(Result::ok)
                .boxed();
            while let Some(run) = stream.next().await {
                let Some(status) = run.and_then(|run: TerraformRun| run.status) else {
                    continue;
                };
                if sender.send(status).is_err() {
                    return;
                }
            }
        });
        let pending_since = Some(Instant::now());
        Self {
            name,
            seen,
            task,
            lines: 0,
            pending_since,
            said: String::new(),
        }
    }

    pub(super) fn status(&self) -> TerraformRunStatus {
        self.seen.borrow().clone()
    }

    /// Waits for a change.
    pub(super) async fn changed(&mut self) -> TerraformRunStatus {
        if self.seen.changed().await.is_err() {
            // The task does not end before the follower does.
            std::future::pending::<()>().await;
        }
        self.seen.borrow_and_update().clone()
    }

    /// Prints the progress until `done` holds for the run.
    pub(super) async fn until(
        &mut self,
        within: Duration,
        done: impl Fn(&TerraformRunStatus) -> bool,
    ) -> Result<TerraformRunStatus> {
        let deadline = tokio::time::Instant::now() + within;
        let mut status = self.status();
        loop {
            self.print(&status);
            if done(&status) {
                return Ok(status);
            }
            let Ok(next) = tokio::time::timeout_at(deadline, self.changed()).await else {
                let (name, within) = (&self.name, report::duration(within));
                let message = status
                    .message
                    .unwrap_or_else(|| "it reports nothing".to_owned());
                let look = format!("{ENV} && kubectl describe -n {NAMESPACE} tfrun/{name}");
                bail!("{name} has not gone on after {within}: {message}; look at it: {look}");
            };
            status = next;
        }
    }

    /// Prints news: a line for each completed phase, obstacles, and the tool's progress.
    pub(super) fn print(&mut self, status: &TerraformRunStatus) {
        if status.phase.is_some_and(|phase| phase != Phase::Pending)
            && let Some(since) = self.pending_since.take()
        {
            let pod = status
                .attempt
                .as_ref()
                .map_or("", |attempt| &attempt.pod_name);
            let took = report::duration(since.elapsed());
            screen::line(&format!("Pending  {took}  pod {pod}"));
        }
        // History is bounded: after many attempts its oldest lines are dropped, and the rest is printed.
        for line in status
            .history
            .iter()
            .skip(self.lines.min(status.history.len()))
        {
            let line = line
                .split_once("  ")
                .map_or(line.as_str(), |(_, rest)| rest);
            screen::line(line);
        }
        self.lines = status.history.len();
        let said = hold_up(status)
            .or_else(|| progress(status))
            .unwrap_or_default();
        if said != self.said && !said.is_empty() {
            screen::line(&said);
        }
        self.said = said;
    }
}

/// The obstacle that holds the run up, if any.
fn hold_up(status: &TerraformRunStatus) -> Option<String> {
    let stalled = status
        .conditions
        .iter()
        .find(|c| c.type_ == conditions::STALLED && c.status == "True")?;
    Some(format!("waits: {}: {}", stalled.reason, stalled.message))
}

fn progress(status: &TerraformRunStatus) -> Option<String> {
    let progress = status
        .progress
        .as_ref()
        .filter(|p| p.total > 0 && status.phase == Some(Phase::Apply))?;
    let current = progress.current.as_deref().unwrap_or_default();
    Some(format!("{}/{} {current}", progress.done, progress.total))
}
