//! Reads a plan file: what an apply of it does, whatever a process prints about it. A plan file is an archive whose member `tfplan` is a
//! message of protocol buffers. The formats of versions differ by fields that were added, and the numbers are the same in both tools:
//!
//! | message | fields | since |
//! |---|---|---|
//! | plan | 1 version (3), 3 changes, 4 outputs, 17 mode, 18 drift, 20 errored | Terraform 1.1, OpenTofu 1.6 |
//! | | 22 results of functions (Terraform), ephemeral variables (OpenTofu), 25 applyable, 26 complete, 27 deferred | Terraform 1.8 |
//! | | 6 excluded addresses | OpenTofu 1.9 |
//! | | 28 variables of the apply | Terraform 1.10 |
//! | | 29 state store | Terraform 1.13 |
//! | | 30 invocations, 31 deferred ones, 32 targets among them | Terraform 1.14 |
//! | action | 8 forget, 9 create then forget (Terraform), 10 forget then create (OpenTofu 1.12) | Terraform 1.7, OpenTofu 1.7 |
//!
//! Source: `planfile.proto` of Terraform 1.5.7, 1.6.6, 1.8.5, 1.10.5, 1.13.3 and 1.17.0-dev, and of OpenTofu 1.9.4, 1.10.6 and 1.12.6. A
//! field that is not in these tables may say something about the apply, so such a plan counts as not read. Terraform before 1.1 has no
//! addresses in field 13.

mod archive;
mod inputs;
mod sources;
mod state;
mod values;
mod wire;

use std::{
    fs::File,
    io::{BufRead, ErrorKind},
};

use archive::{Archive, PLAN};
use crds::Operation;
use wire::{Value, Wire};

pub(super) use inputs::Given;
use inputs::Inputs;
use sources::LIST;
pub(super) use sources::Sources;
pub(super) use state::State;
use state::{STATE, Told, canonical};

use super::{
    plan_facts::{Entry, Part, PlanFacts},
    plan_json::attributes,
};

/// The only version of the format.
const VERSION: u64 = 3;
/// Maximum length of an address or a name in bytes.
const TEXT: u64 = 64 << 10;
/// Maximum size in bytes of a value that is read.
const VALUE: u64 = 256 << 10;

/// Actions and their words. 4 and 9 are not used by one or both tools.
const ACTIONS: [(u64, &str); 10] = [
    (0, "no-op"),
    (1, "create"),
    (2, "read"),
    (3, "update"),
    (5, "delete"),
    (6, "delete,create"),
    (7, "create,delete"),
    (8, "forget"),
    (9, "create,forget"),
    (10, "forget,create"),
];

/// Reasons and their words, by number.
const REASONS: [&str; 17] = [
    "",
    "replace_because_tainted",
    "replace_by_request",
    "replace_because_cannot_update",
    "delete_because_no_resource_config",
    "delete_because_wrong_repetition",
    "delete_because_count_index",
    "delete_because_each_key",
    "delete_because_no_module",
    "replace_by_triggers",
    "read_because_config_unknown",
    "read_because_dependency_pending",
    "delete_because_no_move_target",
    "read_because_check_nested",
    "delete_because_enabled_false",
    "forgot_because_lifecycle_destroy_in_state",
    "forgot_because_lifecycle_destroy_in_config",
];

/// Why a plan file cannot be read, in words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unread(pub(super) String);

type Read<T> = Result<T, Unread>;

/// Why a plan file that can be read is not applied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Unread(Unread),
    /// It has something that no tool put there.
    Contradicted(String),
    /// The state changed since.
    Stale,
}

type Checked<T> = Result<T, Refused>;

impl From<Unread> for Refused {
    fn from(why: Unread) -> Self {
        Self::Unread(why)
    }
}

impl Unread {
    fn of(why: &str) -> Self {
        Self(why.to_owned())
    }

    fn field(message: &str, number: u64) -> Self {
        Self(format!(
            "field {number} of its {message} is not known to this release"
        ))
    }
}

impl From<std::io::Error> for Unread {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::of("its content is damaged"),
            _ => Self(error.to_string()),
        }
    }
}

/// The origin of a plan.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) operation: Operation,
    pub(super) sources: Sources,
    pub(super) given: Given,
    pub(super) state: State,
}

/// A plan file that was read.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) facts: PlanFacts,
    told: Told,
    inputs: Inputs,
    mode: u64,
    /// Whether it has a copy of the configuration or the state. The tools apply no file without both.
    pub(super) has_copies: bool,
}

