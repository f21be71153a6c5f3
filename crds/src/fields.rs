//! The fields of a run's status: who writes each, which parts of it the controller caches, decides on and reconciles for, and which texts
//! it holds.
//!
//! This is the only list of the fields. Derived from it are the agent's writes, the controller's cache, the length
//! bounds, the redaction of secrets, the rule and message of the admission policy `pawl-status`, and the table of
//! `design/0002-status-ownership.md`.

use std::hash::{Hash, Hasher};

use serde::Serialize;
use serde_json::Value;

use crate::{RunResult, TerraformRunStatus, conditions, names};

/// Who writes a field (`design/0002-status-ownership.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The adopted pod while its attempt is open, otherwise the controller.
    Attempt,
    /// The controller, always.
    Controller,
    /// The agent, in the write that adopts.
    Adoption,
    /// The agent, once per attempt that does not restore a plan.
    Plan,
    /// The agent, in the write that claims.
    Claim,
    /// The agent.
    Agent,
}

impl Owner {
    const ALL: [Self; 6] = [
        Self::Attempt,
        Self::Controller,
        Self::Adoption,
        Self::Plan,
        Self::Claim,
        Self::Agent,
    ];

    /// Names of the fields that this owner writes.
    pub fn fields(self) -> impl Iterator<Item = &'static str> {
        FIELDS
            .iter()
            .filter(move |field| field.owner == self)
            .map(|field| field.name)
    }

    /// The text for the design's table.
    const fn words(self) -> &'static str {
        match self {
            Self::Attempt => "the adopted pod while its attempt is open, otherwise the controller",
            Self::Controller => "the controller",
            Self::Adoption => "the agent, once per attempt number",
            Self::Plan => {
                "the agent, once per attempt (`plan.attempt` ties it to its attempt); never in an attempt that restores one \
                 (`attempt.restores`)"
            }
            Self::Claim => "the agent, once ever",
            Self::Agent => "the agent",
        }
    }
}

/// How long the controller caches a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// Never: decisions do not use it, or read it live.
    Never,
    /// Until the run is finished for good.
    UntilFinished,
    /// As above, and for an Indeterminate run until no evidence of its outcome can arrive any more.
    UntilSettled,
    /// As long as the run exists.
    Always,
}

/// The origin of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// May contain output of code, tool or provider, and therefore a secret.
    Printed,
    /// Composed of words that contain no secret.
    Known,
}

/// A visitor of texts; its arguments are the text, its maximum length in characters, and its origin.
type Visit<'a> = &'a mut dyn FnMut(&mut String, usize, Origin);

/// A field of the status.
pub struct Field {
    /// The name in JSON.
    pub name: &'static str,
    /// Who writes it.
    pub owner: Owner,
    /// How long the controller caches it.
    pub cached: Cached,
    /// `Some` if a decision of the controller depends on the field. The list has the parts that the decision reads; an empty list means the
    /// whole value. Only enums, numbers and digests are listed, because values are compared as encoded, and encoders escape texts
    /// differently.
    pub decides: Option<&'static [&'static str]>,
    trim: fn(&mut TerraformRunStatus, bool),
    copy: fn(&TerraformRunStatus, &mut TerraformRunStatus),
    clear: fn(&mut TerraformRunStatus),
    equals: fn(&TerraformRunStatus, &TerraformRunStatus) -> bool,
    value: fn(&TerraformRunStatus) -> Option<Value>,
    wakes: fn(&TerraformRunStatus, &mut dyn Hasher),
    texts: fn(&mut TerraformRunStatus, Visit),
}

impl Field {
    /// A change of the hashed part triggers a reconcile.
    const fn wakes(self, wakes: fn(&TerraformRunStatus, &mut dyn Hasher)) -> Self {
        Self { wakes, ..self }
    }

