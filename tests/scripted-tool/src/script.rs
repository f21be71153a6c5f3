//! The script: the tool's instructions, and their defaults. [The module above](super) documents the format.

use std::collections::BTreeMap;
use std::path::Path;

pub use super::script_step::{Action, Diagnostic, Spawn, Step};
use anyhow::Context;
use serde::{Deserialize, Serialize};

/// Name of the script in the work directory.
pub const SCRIPT_FILE: &str = "pawl-script.json";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Free name, recorded as `script` in each ledger entry; `only` counts commands of this name.
    pub name: String,
    /// URL of its ledger.
    pub ledger: Option<String>,
    /// The resources of the stack.
    pub resources: Resources,
    /// Duration of the apply of a resource, in milliseconds.
    pub apply_ms: u64,
    /// Interval of progress messages of a resource, in milliseconds.
    pub progress_ms: u64,
    pub persist: Persist,
    /// A difference between the plan file and what is printed of it.
    pub lie: Option<Lie>,
    /// Steps by command: `init`, `plan`, `show`, `apply`.
    pub commands: BTreeMap<String, Vec<Step>>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            name: String::new(),
            ledger: None,
            resources: Resources::Count(1),
            apply_ms: 0,
            progress_ms: 10_000,
            persist: Persist::End,
            lie: None,
            commands: BTreeMap::new(),
        }
    }
}

impl Script {
    /// Reads the script of a work directory; without one, returns the defaults.
    pub fn load(dir: &Path) -> anyhow::Result<Self> {
        let file = dir.join(SCRIPT_FILE);
        if !file.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("failed to read `{SCRIPT_FILE}`"))?;
        serde_json::from_str(&text).with_context(|| format!("`{SCRIPT_FILE}` is not a script"))
    }
}

/// How plan file and output differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lie {
    /// `show`, with and without `-json`, prints another plan: one that creates `terraform_data.harmless`.
    Printed,
    /// The plan file has a format that the agent does not know.
    Format,
}

/// When an apply writes its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persist {
    /// Writes the state once, at the end or when it is interrupted. A kill before that loses it, as with the real tool.
    End,
    /// After each resource.
    Each,
}

/// Resources by number or one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Resources {
    /// `terraform_data.r[0]` and so on.
    Count(u64),
    List(Vec<Item>),
}

impl Resources {
    pub fn list(&self) -> Vec<Resource> {
        let at = |address: String| Resource {
            address,
            apply_ms: None,
            steps: Vec::new(),
        };
        let of = |item: &Item| match item {
            Item::Address(address) => at(address.clone()),
            Item::Full(resource) => resource.clone(),
        };
        match self {
            Self::Count(count) => (0..*count)
                .map(|index| at(format!("terraform_data.r[{index}]")))
                .collect(),
            Self::List(list) => list.iter().map(of).collect(),
        }
    }
}

/// One resource: an address alone, or an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Item {
    Address(String),
    Full(Resource),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// Address in the root module, for example `terraform_data.r["key"]`.
    pub address: String,
    /// Duration of its apply, instead of the script's `apply_ms`.
    pub apply_ms: Option<u64>,
    /// Steps between its `apply_start` and its creation; an error diagnostic fails it.
    #[serde(default)]
    pub steps: Vec<Step>,
}
