//! `apply`: one resource after the other, state written as the script says, everything real in the ledger first.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use tool_versions::Digest;

use super::Tool;
use super::backend::Backend;
use super::plan::{Act, Change, Counts, Plan, random_uuid};
use super::plan_command;
use super::script::{Diagnostic, Persist};
use super::steps::Scope;
use super::tool_state::{Known, ToolState};
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
    let file = match tool.args.words.first() {
        Some(file) => {
            let bytes =
                std::fs::read(tool.dir.join(file)).with_context(|| format!("failed to load \"{file}\" as a plan file"))?;
            Some((Plan::read(&bytes)?, Digest::of(&bytes).to_string()))
        }
        None if tool.args.has("auto-approve") => None,
        None => {
            let detail = "This command cannot ask for interactive approval. You can either apply a saved plan file, or enable the -auto-approve option.";
            return Err(Diagnostic::error("Plan file or auto-approve required", detail));
        }
    };
    let backend = match &file {
        // As with the real tools: where the state is, the plan says.
        Some((plan, _)) => Backend::open(plan.backend.as_ref(), &tool.dir, &plan.workspace)?,
        None => tool.backend()?,
    };
    let lock = tool.lock(&backend, "OperationTypeApply")?;
    let done = with_lock(tool, &backend, lock.as_deref(), file);
    let unlocked = tool.unlock(&backend, lock.as_deref());
    let counts = done?;
    unlocked?;
    tool.view.applied(counts);
    Ok(0)
}

fn with_lock(tool: &Tool, backend: &Backend, lock: Option<&str>, file: Option<(Plan, String)>) -> Result<Counts, Diagnostic> {
    let state = ToolState::from_json(&backend.read()?);
    let (plan, digest) = match file {
        Some((plan, digest)) => {
            check(tool, &plan, &state)?;
            plan.changes.iter().for_each(|change| tool.view.planned_change(change));
            (plan, Some(digest))
        }
        None => (plan_command::make(tool, &state)?, None),
    };
    tool.recorder.note(
        what::APPLY,
        json!({"plan_sha256": digest, "serial": state.serial, "mode": plan.mode, "changes": plan.changes.len()}),
    )?;
    let mut apply = Apply { tool, backend, lock, state, counts: Counts::default() };
    let failures = apply.run(&plan);
    apply.finish(failures)
}

/// Whether a saved plan may be applied to this state by this tool.
fn check(tool: &Tool, plan: &Plan, state: &ToolState) -> Result<(), Diagnostic> {
    if (plan.tool.as_str(), &plan.version) != (tool.view.command(), &tool.view.version) {
        let detail = format!(
            "plan file was created by {} {}, but this is {}; plan files cannot be transferred between different versions",
            plan.tool, plan.version, tool.view.version
        );
        return Err(Diagnostic::error("Failed to read plan from plan file", &detail));
    }
    if !plan.lineage.is_empty() && !state.lineage.is_empty() && plan.lineage != state.lineage {
        let detail = "The given plan file can not be applied because it was created from a different state lineage.";
        return Err(Diagnostic::error("Saved plan does not match the given state", detail));
    }
    if plan.serial != state.serial {
        let detail = "The given plan file can no longer be applied because the state was changed by another operation after the plan was created.";
        return Err(Diagnostic::error("Saved plan is stale", detail));
    }
    Ok(())
}

impl Apply<'_> {
    /// Applies each change until one is interrupted; what failed is said at the end, as the real tools do.
    fn run(&mut self, plan: &Plan) -> Vec<Diagnostic> {
        let mut failures = Vec::new();
        for change in plan.changes.iter().filter(|change| change.act != Act::NoOp) {
            if self.tool.signals.interrupted() {
                break;
            }
            if let Err(mut failure) = self.resource(change) {
                failure.address.get_or_insert_with(|| change.address.clone());
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
        let Change { address, id, act, .. } = change;
        let act = *act;
        let view = &self.tool.view;
        let begun = Instant::now();
        view.apply_start(address, act, id.as_deref());
        let steps = change.steps.iter().filter_map(|step| step.action(self.tool.nth));
        for step in steps {
            if let Err(failure) = self.tool.step(step, Scope::Resource(address, act)) {
                view.apply_errored(address, act, begun.elapsed().as_secs());
                return Err(failure);
            }
        }
        self.wait(address, act, change.apply_ms, begun);
        let id = match (act, id) {
            (Act::Delete, Some(id)) => id.clone(),
            _ => random_uuid(),
        };
        // From here on it is real, whether or not the tool lives to say so.
        self.tool.recorder.note(what::RESOURCE, json!({"address": address, "action": act.word(), "id": id}))?;
        if act == Act::Delete {
            self.state.resources.remove(address);
        } else {
            self.state.resources.insert(address.clone(), Known { id: id.clone(), input: change.input.clone() });
        }
        self.counts.count(act);
        view.apply_complete(address, act, Some(&id), begun.elapsed().as_secs());
        Ok(())
    }

    /// Takes the time that a resource takes; an interrupt does not shorten it.
    fn wait(&self, address: &str, act: Act, ms: u64, begun: Instant) {
        let end = Instant::now() + Duration::from_millis(ms);
        let beat = Duration::from_millis(self.tool.script.progress_ms.max(1));
        loop {
            let left = end.saturating_duration_since(Instant::now());
            std::thread::sleep(beat.min(left));
            if Instant::now() >= end {
                return;
            }
            self.tool.view.apply_progress(address, act, begun.elapsed().as_secs());
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
        let Self { tool, backend, lock, state, .. } = self;
        state.serial += 1;
        if state.lineage.is_empty() {
            state.lineage = random_uuid();
        }
        let json = state.to_json(&tool.view.version);
        let Err(error) = backend.write(&json, *lock) else { return Ok(()) };
        std::fs::write(tool.dir.join("errored.tfstate"), json.to_string()).context("failed to write errored.tfstate")?;
        tool.view.diagnostic(&Diagnostic::error("Failed to save state", &format!("Error saving state: {error:#}")));
        let detail = format!(
            "The error shown above has prevented {name} from writing the updated state to the configured backend. To allow for recovery, the state has been written to the file \"errored.tfstate\" in the current working directory.\n\nRunning \"{command} apply\" again at this point will create a forked state, making it harder to recover.\n\nTo retry writing this state, use the following command:\n    {command} state push errored.tfstate\n",
            name = tool.view.name(),
            command = tool.view.command(),
        );
        Err(Diagnostic::error("Failed to persist state to backend", &detail))
    }
}