    /// A decision of the controller depends on the field, or on these parts of it.
    const fn decides(self, parts: &'static [&'static str]) -> Self {
        Self {
            decides: Some(parts),
            ..self
        }
    }

    /// The function that removes the parts that the controller's cache omits. Its argument tells whether the run is finished for good.
    const fn trims(self, trim: fn(&mut TerraformRunStatus, bool)) -> Self {
        Self { trim, ..self }
    }

    /// Registers texts whose length or content comes from outside.
    const fn texts(self, texts: fn(&mut TerraformRunStatus, Visit)) -> Self {
        Self { texts, ..self }
    }
}

/// A row of a field that triggers no reconcile, on which no decision depends, and that has no text of outside origin.
macro_rules! field {
    ($name:ident, $json:literal, $owner:ident, $cached:ident) => {
        Field {
            name: $json,
            owner: Owner::$owner,
            cached: Cached::$cached,
            decides: None,
            trim: |_, _| {},
            copy: |from, to| to.$name.clone_from(&from.$name),
            clear: |status| reset(&mut status.$name),
            equals: |one, other| one.$name == other.$name,
            value: |status| written(&status.$name),
            wakes: |_, _| {},
            texts: |_, _| {},
        }
    };
}

use Origin::{Known, Printed};

/// All fields.
pub const FIELDS: &[Field] = &[
    field!(phase, "phase", Attempt, Always)
        .wakes(|s, mut h| s.phase.hash(&mut h))
        .decides(&[]),
    field!(result, "result", Attempt, Always)
        .wakes(|s, mut h| s.result.hash(&mut h))
        .decides(&[]),
    field!(message, "message", Attempt, Never)
        .texts(|s, visit| each(&mut s.message, 1024, Printed, visit)),
    field!(next_step, "nextStep", Attempt, Never)
        .texts(|s, visit| each(&mut s.next_step, 1024, Known, visit)),
    field!(advice, "advice", Attempt, Never)
        .texts(|s, visit| each(&mut s.advice, 1024, Known, visit)),
    field!(history, "history", Attempt, Never)
        .texts(|s, visit| each(&mut s.history, 256, Printed, visit)),
    field!(failure, "failure", Attempt, UntilFinished)
        .decides(&["class", "reason"])
        .trims(|s, _| {
            s.failure
                .iter_mut()
                .for_each(|failure| failure.diagnostics = Vec::new());
        })
        .texts(|s, visit| {
            if let Some(failure) = &mut s.failure {
                visit(&mut failure.message, 1024, Printed);
                for diagnostic in &mut failure.diagnostics {
                    visit(&mut diagnostic.severity, 16, Known);
                    visit(&mut diagnostic.summary, 512, Printed);
                    each(&mut diagnostic.detail, 1024, Printed, visit);
                    each(&mut diagnostic.address, 256, Printed, visit);
                    each(&mut diagnostic.file, 512, Printed, visit);
                }
            }
        }),
    field!(journal, "journal", Attempt, Always).texts(|s, visit| {
        if let Some(journal) = &mut s.journal {
            visit(&mut journal.summary, 512, Printed);
            for list in [
                &mut journal.not_recorded,
                &mut journal.uncertain,
                &mut journal.still_recorded,
            ] {
                each(list, 256, Printed, visit);
            }
        }
    }),
    field!(start_time, "startTime", Attempt, Always),
    field!(completion_time, "completionTime", Attempt, Always),
    field!(attempt, "attempt", Controller, Always)
        .wakes(|s, mut h| {
            s.attempt
                .as_ref()
                .map(|attempt| (attempt.number, attempt.open))
                .hash(&mut h);
        })
        .decides(&["number", "open", "podUID", "passedOver"])
        .trims(|s, finished| {
            let settled = s.result != Some(RunResult::Indeterminate) || s.settled.is_some();
            if let Some(attempt) = s.attempt.as_mut().filter(|_| finished) {
                (attempt.image, attempt.former) = (None, Vec::new());
                // The message of its pod may still be the proof.
                attempt.pod_uid = attempt.pod_uid.take().filter(|_| !settled);
            }
        }),
    field!(approval, "approval", Controller, UntilFinished)
        .wakes(|s, mut h| {
            s.approval
                .as_ref()
                .map(|record| (&record.checksum, &record.by, &record.comment))
                .hash(&mut h);
        })
        .decides(&["checksum", "at"]),
    // A decision rests on all of them, each by its type, status, reason and time.
    field!(conditions, "conditions", Controller, Always).trims(|s, finished| {
        if finished {
            s.conditions.retain(|c| c.type_ == conditions::FINISHED);
            s.conditions
                .iter_mut()
                .for_each(|c| c.message = String::new());
            s.conditions.shrink_to_fit();
        }
    }),
    field!(rerun, "rerun", Controller, Always).wakes(|s, mut h| s.rerun.hash(&mut h)),
    field!(recovery, "recovery", Controller, Always),
    field!(settled, "settled", Controller, Always)
        .wakes(|s, mut h| s.settled.is_some().hash(&mut h))
        .decides(&["result"])
        .trims(|s, finished| {
            if let Some(settled) = s.settled.as_mut().filter(|_| finished) {
                settled.message = String::new();
            }
        }),
    field!(lease, "lease", Controller, Always)
        .wakes(|s, mut h| s.lease.as_ref().map(|lease| &lease.name).hash(&mut h))
        .decides(&["stateKey"]),
    field!(lock_release, "lockRelease", Controller, Always).decides(&["id"]),
    field!(
        observed_generation,
        "observedGeneration",
        Controller,
        Always
    ),
    field!(adopted, "adopted", Adoption, UntilSettled)
        .wakes(|s, mut h| {
            s.adopted
                .as_ref()
                .map(|adopted| (adopted.attempt, &adopted.nonce))
                .hash(&mut h);
        })
        .decides(&["attempt", "nonce"]),
    field!(plan, "plan", Plan, UntilFinished)
        .wakes(|s, mut h| {
            s.plan
                .as_ref()
                .map(|plan| (plan.attempt, &plan.checksum))
                .hash(&mut h);
        })
        .decides(&["checksum", "attempt"])
        .trims(|s, _| s.plan.iter_mut().for_each(|plan| plan.changes = Vec::new()))
        .texts(|s, visit| {
            if let Some(plan) = &mut s.plan {
                visit(&mut plan.tool, 64, Known);
                each(&mut plan.changes, 256, Printed, visit);
            }
        }),
    field!(claim, "claim", Claim, UntilSettled)
        .wakes(|s, mut h| s.claim.is_some().hash(&mut h))
        .decides(&["nonce"]),
    field!(progress, "progress", Agent, Never).texts(|s, visit| {
        if let Some(progress) = &mut s.progress {
            each(&mut progress.current, 256, Printed, visit);
        }
    }),
    field!(steps, "steps", Agent, Never),
    field!(state_lock, "stateLock", Agent, Always)
        .wakes(|s, mut h| s.state_lock.as_ref().map(|lock| &lock.id).hash(&mut h))
        .decides(&["id"])
        .texts(|s, visit| {
            if let Some(lock) = &mut s.state_lock {
                visit(&mut lock.id, 128, Known);
                visit(&mut lock.who, 256, Known);
                each(&mut lock.operation, 64, Known, visit);
                each(&mut lock.created, 64, Known, visit);
            }
        }),
    field!(unconfined, "unconfined", Agent, Always),
    field!(failed_hook, "failedHook", Agent, Never).texts(|s, visit| {
        if let Some(hook) = &mut s.failed_hook {
            visit(&mut hook.name, 24, Known);
            visit(&mut hook.message, 512, Printed);
        }
    }),
    field!(outputs, "outputs", Agent, Never).texts(|s, visit| {
        if let Some(outputs) = &mut s.outputs {
            visit(&mut outputs.reason, 64, Known);
            visit(&mut outputs.message, 512, Printed);
            each(outputs.values.values_mut(), 256, Printed, visit);
        }
    }),
];

