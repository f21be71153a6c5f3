//! The status of a run.
//!
//! Each field has one writer at a time, listed in [`crate::fields`] (`design/0002-status-ownership.md`).

use std::collections::BTreeMap;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reason::next_step::whole;

use super::{
    attempt::{Adopted, Attempt, Claim, Settled},
    failure::Failure,
    hooks::FailedHook,
    outputs::OutputsStatus,
    phase::{Phase, RunResult},
    plan::PlanStatus,
};

/// The progress and the result of a run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRunStatus {
    /// The current phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The result; empty until the run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// The current activity, as one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// The next command to run, as one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub next_step: Option<String>,
    /// Advice beside the next command, or in its place, as one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub advice: Option<String>,
    /// Past events for people: one line per phase, with time and duration.
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
    /// The current approval; frozen by the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalRecord>,
    /// The newest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// The process of the newest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Adopted>,
    /// The record that permits the run's only apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// The progress of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The executed commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub steps: Vec<Step>,
    /// The failure: of the run when it has ended, otherwise of the newest attempt; while its pod does not start, the
    /// reason for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The last hook that failed without ending the run: one after the apply, at the end of an attempt, or with
    /// `onFailure: Continue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_hook: Option<FailedHook>,
    /// The effect on the objects of an apply that failed. Written by the open attempt's pod, otherwise by the
    /// controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<Journal>,
    /// The result of publishing `spec.outputs`; empty before the end of a run that publishes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<OutputsStatus>,
    /// The holder of the state's lock, while this run waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lock: Option<StateLock>,
    /// Whether code of the stack ran unconfined in some attempt because the node lacks Landlock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfined: bool,
    /// The controller's permission to release a state lock that an ended process of Pawl left behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_release: Option<LockRelease>,
    /// The lease on the state that this run applies to, required for the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<StateLease>,
    /// Name of the run created for `pawl.run/recover=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 52))]
    pub recovery: Option<String>,
    /// Evidence of the outcome of an Indeterminate apply, if it arrives later. Recorded once; phase and result do not
    /// change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Settled>,
    /// Name of the run created for `pawl.run/rerun=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 52))]
    pub rerun: Option<String>,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Planned Approved StateLeased Succeeded Finished Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
}

/// The current approval.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRecord {
    /// The approved plan; empty in Automatic mode, where the claim is the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 71, max = 71))]
    pub checksum: Option<String>,
    /// The approver, or `automatic`.
    #[schemars(length(max = 512))]
    pub by: String,
    /// The approver's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub comment: Option<String>,
    /// When the controller recorded it.
    pub at: Time,
}

/// The progress of the tool.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Number of finished resources.
    pub done: u32,
    /// Total number of resources; 0 when unknown.
    pub total: u32,
    /// Address of a resource in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub current: Option<String>,
    /// Start of a period of inactivity longer than one minute: no output line and no event of the tool, except its
    /// reports that it still waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_since: Option<Time>,
}

/// The effect on the objects of an apply that failed: the tool's own events, compared with the state. Lines are
/// `ADDRESS` or `ADDRESS id=ID`, followed by the action in brackets when its end is unknown: `ADDRESS (create)`. Each
/// list is bounded and its last line counts those left out; the datastore has the complete list.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    /// In short: `3 created and not recorded, 1 uncertain; state serial 4`, or why the state could not be read.
    #[schemars(length(max = 512))]
    pub summary: String,
    /// Whether the events were compared with the state.
    pub compared: bool,
    /// Number of objects that were created and are in the state.
    pub recorded: u32,
    /// Objects that were created and are not in the state. A recovery run imports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), inner(length(max = 256)))]
    pub not_recorded: Vec<String>,
    /// Objects whose creation, change or destruction was begun, with an unknown end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), inner(length(max = 256)))]
    pub uncertain: Vec<String>,
    /// Objects that were destroyed and are still in the state. The next plan's refresh detects this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), inner(length(max = 256)))]
    pub still_recorded: Vec<String>,
}

/// The lock of a state, as described by its holder.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateLock {
    /// The lock's ID.
    #[schemars(length(max = 128))]
    pub id: String,
    /// `user@host` of the holder; for a pod of Pawl, the host is the pod's name.
    #[schemars(length(max = 256))]
    pub who: String,
    /// The holder's operation: `OperationTypeApply`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub operation: Option<String>,
    /// When the lock was taken, as written by the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub created: Option<String>,
}

/// The controller's permission to release a lock: its holder's pod is confirmed gone, and its attempt is closed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LockRelease {
    /// The lock's ID. The permission applies to no other lock.
    #[schemars(length(max = 128))]
    pub id: String,
    /// The former holder: `NAMESPACE/RUN, attempt 1`.
    #[schemars(length(max = 256))]
    pub holder: String,
}

/// The lease on a state.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateLease {
    /// The state's key; equal to `plan.stateKey` of the run that may claim.
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub state_key: String,
    /// Name of the Lease object in the controller's namespace.
    #[schemars(length(max = 63))]
    pub name: String,
    /// When it was taken.
    pub at: Time,
}

/// An executed command.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// `source`, `init`, `workspace`, `plan`, `show`, `apply`, `force-unlock`, or `hook` followed by the hook's name.
    #[schemars(length(max = 32))]
    pub name: String,
    /// Number of its attempt.
    pub attempt: u32,
    /// When it was started.
    pub started_at: Time,
    /// When it ended; empty while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Exit code of the command; 128 plus the signal number when a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Fields of a newer version. The list is written as a whole, including the entries of earlier attempts, so unknown
    /// fields must be preserved.
    #[serde(flatten)]
    #[schemars(skip)]
    pub newer: BTreeMap<String, serde_json::Value>,
}

impl TerraformRunStatus {
    /// Advice and command of the next step, in one line.
    pub fn step(&self) -> Option<String> {
        whole(self.advice.as_deref(), self.next_step.as_deref())
    }

    /// Whether the run has ended.
    pub fn is_terminal(&self) -> bool {
        self.phase.is_some_and(Phase::is_terminal)
    }
}

/// Truncates to whole seconds, as the API server stores times.
pub fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
