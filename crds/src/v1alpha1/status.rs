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
    outputs::OutputsStatus,
    phase::{Phase, RunResult},
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

/// The plan that waits, or that was made last.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// The digest a reviewer approves: `sha256:` and 64 hexadecimal digits.
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub checksum: String,
    /// The attempt that made it; a plan changes only with its attempt.
    pub attempt: u32,
    /// Counts in short: `+2 ~0 -1, 1 output`.
    #[schemars(length(max = 160))]
    pub summary: String,
    /// Counts of changes.
    #[serde(flatten)]
    pub counts: Changes,
    /// Tool and version: `OpenTofu 1.10.6`.
    #[schemars(length(max = 64))]
    pub tool: String,
    /// The commit, where the source has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub revision: Option<String>,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// Operating system and architecture: `linux_amd64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub platform: Option<String>,
    /// Digest of what the datastore keeps of it: plan file, lock file and work directory. Empty when the plan lives and dies with
    /// its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub bundle: Option<String>,
    /// Digest of which state the plan is of: backend, without credentials, and workspace. Runs with the same key apply one after
    /// the other, within a namespace and those that share its states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub state_key: Option<String>,
    /// One line a change, destroys first; bounded, the last line says how many more there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 51), inner(length(max = 256)))]
    pub changes: Vec<String>,
}

/// How much a plan changes, in Terraform's words; a replaced resource counts in `replace`, `add` and `destroy`, as the tools count.
///
/// What a release before this one cannot read a plan without is written even when it is 0; all others are left out then.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Changes {
    /// Created, the new halves of replaced ones included.
    pub add: u32,
    /// Updated in place.
    pub change: u32,
    /// Destroyed, the old halves of replaced ones included.
    pub destroy: u32,
    /// Imported.
    pub import: u32,
    /// Replaced.
    pub replace: u32,
    /// Forgotten: removed from the state only.
    pub forget: u32,
    /// Outputs that change.
    pub outputs: u32,
    /// Resources that get another address.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub moved: u32,
    /// Resources changed or deleted outside of the code since the last apply.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drifted: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Changes {
    /// Operations on resources that an apply carries out; a replacement is one, among those that add.
    pub const fn operations(&self) -> u32 {
        self.add + self.change + self.destroy + self.forget + self.import
    }

    /// Counts in short: `+2 ~0 -1`, with further counts only where there are any; at most 160 characters.
    pub fn summary(&self) -> String {
        let mut text = format!("+{} ~{} -{}", self.add, self.change, self.destroy);
        for (count, word) in [
            (self.replace, "replaced"),
            (self.import, "imported"),
            (self.forget, "forgotten"),
            (self.moved, "moved"),
            (self.outputs, if self.outputs == 1 { "output" } else { "outputs" }),
            (self.drifted, "drifted"),
        ] {
            if count > 0 {
                text = format!("{text}, {count} {word}");
            }
        }
        text
    }
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

/// The newest attempt.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Counts from 1.
    pub number: u32,
    /// Name of its pod.
    #[schemars(length(max = 63))]
    pub pod_name: String,
    /// Whether its pod may still write.
    pub open: bool,
    /// When it was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Time>,
    /// When it was closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Time>,
    /// Attempts so far that count against `spec.retry.limit`, this one included.
    #[serde(default)]
    pub tries: u32,
    /// The attempt whose plan this one takes from the datastore and applies, instead of making one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<u32>,
    /// Image of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
    /// Node of its pod, once its apply runs or the node is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,
    /// Boot ID of that node when it was lost.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
}

/// The process that works for an attempt; written once per attempt number.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Adopted {
    /// The attempt's number.
    pub attempt: u32,
    /// UID of its pod.
    #[serde(rename = "podUID")]
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// Drawn by the process at its start and kept in memory only: 32 hexadecimal digits.
    #[schemars(length(min = 32, max = 32))]
    pub nonce: String,
}

/// The one write that permits the one apply.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The plan that is applied.
    #[schemars(length(min = 71, max = 71))]
    pub checksum: String,
    /// The attempt that applies it.
    pub attempt: u32,
    /// UID of its pod.
    #[serde(rename = "podUID")]
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// The process that applies it.
    #[schemars(length(min = 32, max = 32))]
    pub nonce: String,
    /// When.
    pub at: Time,
}

