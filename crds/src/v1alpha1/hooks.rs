//! Scripts around the phases of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::KeyRef;

/// When a hook runs.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema,
)]
pub enum HookWhen {
    /// Before the source is fetched, in the home directory.
    BeforeSetup,
    /// After source and tool are in place.
    AfterSetup,
    /// Before `init`.
    BeforeInit,
    /// After `init`.
    AfterInit,
    /// Before `plan`.
    BeforePlan,
    /// After `plan`, before the plan's checksum is computed.
    AfterPlan,
    /// After the claim of a run with `operation: Apply`, once.
    BeforeApply,
    /// After such a run is applied and its result is stored outside the pod.
    AfterApply,
    /// After the claim of a run with `operation: Destroy`, once.
    BeforeDestroy,
    /// After such a run has destroyed and its result is stored outside the pod.
    AfterDestroy,
    /// At the end of each attempt, with any result.
    Always,
    /// A value from a newer version; nothing starts.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl HookWhen {
    /// The name in the API.
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

    /// Whether its exports may set variables of the stack: only before the plan.
    pub const fn is_before_plan(self) -> bool {
        matches!(
            self,
            Self::BeforeSetup
                | Self::AfterSetup
                | Self::BeforeInit
                | Self::AfterInit
                | Self::BeforePlan
        )
    }
}

/// The effect of a failing hook on its phase.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum OnFailure {
    /// The phase fails. After an apply and at the end of an attempt, the failure is only recorded in the status.
    #[default]
    Fail,
    /// The failure is recorded in the status, and the phase continues.
    Continue,
    /// A value from a newer version; nothing starts.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// A script that runs before or after a phase. Exactly one of `inline`, `configMapKeyRef` and `path`. Its content is
/// fixed in phase Setup and is part of the approval.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Name of lower-case letters, digits and `-`; at most 24 characters. Its step in the status is `hook NAME`.
    #[schemars(
        length(min = 1, max = 24),
        regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    )]
    pub name: String,
    /// When it runs.
    pub when: HookWhen,
    /// The script; at most 65536 characters. Its `#!` line selects the interpreter; the default is `/bin/sh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub inline: Option<String>,
    /// A key of a ConfigMap in the run's namespace with the script; at most 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    /// A file of the source, relative to the stack's directory. It may be elsewhere in the source, as in
    /// `../scripts/notify.sh`. Not available for `BeforeSetup`. At most 256 KiB; the path at most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: Option<String>,
    /// The effect of a failure on the phase. Default: `Fail`.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// A hook that failed without ending its run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedHook {
    /// Name of the hook.
    #[schemars(length(max = 24))]
    pub name: String,
    /// When it ran.
    pub when: HookWhen,
    /// The failure; one line.
    #[schemars(length(max = 512))]
    pub message: String,
}