/// Reads a plan file into `facts`.
///
/// # Errors
/// It is encrypted, damaged or of an unknown format.
pub(super) fn read(file: &File, facts: impl Into<PlanFacts>) -> Read<Kept> {
    let archive = Archive::open(file)?;
    let (bytes, size) = archive.member(PLAN)?;
    let mut plan = Plan {
        wire: Wire::new(bytes),
        facts: facts.into(),
        told: Told::default(),
        inputs: Inputs::default(),
        mode: 0,
    };
    plan.read(size)?;
    plan.wire.ends()?;
    Ok(Kept {
        facts: plan.facts,
        told: plan.told,
        inputs: plan.inputs,
        mode: plan.mode,
        has_copies: archive.names().any(|name| [STATE, LIST].contains(&name)),
    })
}

/// The serial number of the state that a plan was made with.
pub(super) fn serial(file: &File) -> Option<u64> {
    let archive = Archive::open(file).ok()?;
    Some(State::kept(archive.member(STATE).ok()?.0).ok()?.serial)
}

impl Kept {
    /// Compares the file's copies of configuration and state with its origin.
    ///
    /// # Errors
    /// They are of another origin, or cannot be read.
    pub(super) fn compare(mut self, file: &File, origin: Origin) -> Checked<PlanFacts> {
        let archive = Archive::open(file)?;
        let asked = match origin.operation {
            Operation::Destroy => 1,
            Operation::RefreshOnly => 2,
            Operation::Plan | Operation::Apply | Operation::Unknown => 0,
        };
        if self.mode != asked {
            let what = "the mode of another operation".to_owned();
            return Err(Refused::Contradicted(what));
        }
        origin.sources.compare(&archive)?;
        self.inputs.compare(&origin.given, &origin.sources)?;
        let state = State::kept(archive.member(STATE)?.0)?;
        for (address, how) in state.compare(origin.state, &self.told, origin.operation)? {
            self.facts.lose(&address, how);
        }
        Ok(self.facts)
    }
}

struct Plan<R> {
    wire: Wire<R>,
    facts: PlanFacts,
    told: Told,
    inputs: Inputs,
    mode: u64,
}

/// A change of a resource or an output. A message that comes in parts is one message, with the last value of each field.
#[derive(Default)]
struct Change {
    address: String,
    previous: String,
    deposed: String,
    reason: u64,
    action: u64,
    importing: bool,
    has_action: bool,
    values: Vec<Option<Vec<u8>>>,
}

impl<R: BufRead> Plan<R> {
    fn read(&mut self, end: u64) -> Read<()> {
        let mut version = 0;
        while let Some((field, value)) = self.wire.field(end)? {
            match field {
                1 => version = value.number()?,
                3 => self.resource(Part::Resources, value)?,
                4 => self.output(value)?,
                17 => self.mode = value.number()?,
                18 => self.resource(Part::Drift, value)?,
                20 => self.facts.errored = value.number()? != 0,
                25 => self.facts.applyable = (value.number()? != 0).then_some(true),
                30 => self.invocation(value)?,
                2 | 5 | 6 | 13 | 22 | 28 => self.inputs.read(&mut self.wire, field, value)?,
                14..=16 | 19 | 21 | 26 | 27 | 29 | 31 | 32 => self.wire.skip(value)?,
                number => return Err(Unread::field("plan", number)),
            }
            if self.facts.is_full() {
                return Err(Unread::of("it has too many changes"));
            }
        }
        if version != VERSION {
            return Err(Unread(format!(
                "its format has version {version}, and this release reads {VERSION}"
            )));
        }
        Ok(())
    }

    fn text(&mut self, value: Value) -> Read<String> {
        text(&mut self.wire, value)
    }

    fn resource(&mut self, part: Part, value: Value) -> Read<()> {
        let mut of = Change::default();
        let end = value.end()?;
        while let Some((field, value)) = self.wire.field(end)? {
            match field {
                7 => of.deposed = self.text(value)?,
                9 => self.change(&mut of, part == Part::Drift, value)?,
                12 => of.reason = value.number()?,
                13 => of.address = self.text(value)?,
                14 => of.previous = self.text(value)?,
                8 | 10 | 11 => self.wire.skip(value)?,
                number => return Err(Unread::field("change of a resource", number)),
            }
        }
        self.take(part, &of)
    }

    fn output(&mut self, value: Value) -> Read<()> {
        let mut of = Change::default();
        let end = value.end()?;
        while let Some((field, value)) = self.wire.field(end)? {
            match field {
                1 => of.address = self.text(value)?,
                2 => self.change(&mut of, false, value)?,
                3 => self.wire.skip(value)?,
                number => return Err(Unread::field("change of an output", number)),
            }
        }
        self.take(Part::Outputs, &of)
    }