/// How an apply ended whose run had been given up as Indeterminate.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settled {
    /// The result that the process which held the claim reported.
    pub result: RunResult,
    /// What it said.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// When it was recorded.
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
    /// `source`, `init`, `workspace`, `plan`, `show`, `apply`, `force-unlock`.
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

/// The class of a failure decides whether it is retried.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum FailureClass {
    /// Their code or the run's spec: never retried.
    Configuration,
    /// Missing, wrong or expired credentials.
    Credentials,
    /// The state is locked; the message says by whom and since when.
    StateLocked,
    /// The state changed since the plan.
    StalePlan,
    /// Refused by a policy or by rights.
    Policy,
    /// Network, throttling, registry: retried before the claim.
    Transient,
    /// A phase passed its deadline.
    Timeout,
    /// A checksum or signature does not match, or a state is damaged.
    Integrity,
    /// Eviction, SIGTERM, out of memory, a lost pod: retried before the claim.
    Interrupted,
    /// A fault of Pawl.
    Internal,
    /// A word of a newer version. It is read, and never written in place of that word.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl FailureClass {
    /// Whether an attempt that failed so before the claim may be followed by another.
    pub const fn is_retried(self) -> bool {
        match self {
            // A failure that does not end its run is one that is retried, whatever it is called.
            Self::Transient | Self::Interrupted | Self::Unknown => true,
            Self::Configuration
            | Self::Credentials
            | Self::StateLocked
            | Self::StalePlan
            | Self::Policy
            | Self::Timeout
            | Self::Integrity
            | Self::Internal => false,
        }
    }
}

/// Whether a failed run changed anything.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum Changed {
    /// Nothing was changed.
    #[default]
    None,
    /// Some of the plan was carried out.
    Some,
    /// Nobody can say; also what a word of a newer version is read as.
    #[serde(other)]
    Unknown,
}

/// What went wrong.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Its class.
    pub class: FailureClass,
    /// One word for it, from [`crate::reason`].
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z]*$"))]
    pub reason: String,
    /// What failed, on what; one line.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Whether anything was changed.
    pub changes: Changed,
    /// What the tool said, errors first; at most 5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub diagnostics: Vec<Diagnostic>,
}

/// A diagnostic of the tool.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostic {
    /// `error` or `warning`.
    #[schemars(length(max = 16))]
    pub severity: String,
    /// What it is about.
    #[schemars(length(max = 512))]
    pub summary: String,
    /// The tool's explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub detail: Option<String>,
    /// Address of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub address: Option<String>,
    /// File, relative to the stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub file: Option<String>,
    /// Line in it, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_summary_names_what_there_is_and_fits() {
        let counts = |value: serde_json::Value| {
            let mut whole = json!({"add": 0, "change": 0, "destroy": 0, "import": 0, "replace": 0, "forget": 0, "outputs": 0});
            whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            serde_json::from_value::<Changes>(whole).unwrap()
        };
        for (value, text) in [
            (json!({}), "+0 ~0 -0"),
            (json!({"outputs": 1}), "+0 ~0 -0, 1 output"),
            (json!({"outputs": 2}), "+0 ~0 -0, 2 outputs"),
            (json!({"moved": 1}), "+0 ~0 -0, 1 moved"),
            (json!({"import": 1, "change": 1}), "+0 ~1 -0, 1 imported"),
            (
                json!({"add": 2, "destroy": 1, "replace": 1, "forget": 3, "drifted": 4}),
                "+2 ~0 -1, 1 replaced, 3 forgotten, 4 drifted",
            ),
        ] {
            assert_eq!(counts(value).summary(), text);
        }
        let most = u32::MAX;
        let all = Changes {
            add: most,
            change: most,
            destroy: most,
            import: most,
            replace: most,
            forget: most,
            outputs: most,
            moved: most,
            drifted: most,
        };
        assert!(all.summary().len() <= 160, "{}", all.summary());
    }

    #[test]
    fn counts_that_are_newer_are_left_out_when_they_are_zero() {
        let written = serde_json::to_value(Changes { outputs: 1, ..Changes::default() }).unwrap();
        let first = json!({"add": 0, "change": 0, "destroy": 0, "import": 0, "replace": 0, "forget": 0, "outputs": 1});
        assert_eq!(written, first, "the release before reads this and nothing less");
        let written = serde_json::to_value(Changes { moved: 1, drifted: 2, ..Changes::default() }).unwrap();
        assert_eq!((&written["moved"], &written["drifted"]), (&json!(1), &json!(2)));
    }
}
