//! How a run may proceed: approval, deadlines, retries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{phase::Phase, plan::Changes};
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

/// Which plans of an Automatic run are applied without a person; any other waits for one, as in a Manual run.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutomaticWhen {
    /// The most objects that may be destroyed, those apart that are replaced. Default: `0`.
    #[serde(default)]
    pub max_destroy: u32,
    /// The most objects that may be replaced. Default: `0`.
    #[serde(default)]
    pub max_replace: u32,
}

/// How a plan with changes comes to be applied.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// Who lets the plan be applied. Default: `Manual`.
    #[serde(default)]
    pub mode: ApprovalMode,
    /// With mode `Automatic`: which plans are applied without a person. Default: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic_when: Option<AutomaticWhen>,
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
        Self {
            mode: ApprovalMode::Manual,
            automatic_when: None,
            hold_for: hold_for(),
            expires_after: expires_after(),
            allow_rotation: false,
        }
    }
}

impl Approval {
    /// Whether a plan with these changes is applied without a person. The admission policy asks the same of a claim.
    pub fn is_automatic_for(&self, changes: &Changes) -> bool {
        let destroyed = changes.destroy.saturating_sub(changes.replace);
        self.mode == ApprovalMode::Automatic
            && self.automatic_when.is_none_or(|most| destroyed <= most.max_destroy && changes.replace <= most.max_replace)
    }

    /// Who lets the plan be applied of a run in that phase: the plan of an Automatic run waits only where it is not harmless.
    pub fn mode_in(&self, phase: Option<Phase>) -> ApprovalMode {
        match (self.mode, phase) {
            (ApprovalMode::Automatic, Some(Phase::AwaitingApproval)) => ApprovalMode::Manual,
            (mode, _) => mode,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use ApprovalMode::{Automatic, Manual};

    #[test]
    fn only_what_is_within_its_bounds_needs_no_person() {
        let approval = |mode, automatic_when| Approval { mode, automatic_when, ..Approval::default() };
        let bounds = |max_destroy, max_replace| Some(AutomaticWhen { max_destroy, max_replace });
        let changes = |add, destroy, replace| Changes { add, destroy, replace, ..Changes::default() };
        let rows = [
            (Manual, None, changes(1, 0, 0), false),
            (Manual, bounds(9, 9), changes(1, 0, 0), false),
            (Automatic, None, changes(0, 9, 3), true),
            (Automatic, bounds(0, 0), changes(5, 0, 0), true),
            (Automatic, bounds(0, 0), changes(0, 1, 0), false),
            (Automatic, bounds(0, 0), changes(1, 1, 1), false),
            (Automatic, bounds(0, 1), changes(1, 1, 1), true),
            (Automatic, bounds(1, 0), changes(1, 1, 1), false),
            (Automatic, bounds(1, 1), changes(1, 3, 1), false),
        ];
        for (mode, automatic_when, changes, is_automatic) in rows {
            assert_eq!(approval(mode, automatic_when).is_automatic_for(&changes), is_automatic, "{automatic_when:?} {changes:?}");
        }
    }
}