/// Annotations that a decision of the controller may rest on.
pub const ANNOTATIONS: [&str; 8] = [
    names::APPROVE,
    names::APPROVED_BY,
    names::CANCEL,
    names::DENY,
    names::LIFE,
    names::RERUN,
    names::RECOVER,
    names::ABANDON,
];

fn reset<T: Default>(value: &mut T) {
    *value = T::default();
}

/// The serialized value; `None` for the default, which is omitted.
fn written<T: Default + PartialEq + Serialize>(value: &T) -> Option<Value> {
    if *value == T::default() {
        None
    } else {
        serde_json::to_value(value).ok()
    }
}

fn each<'a>(
    texts: impl IntoIterator<Item = &'a mut String>,
    max: usize,
    origin: Origin,
    visit: Visit,
) {
    texts.into_iter().for_each(|text| visit(text, max, origin));
}

/// Copies the selected fields.
pub fn copy(
    from: &TerraformRunStatus,
    to: &mut TerraformRunStatus,
    which: impl Fn(&Field) -> bool,
) {
    FIELDS
        .iter()
        .filter(|field| which(field))
        .for_each(|field| (field.copy)(from, to));
}

/// Resets the selected fields.
pub fn clear(status: &mut TerraformRunStatus, which: impl Fn(&Field) -> bool) {
    FIELDS
        .iter()
        .filter(|field| which(field))
        .for_each(|field| (field.clear)(status));
}

