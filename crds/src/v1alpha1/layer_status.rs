//! What a layer says of itself.
//!
//! `source` is written by `controller sources` (field manager `pawl-sources`), all else by `controller run`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::phase::RunResult;

/// Where a layer is.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformLayerStatus {
    /// Generation of the spec that was looked at last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LayerState>,
    /// What it waits for, for people; one line, empty when for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub waits_for: Option<String>,
    /// The revision that was planned last, as far as people need it: its first 12 digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub revision: Option<String>,
    /// How the last run ended, for people: `NoChanges`, `Planned +1 ~0 -0`, `Applied +1 ~0 -0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub last_result: Option<String>,
    /// The one command to run next, for people; one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub next_step: Option<String>,
    /// `Ready`, and Burrito's `IsPlanArtifactUpToDate`, `IsApplyUpToDate`, `IsLastRelevantCommitPlanned`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// What the repository has for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<LayerSource>,
    /// The last plan that was made whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_plan: Option<LayerRun>,
    /// The last run that left nothing to be done: it was applied, or had no changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_apply: Option<LayerRun>,
    /// The plan that waits for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
    /// Drift that was found, and is still there as far as anybody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// When drift is looked for next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_drift_check: Option<Time>,
    /// The run that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub current_run: Option<String>,
    /// Runs that failed one after the other, as long as what they were made of is what is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<LayerFailures>,
    /// Settings that its runs are made with, and where each is from: `PATH=VALUE (layer)`, one a line, without values that are long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 256)))]
    pub effective: Vec<String>,
    /// Stack of the managed state that its last plan was of; none where the code keeps its state elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub stack: Option<String>,
    /// The `pawl.run/plan` that was answered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub last_handled_plan: Option<String>,
}

/// What is to be done for a layer. The words are Burrito's.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum LayerState {
    /// Nothing.
    Idle,
    /// A plan.
    PlanNeeded,
    /// An apply of the plan that there is.
    ApplyNeeded,
    /// A word of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl LayerState {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::PlanNeeded => "PlanNeeded",
            Self::ApplyNeeded => "ApplyNeeded",
            Self::Unknown => "Unknown",
        }
    }
}

/// What the repository has for a layer.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerSource {
    /// Ref and path that this is of: after a change of the spec it is looked for anew.
    #[schemars(length(max = 1400))]
    pub of: String,
    /// The first commit that was seen with what is relevant as it is now: the one to plan. Its bundle is stored.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// Digest over all that is relevant to the layer at that commit: its directory, local modules, variable files and trigger paths.
    /// Two commits of one digest are one to the layer.
    #[schemars(length(max = 71))]
    pub content: String,
    /// The first line of the commit's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub subject: Option<String>,
    /// Why there is nothing to plan: the path is not there; empty otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub missing: Option<String>,
}

/// A run as its layer remembers it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerRun {
    /// Its name.
    #[schemars(length(max = 63))]
    pub run: String,
    /// The commit that it was made of.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// `status.source.content` that it was made of.
    #[schemars(length(max = 71))]
    pub content: String,
    /// Digest of the settings that it was made with.
    #[schemars(length(max = 71))]
    pub settings: String,
    /// What set it off.
    pub trigger: Trigger,
    /// How it ended; empty while its plan waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// When its plan was made, or when it was applied.
    pub at: Time,
}

/// What sets off a run of a layer.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, JsonSchema)]
pub enum Trigger {
    /// A person, by `pawl.run/plan`.
    Person,
    /// A commit, or other settings.
    #[default]
    Commit,
    /// A plan that failed is made again.
    Retry,
    /// The time to look for drift.
    Drift,
    /// The layer is deleted.
    Deletion,
    /// A word of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Trigger {
    /// The word in the API.
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

    /// The trigger of a word.
    pub fn of(word: &str) -> Self {
        [Self::Person, Self::Commit, Self::Retry, Self::Drift, Self::Deletion]
            .into_iter()
            .find(|trigger| trigger.as_str() == word)
            .unwrap_or(Self::Unknown)
    }
}

/// A plan that waits for a person.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// Its run.
    #[schemars(length(max = 63))]
    pub run: String,
    /// Its checksum, which an approval names.
    #[schemars(length(max = 71))]
    pub checksum: String,
    /// Its changes, as `+1 ~0 -0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub summary: Option<String>,
}

/// Drift that was found.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// When it was first found.
    pub since: Time,
    /// The run that found it last.
    #[schemars(length(max = 63))]
    pub run: String,
    /// Addresses, with the paths of the attributes that differ, as far as there is room; no values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 256)))]
    pub objects: Vec<String>,
}

/// Runs that failed one after the other.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerFailures {
    /// How many.
    pub times: u32,
    /// The run that failed last.
    #[schemars(length(max = 63))]
    pub run: String,
    /// Its reason.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// `status.source.content` that it was made of.
    #[schemars(length(max = 71))]
    pub content: String,
    /// Digest of the settings that it was made with.
    #[schemars(length(max = 71))]
    pub settings: String,
    /// When it ended.
    pub at: Time,
    /// When the next is made by itself; empty when a commit or a person has to ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
}
