//! A plan: computed from script and state, written to its file, read and shown.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Tool;
use super::backend::Config;
use super::plan_file;
use super::resource::{Act, Address, Counts, random_uuid};
use super::script::{Diagnostic, Lie, Resource, Script, Step};
use super::tool_state::ToolState;
use super::view::line;

/// The planned change of one resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Change {
    pub(super) address: String,
    pub(super) act: Act,
    /// Its id in the state, if it exists.
    pub(super) id: Option<String>,
    pub(super) apply_ms: u64,
    pub(super) steps: Vec<Step>,
}

/// A saved plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    /// Random, so that no two plan files are equal, as with the real tools.
    pub(super) nonce: String,
    /// Serial and lineage of the state that the plan was made on.
    pub(super) serial: u64,
    pub(super) lineage: String,
    /// Includes credentials, like a real plan file.
    pub(super) backend: Option<Config>,
    pub(super) changes: Vec<Change>,
}

impl Plan {
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.changes
            .iter()
            .for_each(|change| counts.count(change.act));
        counts
    }

    /// The changes that an apply makes.
    pub(super) fn real(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.act != Act::NoOp)
    }

    /// Parses the bytes of a plan file.
    pub(super) fn read(bytes: &[u8]) -> anyhow::Result<Self> {
        let own = plan_file::member(bytes).context("the given file is not a plan file")?;
        serde_json::from_slice(own).context("the given file is not a plan file")
    }

    /// The plan file, with this plan as one more member.
    fn file(&self, lie: Option<Lie>) -> anyhow::Result<Vec<u8>> {
        let own = serde_json::to_vec(self).context("failed to encode the plan")?;
        let version = plan_file::VERSION + u64::from(lie == Some(Lie::Format));
        let member = ("scripted", own.as_slice());
        Ok(plan_file::of(&self.json(), version, &self.nonce, member))
    }

    /// This plan as a lying tool prints it.
    fn shown(self, lie: Option<Lie>) -> Self {
        if lie != Some(Lie::Printed) {
            return self;
        }
        let harmless = Change {
            address: "terraform_data.harmless".to_owned(),
            act: Act::Create,
            id: None,
            apply_ms: 0,
            steps: Vec::new(),
        };
        Self {
            changes: vec![harmless],
            ..self
        }
    }

    /// The fields of format 1.2 that programs read.
    fn json(&self) -> Value {
        let change = |change: &Change| {
            let Address { kind, name, key } = Address::parse(&change.address);
            let values = change
                .id
                .as_ref()
                .map_or(Value::Null, |id| json!({"id": id}));
            let after = if change.act == Act::Delete {
                Value::Null
            } else {
                json!({})
            };
            json!({"address": change.address, "mode": "managed", "type": kind, "name": name, "index": key,
                "change": {"actions": [change.act.word()], "before": values, "after": after}})
        };
        json!({"format_version": "1.2", "resource_changes": self.changes.iter().map(change).collect::<Vec<_>>(),
            "output_changes": {}, "applyable": self.real().next().is_some(), "complete": true, "errored": false})
    }
}

/// `plan`.
pub(super) fn plan(tool: &Tool) -> Result<i32, Diagnostic> {
    let backend = tool.backend()?;
    let lock = tool.lock(&backend, "OperationTypePlan")?;
    let read = backend.read();
    tool.unlock(&backend, lock.as_deref())?;
    let state = ToolState::from_json(&read?);
    state
        .resources
        .iter()
        .for_each(|(address, id)| tool.view.refresh(address, id));
    let plan = Plan {
        nonce: random_uuid(),
        serial: state.serial,
        lineage: state.lineage.clone(),
        backend: tool.initialized()?,
        changes: changes(&tool.script, &state, tool.args.has("destroy")),
    };
    plan.real()
        .for_each(|change| tool.view.planned_change(&change.address, change.act));
    tool.view.planned(plan.counts());
    if let Some(out) = tool.args.value("out") {
        std::fs::write(tool.dir.join(out), plan.file(tool.script.lie)?)
            .with_context(|| format!("failed to write the plan file `{out}`"))?;
    }
    Ok(
        if tool.args.has("detailed-exitcode") && plan.real().next().is_some() {
            2
        } else {
            0
        },
    )
}

/// `show` of a plan file, as JSON or as text.
pub(super) fn show(tool: &Tool) -> Result<i32, Diagnostic> {
    let plan = Plan::read(&read_file(tool)?)?.shown(tool.script.lie);
    if tool.args.has("json") {
        line(&plan.json().to_string());
        return Ok(0);
    }
    for Change { address, act, .. } in plan.real() {
        line(&format!(
            "  # {address} will be {}",
            if *act == Act::Delete {
                "destroyed"
            } else {
                "created"
            }
        ));
    }
    let Counts { add, remove } = plan.counts();
    line(&format!(
        "\nPlan: {add} to add, 0 to change, {remove} to destroy."
    ));
    Ok(0)
}

/// Reads the plan file that the command names.
pub(super) fn read_file(tool: &Tool) -> anyhow::Result<Vec<u8>> {
    let file = tool
        .args
        .words
        .last()
        .with_context(|| format!("`{}` without a plan file", tool.args.command))?;
    std::fs::read(tool.dir.join(file))
        .with_context(|| format!("failed to load \"{file}\" as a plan file"))
}

/// The changes from a state to the resources of a script. Simulates no drift.
fn changes(script: &Script, state: &ToolState, destroy: bool) -> Vec<Change> {
    let wanted = script.resources.list();
    let is_wanted = |address: &str| wanted.iter().any(|resource| resource.address == address);
    let of_script = wanted.iter().filter_map(
        |Resource {
             address,
             apply_ms,
             steps,
         }| {
            let id = state.resources.get(address).cloned();
            let act = match (destroy, &id) {
                (true, None) => return None,
                (true, Some(_)) => Act::Delete,
                (false, None) => Act::Create,
                (false, Some(_)) => Act::NoOp,
            };
            let apply_ms = apply_ms.unwrap_or(script.apply_ms);
            Some(Change {
                address: address.clone(),
                act,
                id,
                apply_ms,
                steps: steps.clone(),
            })
        },
    );
    let gone = state
        .resources
        .iter()
        .filter(|(address, _)| !is_wanted(address))
        .map(|(address, id)| Change {
            address: address.clone(),
            act: Act::Delete,
            id: Some(id.clone()),
            apply_ms: script.apply_ms,
            steps: Vec::new(),
        });
    let mut changes: Vec<_> = of_script.collect();
    changes.sort_by(|a, b| a.address.cmp(&b.address));
    changes.into_iter().chain(gone).collect()
}