/// Names of the fields that differ, with the new value; `None` for a removed field.
pub fn changes(
    before: &TerraformRunStatus,
    after: &TerraformRunStatus,
) -> Vec<(&'static str, Option<Value>)> {
    let differing = FIELDS.iter().filter(|field| !(field.equals)(before, after));
    differing
        .map(|field| (field.name, (field.value)(after)))
        .collect()
}

/// Removes the fields, and the parts of them, that the controller's cache omits. Returns whether the run is finished for good.
pub fn trim(status: &mut TerraformRunStatus) -> bool {
    let open = status.attempt.as_ref().is_some_and(|attempt| attempt.open);
    let finished = status.is_terminal()
        && !open
        && conditions::status(&status.conditions, conditions::FINISHED) == Some(true);
    // Proof of how an Indeterminate apply ended may still arrive.
    let settled = status.result != Some(RunResult::Indeterminate) || status.settled.is_some();
    clear(status, |field| match field.cached {
        Cached::Never => true,
        Cached::UntilFinished => finished,
        Cached::UntilSettled => finished && settled,
        Cached::Always => false,
    });
    for field in FIELDS {
        (field.trim)(status, finished);
    }
    finished
}

/// Hashes the parts whose change triggers a reconcile.
pub fn hash_what_wakes(status: &TerraformRunStatus, hasher: &mut impl Hasher) {
    for field in FIELDS {
        (field.wakes)(status, hasher);
    }
}

/// Visits every text whose length or content comes from tools, code or people, with its maximum length in characters and its origin.
pub fn texts(status: &mut TerraformRunStatus, mut visit: impl FnMut(&mut String, usize, Origin)) {
    for field in FIELDS {
        (field.texts)(status, &mut visit);
    }
}

/// File that contains [`policy`] between marks.
pub const POLICY_PATH: &str = "charts/pawl/templates/policies/status.yaml";
/// File that contains [`table`] between marks.
pub const DESIGN_PATH: &str = "design/0002-status-ownership.md";

/// The validation of the policy `pawl-status` that reserves the controller's fields, as lines of YAML.
pub fn policy() -> String {
    let fields: Vec<_> = Owner::Controller.fields().collect();
    let same: Vec<_> = fields
        .iter()
        .map(|field| format!("variables.new.?{field} == variables.old.?{field}"))
        .collect();
    let (last, others) = fields
        .split_last()
        .map_or(("", &[][..]), |(last, others)| (*last, others));
    format!(
        "    - expression: >-\n        variables.control || ({})\n      message: {} and {last} are written by the controller\n      \
         reason: Forbidden\n",
        same.join("\n        && "),
        others.join(", ")
    )
}

/// The table of `design/0002-status-ownership.md`.
pub fn table() -> String {
    let rows = Owner::ALL.map(|owner| {
        let fields: Vec<_> = owner.fields().map(|field| format!("`{field}`")).collect();
        format!("| {} | {} |\n", fields.join(" "), owner.words())
    });
    format!("| fields | writer |\n|---|---|\n{}", rows.concat())
}

#[cfg(test)]
mod tests;
