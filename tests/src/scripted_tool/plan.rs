//! What a plan consists of, how it is made from script and state, and its file.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::backend_config::Config;
use super::script::{self, Output, Script, Step};
use super::tool_state::ToolState;

/// What is done to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Act {
    NoOp,
    Create,
    Update,
    Replace,
    Delete,
}

impl Act {
    /// As events call it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::NoOp => "noop",
            Self::Create => "create",
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Delete => "delete",
        }
    }

    /// As a message says it when it begins.
    pub(super) fn begun(self) -> &'static str {
        match self {
            Self::Update => "Modifying",
            Self::Delete => "Destroying",
            Self::NoOp | Self::Create | Self::Replace => "Creating",
        }
    }

    /// As a message says it when it is over.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Update => "Modifications",
            Self::Delete => "Destruction",
            Self::NoOp | Self::Create | Self::Replace => "Creation",
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
    pub(super) before: Value,
    pub(super) after: Value,
    pub(super) apply_ms: u64,
    pub(super) steps: Vec<Step>,
}

/// How many resources are changed in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) add: u64,
    pub(super) change: u64,
    pub(super) remove: u64,
}

impl Counts {
    /// Counts one more.
    pub(super) fn count(&mut self, act: Act) {
        match act {
            Act::NoOp => {}
            Act::Create => self.add += 1,
            Act::Update => self.change += 1,
            Act::Delete => self.remove += 1,
            Act::Replace => {
                self.add += 1;
                self.remove += 1;
            }
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
    pub(super) drift: Vec<String>,
    pub(super) outputs_before: BTreeMap<String, Output>,
    pub(super) outputs: BTreeMap<String, Output>,
    pub(super) errored: bool,
    pub(super) created: String,
}

impl Plan {
    /// Whether there is something to apply.
    pub(super) fn applyable(&self) -> bool {
        !self.errored
            && (self.counts() != Counts::default()
                || self.outputs != self.outputs_before
                || (self.mode == Mode::RefreshOnly && !self.drift.is_empty()))
    }

    /// How many resources it changes.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.changes.iter().for_each(|change| counts.count(change.act));
        counts
    }

    /// Writes the plan file.
    pub(super) fn write(&self, file: &Path) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(self).context("failed to encode the plan")?;
        std::fs::write(file, bytes).with_context(|| format!("failed to write the plan file `{}`", file.display()))
    }

    /// Reads the plan in the bytes of a file.
    pub(super) fn read(bytes: &[u8]) -> anyhow::Result<Self> {
        serde_json::from_slice(bytes).context("the given file is not a plan file")
    }
}

/// The changes that lead from a state to what a script wants, and the addresses of what drifted.
pub(super) fn changes(script: &Script, state: &ToolState, mode: Mode) -> (Vec<Change>, Vec<String>) {
    let wanted: BTreeMap<String, script::Resource> =
        script.resources.list().into_iter().map(|resource| (resource.address.clone(), resource)).collect();
    let mut changes = Vec::new();
    let mut drift = Vec::new();
    for (address, resource) in &wanted {
        let known = state.resources.get(address);
        if resource.drift && known.is_some() {
            drift.push(address.clone());
        }
        let act = match (mode, known) {
            (Mode::RefreshOnly, _) | (Mode::Destroy, None) => continue,
            (Mode::Destroy, Some(_)) => Act::Delete,
            (Mode::Normal, None) => Act::Create,
            (Mode::Normal, Some(known)) => match resource.change {
                Some(script::Change::Replace) => Act::Replace,
                Some(script::Change::Update) => Act::Update,
                None if resource.drift || known.input != resource.input => Act::Update,
                None => Act::NoOp,
            },
        };
        changes.push(Change {
            address: address.clone(),
            act,
            id: known.map(|known| known.id.clone()),
            before: known.map(|known| known.input.clone()).unwrap_or_default(),
            after: if act == Act::Delete { Value::Null } else { resource.input.clone() },
            apply_ms: resource.apply_ms.unwrap_or(script.apply_ms),
            steps: resource.steps.clone(),
        });
    }
    let gone = state.resources.iter().filter(|(address, _)| mode != Mode::RefreshOnly && !wanted.contains_key(*address));
    changes.extend(gone.map(|(address, known)| Change {
        address: address.clone(),
        act: Act::Delete,
        id: Some(known.id.clone()),
        before: known.input.clone(),
        after: Value::Null,
        apply_ms: script.apply_ms,
        steps: Vec::new(),
    }));
    (changes, drift)
}

/// Random bytes in hexadecimal digits.
pub(super) fn random_hex(bytes: usize) -> anyhow::Result<String> {
    let mut buffer = vec![0; bytes];
    std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut buffer)).context("no random bytes")?;
    Ok(hex(&buffer))
}

/// A random id in the form of a UUID.
pub(super) fn random_uuid() -> anyhow::Result<String> {
    let hex = random_hex(16)?;
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// Bytes in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scripted_tool::tool_state::Known;

    fn script(resources: &Value) -> Script {
        serde_json::from_value(json!({"resources": resources})).unwrap()
    }

    fn state() -> ToolState {
        let known = Known { id: "1".to_owned(), input: json!("x") };
        ToolState { resources: ["a.a", "a.b", "a.c"].map(|at| (at.to_owned(), known.clone())).into(), ..ToolState::default() }
    }

    fn acts(script: &Script, mode: Mode) -> Vec<(String, Act)> {
        changes(script, &state(), mode).0.into_iter().map(|change| (change.address, change.act)).collect()
    }

    #[test]
    fn every_change_follows_from_script_and_state() {
        let script = script(&json!(["a.a", {"address": "a.b", "input": 2}, {"address": "a.d"}]));
        let at = |address: &str, act| (address.to_owned(), act);
        let normal = [at("a.a", Act::NoOp), at("a.b", Act::Update), at("a.d", Act::Create), at("a.c", Act::Delete)];
        assert_eq!(acts(&script, Mode::Normal), normal);
        let destroy = [at("a.a", Act::Delete), at("a.b", Act::Delete), at("a.c", Act::Delete)];
        assert_eq!(acts(&script, Mode::Destroy), destroy);
        assert_eq!(acts(&script, Mode::RefreshOnly), []);
    }

    #[test]
    fn forced_changes_and_drift_are_kept_apart() {
        let script = script(&json!([
            {"address": "a.a", "change": "replace"}, {"address": "a.b", "change": "update"}, {"address": "a.c", "drift": true}
        ]));
        let acts: Vec<Act> = acts(&script, Mode::Normal).into_iter().map(|(_, act)| act).collect();
        assert_eq!(acts, [Act::Replace, Act::Update, Act::Update]);
        assert_eq!(changes(&script, &state(), Mode::RefreshOnly), (vec![], vec!["a.c".to_owned()]));
    }
}
