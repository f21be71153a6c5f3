//! The script: what the tool is told to do, and its defaults. The format is documented in [the module above](super).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the script in the work directory.
pub const SCRIPT_FILE: &str = "pawl-script.json";

/// A whole script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Free name, recorded as `script` in each ledger entry; `only` counts commands of this name.
    pub name: String,
    /// `tofu` or `terraform`; by default what the program is called as.
    pub tool: Option<String>,
    /// Version that it reports.
    pub version: String,
    /// Where its ledger is: a URL to post to, or a file.
    pub ledger: Option<String>,
    /// URL of an `http` backend, as if the stack had this backend block.
    pub state: Option<String>,
    /// What the stack consists of.
    pub resources: Resources,
    /// How long one resource takes to apply, in milliseconds.
    pub apply_ms: u64,
    /// How often a resource in progress says so, in milliseconds.
    pub progress_ms: u64,
    /// Outputs of the stack.
    pub outputs: BTreeMap<String, Output>,
    /// When an apply writes its state.
    pub persist: Persist,
    /// What `init` writes to `.terraform.lock.hcl`; nothing by default, as in a stack without providers.
    pub lock_file: Option<String>,
    /// Names of environment variables to record at the start of each command.
    pub record_env: Vec<String>,
    /// Files of the work directory whose content is recorded at the start of each command.
    pub record_files: Vec<String>,
    /// Steps by command: `version`, `init`, `workspace`, `validate`, `plan`, `show`, `apply`, `output`.
    pub commands: BTreeMap<String, Vec<Step>>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            name: String::new(),
            tool: None,
            version: "1.10.6".to_owned(),
            ledger: None,
            state: None,
            resources: Resources::Count(1),
            apply_ms: 0,
            progress_ms: 10_000,
            outputs: BTreeMap::new(),
            persist: Persist::End,
            lock_file: None,
            record_env: Vec::new(),
            record_files: Vec::new(),
            commands: BTreeMap::new(),
        }
    }
}

impl Script {
    /// Reads the script of a work directory; without one, the defaults hold.
    pub fn load(dir: &Path) -> anyhow::Result<Self> {
        let file = dir.join(SCRIPT_FILE);
        if !file.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(&file).with_context(|| format!("failed to read `{SCRIPT_FILE}`"))?;
        serde_json::from_str(&text).with_context(|| format!("`{SCRIPT_FILE}` is not a script"))
    }
}

/// When an apply writes its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persist {
    /// Once, at the end or when it is interrupted; a kill before that loses everything, as with the real tool.
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
    /// These.
    List(Vec<Resource>),
}

impl Resources {
    /// Each resource.
    pub fn list(&self) -> Vec<Resource> {
        match self {
            Self::Count(count) => (0..*count).map(|index| Resource::at(&format!("terraform_data.r[{index}]"))).collect(),
            Self::List(list) => list.clone(),
        }
    }
}

/// One resource: an address alone, or an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "ResourceForm")]
pub struct Resource {
    /// Address, for example `module.m.terraform_data.r["key"]`.
    pub address: String,
    /// Its `input`; a different one than in the state makes an update.
    pub input: Value,
    /// Replace it, or update it, although the input is the same.
    pub change: Option<Change>,
    /// It changed outside the tool: an update, and drift in a refresh-only plan.
    pub drift: bool,
    /// How long it takes to apply, instead of the script's `apply_ms`.
    pub apply_ms: Option<u64>,
    /// Steps between its `apply_start` and its creation; an error diagnostic fails it.
    pub steps: Vec<Step>,
}

impl Resource {
    fn at(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            input: Value::from("x"),
            change: None,
            drift: false,
            apply_ms: None,
            steps: Vec::new(),
        }
    }
}

/// A change that a script asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Update in place.
    Update,
    /// Delete, then create.
    Replace,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ResourceForm {
    Address(String),
    Full(ResourceFields),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceFields {
    address: String,
    input: Option<Value>,
    change: Option<Change>,
    #[serde(default)]
    drift: bool,
    apply_ms: Option<u64>,
    #[serde(default)]
    steps: Vec<Step>,
}

impl From<ResourceForm> for Resource {
    fn from(form: ResourceForm) -> Self {
        match form {
            ResourceForm::Address(address) => Self::at(&address),
            ResourceForm::Full(ResourceFields { address, input, change, drift, apply_ms, steps }) => {
                Self { input: input.unwrap_or_else(|| Value::from("x")), change, drift, apply_ms, steps, ..Self::at(&address) }
            }
        }
    }
}

/// One output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Its value.
    pub value: Value,
    /// Whether it is hidden.
    #[serde(default)]
    pub sensitive: bool,
}

/// One step, for every execution of its command or only for some.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Step {
    /// A step without parameters, as a word.
    Word(Action),
    /// A step with parameters, as an object.
    Full {
        /// Do it only in these executions of the command (counted from 1, across pods, by script name in the ledger).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only: Option<Vec<u64>>,
        /// What to do.
        #[serde(flatten)]
        action: Action,
    },
}

