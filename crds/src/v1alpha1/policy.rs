//! How a run may proceed: approval, deadlines, retries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::Span;

/// Who lets a plan be applied.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum ApprovalMode {
    /// A person, by the plan's checksum.
    #[default]
    Manual,
    /// Nobody: the plan is applied at once. Creating such a run needs the verb `autoapprove`.
    Automatic,
    /// A word of a newer version: nothing is begun.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// How a plan with changes comes to be applied.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// Who lets the plan be applied. Default: `Manual`.
    #[serde(default)]
    pub mode: ApprovalMode,
    /// How long the pod is kept for an approval. Without a datastore it has no effect: the pod is kept until `expiresAfter`.
    /// Default: `5m`; at most 24h.
    #[serde(default = "hold_for")]
    pub hold_for: Span,
    /// How long a plan may wait for an approval before the run ends as Expired. Default: `72h`; at least 1s, at most 720h.
    #[serde(default = "expires_after")]
    pub expires_after: Span,
    /// Whether a plan may be applied although a Secret or ConfigMap that the run takes values from has changed since the plan.
    /// Otherwise, as by default, the plan is stale then. The values of variables are those of the plan in either case.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_rotation: bool,
}

impl Default for Approval {
    fn default() -> Self {
        Self { mode: ApprovalMode::Manual, hold_for: hold_for(), expires_after: expires_after(), allow_rotation: false }
    }
}

/// The longest time each phase may take; at least 1 s, at most 24 h each.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// From the creation of an attempt's pod until its agent reports. Default: `10m`; at least 1s, at most 24h.
    #[serde(default = "start")]
    pub start: Span,
    /// Setup: source, tool, variables. Default: `5m`; at least 1s, at most 24h.
    #[serde(default = "setup")]
    pub setup: Span,
    /// `init`. Default: `10m`; at least 1s, at most 24h.
    #[serde(default = "init")]
    pub init: Span,
    /// `plan`, its reading included. Default: `1h`; at least 1s, at most 24h.
    #[serde(default = "plan")]
    pub plan: Span,
    /// `apply`. Default: `6h`; at least 1s, at most 24h.
    #[serde(default = "apply")]
    pub apply: Span,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { start: start(), setup: setup(), init: init(), plan: plan(), apply: apply() }
    }
}

/// How often an attempt that failed for a transient reason, or died, before the claim is followed by another.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Retries after the first attempt, 10 s after it, doubling to 5 min. Default: `3`; at most 10.
    #[serde(default = "limit")]
    #[schemars(range(min = 0, max = 10))]
    pub limit: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self { limit: limit() }
    }
}

const fn hold_for() -> Span {
    Span::minutes(5)
}
const fn expires_after() -> Span {
    Span::hours(72)
}
const fn start() -> Span {
    Span::minutes(10)
}
const fn setup() -> Span {
    Span::minutes(5)
}
const fn init() -> Span {
    Span::minutes(10)
}
const fn plan() -> Span {
    Span::hours(1)
}
const fn apply() -> Span {
    Span::hours(6)
}
const fn limit() -> u32 {
    3
}
