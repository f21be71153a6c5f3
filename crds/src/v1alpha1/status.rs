//! What a run says of itself.
//!
//! Each field has one writer at a time: [`crate::fields`] says which (`design/0002-status-ownership.md`).

use std::collections::BTreeMap;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    attempt::{Adopted, Attempt, Claim, Settled},
    failure::Failure,
    hooks::FailedHook,
    outputs::OutputsStatus,
    phase::{Phase, RunResult},
    plan::PlanStatus,
};

/// Where a run is and how it went.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRunStatus {
    /// Where the run is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// How it ended; empty until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// What is going on, for people; one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// The one command to run next, for people; one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub next_step: Option<String>,
    /// What happened, for people: one line a phase, with time and duration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 48), inner(length(max = 256)))]
    pub history: Vec<String>,
    /// When the first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// The approval in force; frozen by the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalRecord>,
    /// The newest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// The process that works for the newest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Adopted>,
    /// The one write that permits the one apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// How far the tool is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The commands that ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub steps: Vec<Step>,
    /// What went wrong: of the run when it has ended, otherwise of the newest attempt; while its pod does not start, why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The last hook that failed without ending the run: one after the apply or at the end, or one that lets its phase go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_hook: Option<FailedHook>,
    /// What became of the objects of an apply that did not end well; of the open attempt's pod, otherwise the controller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<Journal>,
    /// What became of the outputs that `spec.outputs` asks for; none before the end of a run that publishes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<OutputsStatus>,
    /// Who holds the lock of the state, when that keeps this run waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lock: Option<StateLock>,
    /// Code of the stack was not confined in some attempt, for want of Landlock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfined: bool,
    /// The controller's word that a state lock was left by an ended process of ours and may be released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_release: Option<LockRelease>,
    /// The lease on the state that this run applies to; without it there is no claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<StateLease>,
    /// Name of the run that answered `pawl.run/recover=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 52))]
    pub recovery: Option<String>,
    /// Proof of how an Indeterminate apply ended, when it arrived after all; recorded once, phase and result stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Settled>,
    /// Name of the run that answered `pawl.run/rerun=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 52))]
    pub rerun: Option<String>,
    /// Generation of the spec that this status is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Planned Approved StateLeased Succeeded Finished Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
}

/// The approval in force.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRecord {
    /// The plan that was approved; none in Automatic mode, where the claim is the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 71, max = 71))]
    pub checksum: Option<String>,
    /// Who approved, or `automatic`.
    #[schemars(length(max = 512))]
    pub by: String,
    /// What he said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub comment: Option<String>,
    /// When the controller recorded it.
    pub at: Time,
}

/// How far the tool is.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Resources that are done.
    pub done: u32,
    /// Resources in all; 0 when it is not known.
    pub total: u32,
    /// Address of a resource that is worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub current: Option<String>,
    /// Since when nothing has happened, once that is longer than a minute: no line of output and no event of the tool, besides its word
    /// that it still waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_since: Option<Time>,
}

/// What became of the objects of an apply that did not end well: the tool's own events, compared with the state. Lines are
/// `ADDRESS` or `ADDRESS id=ID`, with what was begun in brackets where the end is not known: `ADDRESS (create)`. Each list is bounded, its
/// last line then says how many more there are, and the datastore has all.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    /// In short: `3 created and not recorded, 1 uncertain; state serial 4`, or why the state could not be read.
    #[schemars(length(max = 512))]
    pub summary: String,
    /// Whether the events could be compared with the state.
    pub compared: bool,
    /// Objects that were created and are in the state.
    pub recorded: u32,
    /// Objects that were created and are not in the state: a recovery run imports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), inner(length(max = 256)))]
    pub not_recorded: Vec<String>,
    /// Objects whose creation, change or destruction was begun, and whose end nobody saw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), inner(length(max = 256)))]
    pub uncertain: Vec<String>,
    /// Objects that were destroyed and are still in the state: the next plan's refresh finds them gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), inner(length(max = 256)))]
    pub still_recorded: Vec<String>,
}

/// The lock of a state, as its holder describes itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateLock {
    /// The lock's ID.
    #[schemars(length(max = 128))]
    pub id: String,
    /// `user@host` of the holder; the host of a pod of ours is its name.
    #[schemars(length(max = 256))]
    pub who: String,
    /// What the holder does: `OperationTypeApply`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub operation: Option<String>,
    /// Since when, as the holder wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub created: Option<String>,
}

/// The controller's word that a lock may be released: its holder's pod is confirmed gone, and its attempt closed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LockRelease {
    /// The lock's ID; no other lock is meant.
    #[schemars(length(max = 128))]
    pub id: String,
    /// Whose it was: `NAMESPACE/RUN, attempt 1`.
    #[schemars(length(max = 256))]
    pub holder: String,
}

/// The lease on a state.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateLease {
    /// The state: equal to `plan.stateKey` of the run that may claim.
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub state_key: String,
    /// Name of the Lease object in the controller's namespace.
    #[schemars(length(max = 63))]
    pub name: String,
    /// When it was taken.
    pub at: Time,
}

/// A command that ran.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// `source`, `init`, `workspace`, `plan`, `show`, `apply`, `force-unlock`, or `hook` and the name of one.
    #[schemars(length(max = 32))]
    pub name: String,
    /// The attempt it belongs to.
    pub attempt: u32,
    /// When it was started.
    pub started_at: Time,
    /// When it ended; empty while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Its exit code; 128 and the signal's number when a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What a newer version says of it besides: the list is written whole, and holds what earlier attempts wrote.
    #[serde(flatten)]
    #[schemars(skip)]
    pub newer: BTreeMap<String, serde_json::Value>,
}

impl TerraformRunStatus {
    /// Whether the run has ended.
    pub fn is_terminal(&self) -> bool {
        self.phase.is_some_and(Phase::is_terminal)
    }
}

/// Rounded to whole seconds, as the API server stores times.
pub fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
