//! What a plan consists of, how it is made from script and state, and its file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::backend_config::Config;
use super::script::{self, Script, Step};
use super::tool_state::ToolState;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Act {
    NoOp,
    Create,
    Delete,
}

impl Act {
    /// As events call it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::NoOp => "noop",
            Self::Create => "create",
            Self::Delete => "delete",
        }
    }

    /// As a message says it when it begins.
    pub(super) fn begun(self) -> &'static str {
        match self {
            Self::Delete => "Destroying",
            Self::NoOp | Self::Create => "Creating",
        }
    }

    /// As a message says it when it is over.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Delete => "Destruction",
            Self::NoOp | Self::Create => "Creation",
        }
    }
}

/// What is planned for one resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Change {
    pub(super) address: String,
    pub(super) act: Act,
    /// Its id in the state, if it is there.
    pub(super) id: Option<String>,
    pub(super) input: Value,
    pub(super) apply_ms: u64,
    pub(super) steps: Vec<Step>,
}

/// How many resources are changed in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) add: u64,
    pub(super) remove: u64,
}

impl Counts {
    pub(super) fn count(&mut self, act: Act) {
        match act {
            Act::NoOp => {}
            Act::Create => self.add += 1,
            Act::Delete => self.remove += 1,
        }
    }
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    Normal,
    Destroy,
    RefreshOnly,
}

/// A saved plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    /// Random, so that no two plan files are alike, as with the real tools.
    pub(super) nonce: String,
    pub(super) tool: String,
    pub(super) version: String,
    pub(super) mode: Mode,
    /// Serial and lineage of the state that the plan was made on.
    pub(super) serial: u64,
    pub(super) lineage: String,
    pub(super) workspace: String,
    /// With credentials, like the real plan file.
    pub(super) backend: Option<Config>,
    pub(super) changes: Vec<Change>,
    pub(super) created: String,
}

impl Plan {
    /// Whether there is something to apply.
    pub(super) fn applyable(&self) -> bool {
        self.counts() != Counts::default()
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.changes.iter().for_each(|change| counts.count(change.act));
        counts
    }

    pub(super) fn write(&self, file: &Path) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(self).context("failed to encode the plan")?;
        std::fs::write(file, bytes).with_context(|| format!("failed to write the plan file `{}`", file.display()))
    }

    /// Reads the plan in the bytes of a file.
    pub(super) fn read(bytes: &[u8]) -> anyhow::Result<Self> {
        serde_json::from_slice(bytes).context("the given file is not a plan file")
    }
}

/// The changes that lead from a state to what a script wants. What was changed outside of the tool is played by nobody.
pub(super) fn changes(script: &Script, state: &ToolState, mode: Mode) -> Vec<Change> {
    if mode == Mode::RefreshOnly {
        return Vec::new();
    }
    let wanted: BTreeMap<String, script::Resource> =
        script.resources.list().into_iter().map(|resource| (resource.address.clone(), resource)).collect();
    let of_script = wanted.iter().filter_map(|(address, resource)| {
        let known = state.resources.get(address);
        let act = match (mode, known) {
            (Mode::Destroy, None) => return None,
            (Mode::Destroy, Some(_)) => Act::Delete,
            (_, None) => Act::Create,
            (_, Some(_)) => Act::NoOp,
        };
        Some(Change {
            address: address.clone(),
            act,
            id: known.map(|known| known.id.clone()),
            input: known.map_or_else(|| Value::from("x"), |known| known.input.clone()),
            apply_ms: resource.apply_ms.unwrap_or(script.apply_ms),
            steps: resource.steps.clone(),
        })
    });
    let gone = state.resources.iter().filter(|(address, _)| !wanted.contains_key(*address)).map(|(address, known)| Change {
        address: address.clone(),
        act: Act::Delete,
        id: Some(known.id.clone()),
        input: known.input.clone(),
        apply_ms: script.apply_ms,
        steps: Vec::new(),
    });
    of_script.chain(gone).collect()
}

/// A random id in the form of a UUID.
pub(super) fn random_uuid() -> String {
    let hex = format!("{:032x}", rand::random::<u128>());
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tool_state::Known;

    fn script(resources: &Value) -> Script {
        serde_json::from_value(json!({"resources": resources})).unwrap()
    }

    fn state() -> ToolState {
        let known = Known { id: "1".to_owned(), input: json!("x") };
        ToolState { resources: ["a.a", "a.b", "a.c"].map(|at| (at.to_owned(), known.clone())).into(), ..ToolState::default() }
    }

    fn acts(script: &Script, mode: Mode) -> Vec<(String, Act)> {
        changes(script, &state(), mode).into_iter().map(|change| (change.address, change.act)).collect()
    }

    #[test]
    fn every_change_follows_from_script_and_state() {
        let script = script(&json!(["a.a", {"address": "a.b"}, {"address": "a.d"}]));
        let at = |address: &str, act| (address.to_owned(), act);
        let normal = [at("a.a", Act::NoOp), at("a.b", Act::NoOp), at("a.d", Act::Create), at("a.c", Act::Delete)];
        assert_eq!(acts(&script, Mode::Normal), normal);
        let destroy = [at("a.a", Act::Delete), at("a.b", Act::Delete), at("a.c", Act::Delete)];
        assert_eq!(acts(&script, Mode::Destroy), destroy);
        assert_eq!(acts(&script, Mode::RefreshOnly), []);
    }
}