impl Step {
    /// What to do in the `nth` execution of the command, if anything.
    pub fn action(&self, nth: u64) -> Option<&Action> {
        match self {
            Self::Word(action) => Some(action),
            Self::Full { only, action } => only.as_ref().is_none_or(|only| only.contains(&nth)).then_some(action),
        }
    }
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Do what the command does by itself, here instead of after the last step.
    Default,
    /// Wait.
    SleepMs(u64),
    /// Print a line as it is.
    Print(String),
    /// Print a line as it is to stderr.
    PrintErr(String),
    /// Print an event of the `-json` stream; level, module and timestamp are added.
    Event(Value),
    /// Say that a resource is begun (it is not).
    ApplyStart(String),
    /// Say that a resource is under way (it is not).
    ApplyProgress(String),
    /// Say that a resource is complete (it is not).
    ApplyComplete(String),
    /// Emit a diagnostic; an error ends the command with 1, or fails the resource.
    Diagnostic(Diagnostic),
    /// Write a file below the work directory.
    WriteFile {
        /// Path.
        path: String,
        /// Content.
        content: String,
    },
    /// Leave a process in the background.
    Spawn(Spawn),
    /// Wait for a child as if it were a provider: if it is killed, the resource fails with `Plugin did not respond`.
    Provider(Spawn),
    /// Run a program and wait for it, as plan-time code does.
    Exec(Vec<String>),
    /// Take no notice of interrupts from here on, but record them.
    IgnoreInterrupts,
    /// Take memory and touch it.
    AllocateMb(usize),
    /// Print this much, in lines.
    FloodMb(u64),
    /// Write `errored.tfstate`, as after a state that could not be saved.
    ErroredTfstate,
    /// Never end.
    Hang,
    /// Write a line to the ledger.
    Mark(String),
    /// End at once with this code, holding whatever is held.
    Exit(i32),
    /// Send itself this signal, for example 9 as the kernel does when memory runs out.
    KillSelf(i32),
}

/// A process that the tool starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spawn {
    /// How long it lives.
    pub seconds: u64,
    /// Put it into a session of its own.
    pub daemon: bool,
    /// Let it keep the tool's stdout and stderr open.
    pub hold_stdout: bool,
    /// Let it ignore SIGINT and SIGTERM, as providers do with SIGINT.
    pub ignore_signals: bool,
    /// How often it says in the ledger that it lives, in milliseconds; never with 0.
    pub beat_ms: u64,
}

impl Default for Spawn {
    fn default() -> Self {
        Self { seconds: 3600, daemon: false, hold_stdout: false, ignore_signals: false, beat_ms: 0 }
    }
}

/// A message of the tool to its user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Diagnostic {
    /// It is a warning, not an error.
    pub warning: bool,
    /// One line.
    pub summary: String,
    /// Any number of lines.
    pub detail: String,
    /// Address of the resource it is about.
    pub address: Option<String>,
    /// File it is about.
    pub file: Option<String>,
    /// Line in that file.
    pub line: Option<u64>,
}

impl Diagnostic {
    /// An error.
    pub fn error(summary: &str, detail: &str) -> Self {
        Self { summary: summary.to_owned(), detail: detail.to_owned(), ..Self::default() }
    }
}

impl From<anyhow::Error> for Diagnostic {
    fn from(error: anyhow::Error) -> Self {
        Self::error(&format!("{error:#}"), "")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_objects_and_conditions_are_steps() {
        let steps: Vec<Step> = serde_json::from_value(json!([
            "default", {"sleep_ms": 5}, {"only": [2], "exit": 3}, "hang", {"spawn": {"seconds": 1}}
        ]))
        .unwrap();
        let first: Vec<Action> = steps.iter().filter_map(|step| step.action(1)).cloned().collect();
        let spawn = Action::Spawn(Spawn { seconds: 1, ..Spawn::default() });
        assert_eq!(first, [Action::Default, Action::SleepMs(5), Action::Hang, spawn]);
        assert_eq!(steps[2].action(2), Some(&Action::Exit(3)));
    }

    #[test]
    fn a_misspelt_script_is_refused() {
        let read = |value: Value| serde_json::from_value::<Script>(value);
        assert!(read(json!({"resorces": 3})).is_err());
        assert!(read(json!({"commands": {"plan": [{"slep_ms": 3}]}})).is_err());
        assert!(read(json!({"resources": [{"address": "a.b", "stepz": []}]})).is_err());
        let good = read(json!({"resources": ["a.b", {"address": "a.c", "change": "replace"}]})).unwrap();
        let list = good.resources.list();
        assert_eq!((list[0].address.as_str(), list[1].change), ("a.b", Some(Change::Replace)));
        assert_eq!(Resources::Count(2).list()[1].address, "terraform_data.r[1]");
    }
}
