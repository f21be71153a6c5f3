//! `apply`: changes one resource after the other, and writes the state when the script requires it. Each change is recorded in the ledger
//! first.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use tool_versions::Digest;

use super::Tool;
use super::backend::Backend;
use super::plan::{self, Change, Plan};
use super::resource::{Act, Counts, random_uuid};
use super::script::{Diagnostic, Persist};
use super::steps::Scope;
use super::tool_state::ToolState;
use ledger::what;

/// An apply that holds its lock.
struct Apply<'a> {
    tool: &'a Tool,
    backend: &'a Backend,
    lock: Option<&'a str>,
    state: ToolState,
    counts: Counts,
}

pub(super) fn apply(tool: &Tool) -> Result<i32, Diagnostic> {
    let bytes = plan::read_file(tool)?;
    let plan = Plan::read(&bytes)?;
    // Like the real tools, it takes the backend of the plan, not that of the directory.
    let backend = Backend::open(plan.backend.clone(), &tool.dir);
    let lock = tool.lock(&backend, "OperationTypeApply")?;
    let done = with_lock(
        tool,
        &backend,
        lock.as_deref(),
        &plan,
        &Digest::of(&bytes).to_string(),
    );
    let unlocked = tool.unlock(&backend, lock.as_deref());
    let counts = done?;
    unlocked?;
    tool.view.applied(counts);
    Ok(0)
}

fn with_lock(
    tool: &Tool,
    backend: &Backend,
    lock: Option<&str>,
    plan: &Plan,
    digest: &str,
) -> Result<Counts, Diagnostic> {
    let state = ToolState::from_json(&backend.read()?);
    if (plan.serial, &plan.lineage) != (state.serial, &state.lineage) {
        let detail = "The given plan file can no longer be applied because the state was changed by another operation after the plan was created.";
        return Err(Diagnostic::error("Saved plan is stale", detail));
    }
    plan.real()
        .for_each(|change| tool.view.planned_change(&change.address, change.act));
    tool.recorder.note(
        what::APPLY,
        json!({"plan_sha256": digest, "serial": state.serial}),
    )?;
    let mut apply = Apply {
        tool,
        backend,
        lock,
        state,
        counts: Counts::default(),
    };
    let failures = apply.run(plan);
    apply.finish(failures)
}

impl Apply<'_> {
    /// Applies each change until one is interrupted. Prints failures at the end, like the real tools.
    fn run(&mut self, plan: &Plan) -> Vec<Diagnostic> {
        let mut failures = Vec::new();
        for change in plan.real() {
            if self.tool.signals.interrupted() {
                break;
            }
            if let Err(mut failure) = self.resource(change) {
                failure
                    .address
                    .get_or_insert_with(|| change.address.clone());
                failures.push(failure);
            } else if self.tool.script.persist == Persist::Each
                && let Err(failure) = self.write()
            {
                failures.push(failure);
            }
        }
        if self.tool.signals.interrupted() {
            failures.push(Diagnostic::error("execution halted", ""));
        }
        failures
    }

    fn resource(&mut self, change: &Change) -> Result<(), Diagnostic> {
        let Change {
            address, id, act, ..
        } = change;
        let act = *act;
        let view = &self.tool.view;
        let begun = Instant::now();
        view.apply_start(address, act, id.as_deref());
        let steps = change
            .steps
            .iter()
            .filter_map(|step| step.action(self.tool.nth));
        for step in steps {
            if let Err(failure) = self.tool.step(step, Scope::Resource(address, act)) {
                view.apply_errored(address, act, begun.elapsed().as_secs());
                return Err(failure);
            }
        }
        self.wait(address, act, change.apply_ms, begun);
        let id = id.clone().unwrap_or_else(random_uuid);
        // From here on the change is real, even if the tool dies before it reports it.
        self.tool.recorder.note(
            what::RESOURCE,
            json!({"address": address, "action": act.word(), "id": id}),
        )?;
        if act == Act::Delete {
            self.state.resources.remove(address);
        } else {
            self.state.resources.insert(address.clone(), id.clone());
        }
        self.counts.count(act);
        view.apply_complete(address, act, &id, begun.elapsed().as_secs());
        Ok(())
    }

    /// Waits for the duration of a resource; an interrupt does not shorten it.
    fn wait(&self, address: &str, act: Act, ms: u64, begun: Instant) {
        let end = Instant::now() + Duration::from_millis(ms);
        let beat = Duration::from_millis(self.tool.script.progress_ms.max(1));
        loop {
            let left = end.saturating_duration_since(Instant::now());
            std::thread::sleep(beat.min(left));
            if Instant::now() >= end {
                return;
            }
            self.tool
                .view
                .apply_progress(address, act, begun.elapsed().as_secs());
        }
    }

    fn finish(mut self, mut failures: Vec<Diagnostic>) -> Result<Counts, Diagnostic> {
        if self.tool.script.persist == Persist::End
            && self.counts != Counts::default()
            && let Err(failure) = self.write()
        {
            failures.push(failure);
        }
        let last = failures.pop();
        for failure in &failures {
            self.tool.view.diagnostic(failure);
        }
        last.map_or(Ok(self.counts), Err)
    }

    fn write(&mut self) -> Result<(), Diagnostic> {
        let Self {
            tool,
            backend,
            lock,
            state,
            ..
        } = self;
        state.serial += 1;
        if state.lineage.is_empty() {
            state.lineage = random_uuid();
        }
        let json = state.to_json(&tool.view.version);
        let Err(error) = backend.write(&json, *lock) else {
            return Ok(());
        };
        std::fs::write(tool.dir.join("errored.tfstate"), json.to_string())
            .context("failed to write errored.tfstate")?;
        tool.view.diagnostic(&Diagnostic::error(
            "Failed to save state",
            &format!("Error saving state: {error:#}"),
        ));
        let detail = "The error shown above has prevented the updated state from being written to the configured backend. To allow for recovery, the state has been written to the file \"errored.tfstate\" in the current working directory.";
        Err(Diagnostic::error(
            "Failed to persist state to backend",
            detail,
        ))
    }
}