    /// Reads the part that resources and outputs share.
    fn change(&mut self, of: &mut Change, with_values: bool, value: Value) -> Read<()> {
        of.has_action = true;
        let end = value.end()?;
        while let Some((field, value)) = self.wire.field(end)? {
            match field {
                1 => of.action = value.number()?,
                2 if with_values && of.values.len() < 2 => {
                    let read = self.wire.bytes(value, VALUE)?;
                    of.values.push(read);
                }
                5 => {
                    of.importing = true;
                    self.wire.skip(value)?;
                }
                2..=4 | 6..=8 => self.wire.skip(value)?,
                number => return Err(Unread::field("change", number)),
            }
        }
        Ok(())
    }

    fn take(&mut self, part: Part, of: &Change) -> Read<()> {
        let action = ACTIONS.iter().find(|(number, _)| *number == of.action);
        let reason = usize::try_from(of.reason)
            .ok()
            .and_then(|number| REASONS.get(number));
        let (Some((_, actions)), Some(reason)) = (action, reason) else {
            return Err(Unread(format!(
                "its action {} or reason {} is not known to this release",
                of.action, of.reason
            )));
        };
        if of.address.is_empty() || !of.has_action {
            return Err(Unread::of(
                "it has a change without an address or an action",
            ));
        }
        let entry = Entry {
            part,
            address: &of.address,
            previous: &of.previous,
            deposed: &of.deposed,
            actions,
            reason,
            importing: of.importing,
        };
        self.facts.take(entry, || differing(&of.values));
        self.tell(part, of, actions);
        Ok(())
    }

    /// Notes what a listed change tells about the state. A move among the drift is listed only if nothing else is planned.
    fn tell(&mut self, part: Part, of: &Change, actions: &str) {
        let (address, previous) = (canonical(&of.address), canonical(&of.previous));
        let does = |word: &str| actions.split(',').any(|action| action == word);
        let told = &mut self.told;
        if part == Part::Outputs && actions != "no-op" {
            told.outputs.insert(of.address.clone());
        }
        if part == Part::Drift && (does("delete") || does("update")) {
            let gone = does("delete");
            told.drifted.insert((address.clone(), gone));
            if gone && !previous.is_empty() {
                told.drifted.insert((previous.clone(), gone));
            }
        }
        let is_listed = part == Part::Resources || part == Part::Drift && self.facts.lists_moves;
        if is_listed && of.deposed.is_empty() && !previous.is_empty() && previous != address {
            told.moved.insert(address.clone(), previous);
        }
        if part == Part::Resources && (of.importing || does("delete") || does("forget")) {
            told.new.insert((address, of.deposed.clone()));
        }
    }

    fn invocation(&mut self, value: Value) -> Read<()> {
        let (mut address, mut resource) = (String::new(), String::new());
        let end = value.end()?;
        while let Some((field, value)) = self.wire.field(end)? {
            match field {
                1 => address = self.text(value)?,
                6 => {
                    let end = value.end()?;
                    while let Some((field, value)) = self.wire.field(end)? {
                        match field {
                            1 => resource = self.text(value)?,
                            2..=5 => self.wire.skip(value)?,
                            number => return Err(Unread::field("trigger", number)),
                        }
                    }
                }
                2 | 4 | 5 | 7 => self.wire.skip(value)?,
                number => return Err(Unread::field("invocation", number)),
            }
        }
        let entry = Entry {
            address: &address,
            previous: &resource,
            ..Entry::of(Part::Invocations)
        };
        self.facts.take(entry, Vec::new);
        Ok(())
    }
}

fn text<R: BufRead>(wire: &mut Wire<R>, value: Value) -> Read<String> {
    let bytes = wire.bytes(value, TEXT)?;
    let bytes = bytes.ok_or_else(|| Unread::of("it has a name that is too long"))?;
    String::from_utf8(bytes).map_err(|_| Unread::of("it has a name that is no text"))
}

/// The attributes that differ between two values, each in a message of its own. None if a value is too large or damaged.
fn differing(values: &[Option<Vec<u8>>]) -> Vec<String> {
    let value = |at: usize| {
        let bytes = values.get(at)?.as_deref()?;
        let mut wire = Wire::new(bytes);
        let (_, value) = wire.field(bytes.len() as u64).ok()??;
        values::value(&wire.bytes(value, VALUE).ok()??)
    };
    match (value(0), value(1)) {
        (Some(before), Some(after)) => attributes(&before, &after),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
