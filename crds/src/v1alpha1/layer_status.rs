//! The status of a layer.
//!
//! `controller sources` writes `source` (field manager `pawl-sources`), `controller run` everything else.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::phase::RunResult;
use crate::reason::next_step::whole;

/// The status of a layer.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformLayerStatus {
    /// Generation of the spec that was processed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The pending action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LayerState>,
    /// The obstacle that the layer waits for, as one line for people; empty when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub waits_for: Option<String>,
    /// The revision that was planned last, shortened to 12 digits for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub revision: Option<String>,
    /// The result of the last run, for people: `NoChanges`, `Planned +1 ~0 -0`, `Applied +1 ~0 -0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub last_result: Option<String>,
    /// The next command to run, as one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub next_step: Option<String>,
    /// Advice beside the next command, or in its place, as one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub advice: Option<String>,
    /// `Ready`, and Burrito's `IsPlanArtifactUpToDate`, `IsApplyUpToDate`, `IsLastRelevantCommitPlanned`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// The layer's content in its repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<LayerSource>,
    /// The last complete plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_plan: Option<LayerRun>,
    /// The last run after which nothing was left to do: it was applied, or had no changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_apply: Option<LayerRun>,
    /// The plan that waits for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
    /// Drift that was found and not seen resolved since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// Time of the next drift check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_drift_check: Option<Time>,
    /// The run in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub current_run: Option<String>,
    /// Consecutive failed runs, while content and settings are still the desired ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<LayerFailures>,
    /// Settings of its runs with their origin: `PATH=VALUE (layer)`, one per line, without long values; entries of lists as
    /// `variables[NAME]=…`, without values of variables and scripts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 256)))]
    pub effective: Vec<String>,
    /// Stack of the managed state of the last plan; empty when the code stores its state elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub stack: Option<String>,
    /// Workspace of the state that `stack` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 90))]
    pub workspace: Option<String>,
    /// The last handled value of `pawl.run/plan`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub last_handled_plan: Option<String>,
    /// The users named in `pawl.run/requested-by` whose requests are not applied yet, the last one at the end. None of them may approve the
    /// layer's runs where another person has to (four eyes), and of more than 16 no one may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 17), inner(length(max = 512)))]
    pub requested_by: Vec<String>,
    /// Digest of the fields that determine what the layer's runs do, as its last applied run had them: `repository`, `ref`, `path`,
    /// `template`, `remediation`, `deletionPolicy`. `requestedBy` is emptied only while they are the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71))]
    pub applied_spec: Option<String>,
}

/// The pending action for a layer. The names are Burrito's.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum LayerState {
    /// No action.
    Idle,
    /// A plan.
    PlanNeeded,
    /// An apply of the existing plan.
    ApplyNeeded,
    /// A value from a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl TerraformLayerStatus {
    /// Advice and command of the next step, in one line.
    pub fn step(&self) -> Option<String> {
        whole(self.advice.as_deref(), self.next_step.as_deref())
    }
}

impl LayerState {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::PlanNeeded => "PlanNeeded",
            Self::ApplyNeeded => "ApplyNeeded",
            Self::Unknown => "Unknown",
        }
    }
}

/// A layer's content in its repository.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerSource {
    /// Ref and path that this belongs to. After a change of the spec it is determined again.
    #[schemars(length(max = 1400))]
    pub of: String,
    /// The first seen commit with the current relevant content: the one to plan. Its snapshot is stored.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// Digest of everything relevant to the layer at that commit: its directory, local modules, variable files, files that functions
    /// read or that name the tool, and trigger paths. Commits with equal digests are equal to the layer.
    #[schemars(length(max = 71))]
    pub content: String,
    /// The first line of the commit message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub subject: Option<String>,
    /// Why there is nothing to plan, for example that the path does not exist; empty otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub missing: Option<String>,
    /// Trigger paths that match no file, and calls of functions that read a file at a computed path, as `main.tf:3: file(var.path)`: a
    /// commit that changes only such a file causes no plan, unless a trigger path names it. At most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 256)))]
    pub not_followed: Vec<String>,
}

/// A run as recorded in its layer's status.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerRun {
    /// Name of the run.
    #[schemars(length(max = 63))]
    pub run: String,
    /// UID of the run. Another run may have its name later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub uid: Option<String>,
    /// Commit of the run.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// The layer's `status.source.content` when the run was created.
    #[schemars(length(max = 71))]
    pub content: String,
    /// Digest of the settings of the run.
    #[schemars(length(max = 71))]
    pub settings: String,
    /// Cause of the run.
    pub trigger: Trigger,
    /// Result of the run; empty while its plan waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// Digest of the changes that it applied, by address and action; empty if it applied none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub changes: Option<String>,
    /// When its plan was made, or when it was applied.
    pub at: Time,
}

/// The trigger of a layer's run.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, JsonSchema,
)]
pub enum Trigger {
    /// A person, through `pawl.run/plan`.
    Person,
    /// A commit, or changed settings.
    #[default]
    Commit,
    /// The retry of a failed plan.
    Retry,
    /// A scheduled drift check.
    Drift,
    /// The deletion of the layer.
    Deletion,
    /// A value from a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Trigger {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Person => "Person",
            Self::Commit => "Commit",
            Self::Retry => "Retry",
            Self::Drift => "Drift",
            Self::Deletion => "Deletion",
            Self::Unknown => "Unknown",
        }
    }

    /// The trigger with this name.
    pub fn of(word: &str) -> Self {
        [
            Self::Person,
            Self::Commit,
            Self::Retry,
            Self::Drift,
            Self::Deletion,
        ]
        .into_iter()
        .find(|trigger| trigger.as_str() == word)
        .unwrap_or(Self::Unknown)
    }
}

/// A plan that waits for a person.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// Name of the run.
    #[schemars(length(max = 63))]
    pub run: String,
    /// Checksum of the plan, which an approval must contain.
    #[schemars(length(max = 71))]
    pub checksum: String,
    /// Changes of the plan, as `+1 ~0 -0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub summary: Option<String>,
}

/// Drift.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// When it was first found.
    pub since: Time,
    /// The run that found it most recently.
    #[schemars(length(max = 63))]
    pub run: String,
    /// UID of the run. Another run may have its name later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub uid: Option<String>,
    /// Addresses with the paths of differing attributes, as far as there is room; no values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 256)))]
    pub objects: Vec<String>,
}

/// Consecutive failed runs.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerFailures {
    /// Number of runs.
    pub times: u32,
    /// The last failed run.
    #[schemars(length(max = 63))]
    pub run: String,
    /// UID of the run. Another run may have its name later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub uid: Option<String>,
    /// Reason of the failure.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// The beginning of its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub message: Option<String>,
    /// The layer's `status.source.content` when the run was created.
    #[schemars(length(max = 71))]
    pub content: String,
    /// Digest of the settings of the run.
    #[schemars(length(max = 71))]
    pub settings: String,
    /// When it ended.
    pub at: Time,
    /// Time of the next automatic retry; empty when only a commit or a person triggers one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
}
