//! Scripts around the phases of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::KeyRef;

/// When a hook runs.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
pub enum HookWhen {
    /// Before the source is fetched, in the home directory.
    BeforeSetup,
    /// When source and tool are there.
    AfterSetup,
    /// Before `init`.
    BeforeInit,
    /// After `init`.
    AfterInit,
    /// Before `plan`.
    BeforePlan,
    /// After `plan`, before the plan's checksum is made.
    AfterPlan,
    /// After the claim of a run with `operation: Apply`, once.
    BeforeApply,
    /// When such a run has been applied, and its result is kept outside of the pod.
    AfterApply,
    /// After the claim of a run with `operation: Destroy`, once.
    BeforeDestroy,
    /// When such a run has destroyed, and its result is kept outside of the pod.
    AfterDestroy,
    /// At the end of each attempt, however it ends.
    Always,
    /// A word of a newer version: nothing is begun.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl HookWhen {
    /// The word that is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeSetup => "BeforeSetup",
            Self::AfterSetup => "AfterSetup",
            Self::BeforeInit => "BeforeInit",
            Self::AfterInit => "AfterInit",
            Self::BeforePlan => "BeforePlan",
            Self::AfterPlan => "AfterPlan",
            Self::BeforeApply => "BeforeApply",
            Self::AfterApply => "AfterApply",
            Self::BeforeDestroy => "BeforeDestroy",
            Self::AfterDestroy => "AfterDestroy",
            Self::Always => "Always",
            Self::Unknown => "Unknown",
        }
    }

    /// Whether what it hands over may be a variable of the stack: only until the plan is made.
    pub const fn is_before_plan(self) -> bool {
        matches!(self, Self::BeforeSetup | Self::AfterSetup | Self::BeforeInit | Self::AfterInit | Self::BeforePlan)
    }
}

/// What a hook that fails does to its phase.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum OnFailure {
    /// The phase fails. After an apply, and at the end, the status says so and nothing else does.
    #[default]
    Fail,
    /// The status says so, and the phase goes on.
    Continue,
    /// A word of a newer version: nothing is begun.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// A script that runs before or after a phase. Exactly one of `inline`, `configMapKeyRef` and `path`; its bytes are fixed at Setup, and
/// are a part of what is approved.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Name, of small letters, digits and `-`; at most 24 characters. Its step in the status is `hook NAME`.
    #[schemars(length(min = 1, max = 24), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub name: String,
    /// When it runs.
    pub when: HookWhen,
    /// The script itself; at most 65536 characters. Its `#!` line counts; without one it is run by `/bin/sh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub inline: Option<String>,
    /// A key of a ConfigMap of the run's namespace that holds the script; at most 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    /// A file of the source, relative to the stack's directory; it may lie elsewhere in the source, as in `../scripts/notify.sh`, and is
    /// not there yet `BeforeSetup`. At most 256 KiB; the path at most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: Option<String>,
    /// What a failure does to the phase. Default: `Fail`.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// A hook that failed and did not end its run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedHook {
    /// Its name.
    #[schemars(length(max = 24))]
    pub name: String,
    /// When it ran.
    pub when: HookWhen,
    /// How it failed; one line.
    #[schemars(length(max = 512))]
    pub message: String,
}
