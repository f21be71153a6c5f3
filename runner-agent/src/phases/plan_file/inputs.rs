//! What a plan file says about the inputs of its apply: variables, backend, and a restriction to parts of the code. No list of changes
//! shows them, and an apply takes all of them from the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::BufRead,
};

use serde_json::{Map, Value};

use super::{
    Checked, Read, Refused, Sources, Unread,
    state::Content,
    text, values,
    wire::{self, Wire},
};

/// Maximum size in bytes of all variables and the backend together.
const VARIABLES: u64 = 16 << 20;
/// What an entry counts beside its bytes.
const ENTRY: u64 = 64;
/// Maximum size in bytes of a value for each byte that the run gives, and of a short one. A value has its type with it.
const PER_BYTE: usize = 16;
const SHORT: usize = 1 << 10;

/// What the agent gave to a plan.
#[derive(Debug)]
pub(in crate::phases) struct Given {
    pub(in crate::phases) workspace: String,
    /// Values that win over those of the code.
    pub(in crate::phases) variables: Map<String, Value>,
    /// Whether arguments may restrict the plan to parts of the code.
    pub(in crate::phases) may_be_partial: bool,
    /// Terragrunt gives arguments and environment of its own.
    pub(in crate::phases) by_terragrunt: bool,
}

/// The same by a plan file.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    variables: BTreeMap<String, Vec<u8>>,
    /// Names of ephemeral variables, which each command is given anew: by Terraform, and by OpenTofu.
    late: [BTreeSet<String>; 2],
    backend: Option<Used>,
    is_partial: bool,
    size: u64,
}

#[derive(Debug, Default)]
struct Used {
    kind: String,
    workspace: String,
    config: Vec<u8>,
}

impl Inputs {
    /// Reads one of these fields of a plan.
    pub(super) fn read<R: BufRead>(
        &mut self,
        wire: &mut Wire<R>,
        field: u64,
        value: wire::Value,
    ) -> Read<()> {
        match field {
            2 => {
                let (mut name, mut found) = (String::new(), Vec::new());
                let end = value.end()?;
                while let Some((field, value)) = wire.field(end)? {
                    match field {
                        1 => name = text(wire, value)?,
                        2 => self.dynamic(wire, value, &mut found)?,
                        number => return Err(Unread::field("variable", number)),
                    }
                }
                self.variables.insert(name, found);
            }
            13 => {
                let mut used = self.backend.take().unwrap_or_default();
                let end = value.end()?;
                while let Some((field, value)) = wire.field(end)? {
                    match field {
                        1 => used.kind = text(wire, value)?,
                        2 => self.dynamic(wire, value, &mut used.config)?,
                        3 => used.workspace = text(wire, value)?,
                        number => return Err(Unread::field("backend", number)),
                    }
                }
                self.backend = Some(used);
            }
            // Terraform has results of functions in the second.
            28 | 22 => {
                let bytes = self.bounded(wire, value)?;
                self.late[usize::from(field == 22)].extend(String::from_utf8(bytes));
            }
            _ => {
                self.is_partial = true;
                wire.skip(value)?;
            }
        }
        Ok(())
    }

    fn bounded<R: BufRead>(&mut self, wire: &mut Wire<R>, value: wire::Value) -> Read<Vec<u8>> {
        let left = VARIABLES.checked_sub(self.size);
        let bytes = left.map(|left| wire.bytes(value, left)).transpose()?;
        let bytes = bytes
            .flatten()
            .ok_or_else(|| Unread::of("its variables are too large"))?;
        self.size += bytes.len() as u64 + ENTRY;
        Ok(bytes)
    }

    /// Reads a value of any type.
    fn dynamic<R: BufRead>(
        &mut self,
        wire: &mut Wire<R>,
        value: wire::Value,
        into: &mut Vec<u8>,
    ) -> Read<()> {
        let end = value.end()?;
        while let Some((field, value)) = wire.field(end)? {
            if field != 1 {
                return Err(Unread::field("value", field));
            }
            *into = self.bounded(wire, value)?;
        }
        Ok(())
    }

    /// Compares them with what the agent gave.
    pub(super) fn compare(&self, given: &Given, sources: &Sources) -> Checked<()> {
        let differs = |what: String| Err(Refused::Contradicted(what));
        let used = self.backend.as_ref();
        let used = used.ok_or_else(|| Unread::of("it has no backend"))?;
        let own = &sources.backend;
        let is_own = |config: &[u8]| {
            let config = values::value(config)?;
            Some(Content::of(config) == Content::of(own.config.clone()))
        };
        if used.kind != own.kind || own.is_named() && is_own(&used.config) != Some(true) {
            return differs(format!("another backend ({}) than the stack", used.kind));
        }
        let late = &self.late[usize::from(sources.is_tofu)];
        for (name, value) in &given.variables {
            let is_own = match self.variables.get(name) {
                Some(found) => reads(value, found),
                None => value.is_null() || given.by_terragrunt || late.contains(name),
            };
            if !is_own {
                return differs(format!("another value of var.{name} than the run"));
            }
        }
        if given.by_terragrunt {
            return Ok(());
        }
        if used.workspace != given.workspace {
            return differs(format!("the workspace {:?}", used.workspace));
        }
        if self.is_partial && !given.may_be_partial {
            return differs("targets, which the run does not have".to_owned());
        }
        Ok(())
    }
}

/// Whether the tool read these bytes from `given`.
fn reads(given: &Value, found: &[u8]) -> bool {
    let most = given.to_string().len().saturating_mul(PER_BYTE) + SHORT;
    found.len() <= most && values::value(found).is_some_and(|found| is_same(given, &found))
}

/// Numbers that no machine word holds are texts in a plan. The tools compose letters and accents, so of other texts than ASCII it is only
/// known that they are such.
fn is_same(given: &Value, found: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse::<f64>().ok(),
        _ => None,
    };
    match (given, found) {
        (Value::Array(given), Value::Array(found)) => {
            let mut both = given.iter().zip(found);
            given.len() == found.len() && both.all(|(given, found)| is_same(given, found))
        }
        (Value::Object(given), Value::Object(found)) => {
            let has = |name: &String, given| {
                !name.is_ascii() || found.get(name).is_some_and(|found| is_same(given, found))
            };
            given.len() == found.len() && given.iter().all(|(name, given)| has(name, given))
        }
        (Value::Number(_), _) => number(given) == number(found),
        (Value::String(given), Value::String(found)) if !given.is_ascii() => !found.is_ascii(),
        _ => given == found,
    }
}
