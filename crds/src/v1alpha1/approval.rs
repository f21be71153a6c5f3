//! Rules for the progress of a run: approval, deadlines, retries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{phase::Phase, plan::Changes};
use crate::duration::Span;

/// Who approves a plan.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum ApprovalMode {
    /// A person, with the plan's checksum.
    #[default]
    Manual,
    /// Nobody: the plan is applied immediately. Creating such a run requires the verb `autoapprove`.
    Automatic,
    /// A value from a newer version; nothing starts.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Which plans of an Automatic run are applied without a person. Any other plan waits for approval, as in a Manual run.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutomaticWhen {
    /// Maximum number of destroyed objects, not counting replaced ones. Default: `0`.
    #[serde(default)]
    pub max_destroy: u32,
    /// Maximum number of replaced objects. Default: `0`.
    #[serde(default)]
    pub max_replace: u32,
    /// Maximum number of invoked actions (Terraform 1.14 and later). Default: `0`.
    #[serde(default)]
    pub max_invoke: u32,
}

/// How a plan with changes is approved.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// Who approves the plan. Default: `Manual`.
    #[serde(default)]
    pub mode: ApprovalMode,
    /// For mode `Automatic`: which plans are applied without a person. Default: all that the agent could read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic_when: Option<AutomaticWhen>,
    /// How long the pod waits for an approval. Without a datastore it has no effect: the pod waits until
    /// `expiresAfter`. Default: `5m`; at most 24h.
    #[serde(default = "hold_for")]
    pub hold_for: Span,
    /// How long a plan may wait for an approval before the run ends as Expired. Default: `72h`; at least 1s, at most
    /// 720h.
    #[serde(default = "expires_after")]
    pub expires_after: Span,
    /// Whether a plan may be applied after a change of a Secret or ConfigMap that the run takes values from. By default
    /// such a plan is stale. In either case, variables keep the values that the plan was made with.
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
    /// Whether a plan with these changes is applied without a person. The admission policy applies the same rule to a
    /// claim.
    pub fn is_automatic_for(&self, changes: &Changes) -> bool {
        let destroyed = changes.destroy.saturating_sub(changes.replace);
        self.mode == ApprovalMode::Automatic
            && !changes.unread
            && !changes.other_state
            && !changes.again
            && self.automatic_when.is_none_or(|most| {
                destroyed <= most.max_destroy
                    && changes.replace <= most.max_replace
                    && changes.invoke <= most.max_invoke
            })
    }

    /// Who approves the plan of a run in this phase. The plan of an Automatic run is in `AwaitingApproval` only when it
    /// exceeds `automaticWhen`, is unread, is of another state or comes again, and then a person approves it.
    pub fn mode_in(&self, phase: Option<Phase>) -> ApprovalMode {
        match (self.mode, phase) {
            (ApprovalMode::Automatic, Some(Phase::AwaitingApproval)) => ApprovalMode::Manual,
            (mode, _) => mode,
        }
    }
}

/// The deadlines of the phases; at least 1 s, at most 24 h each.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// Deadline from the creation of an attempt's pod to the first report of its agent. Default: `10m`; at least 1s, at most 24h.
    #[serde(default = "start")]
    pub start: Span,
    /// Deadline of Setup: source, tool, variables. Default: `5m`; at least 1s, at most 24h.
    #[serde(default = "setup")]
    pub setup: Span,
    /// Deadline of `init`. Default: `10m`; at least 1s, at most 24h.
    #[serde(default = "init")]
    pub init: Span,
    /// Deadline of `plan`, including reading its result. Default: `1h`; at least 1s, at most 24h.
    #[serde(default = "plan")]
    pub plan: Span,
    /// Deadline of `apply`. Default: `6h`; at least 1s, at most 24h.
    #[serde(default = "apply")]
    pub apply: Span,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            start: start(),
            setup: setup(),
            init: init(),
            plan: plan(),
            apply: apply(),
        }
    }
}

/// How many attempts follow one that failed for a transient reason, or died, before the claim.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Retries after the first attempt, with a wait of 10 s that doubles up to 5 min. Default: `3`; at most 10.
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
    fn plans_beyond_automatic_when_need_a_person() {
        let approval = |mode, automatic_when| Approval {
            mode,
            automatic_when,
            ..Approval::default()
        };
        let bounds = |max_destroy, max_replace| {
            Some(AutomaticWhen {
                max_destroy,
                max_replace,
                max_invoke: 0,
            })
        };
        let changes = |add, destroy, replace| Changes {
            add,
            destroy,
            replace,
            ..Changes::default()
        };
        let (mut invoking, mut unread) = (changes(1, 0, 0), changes(1, 0, 0));
        (invoking.invoke, unread.unread) = (1, true);
        let elsewhere = Changes {
            other_state: true,
            ..changes(1, 0, 0)
        };
        let invokes = AutomaticWhen {
            max_invoke: 1,
            ..AutomaticWhen::default()
        };
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
            (Automatic, None, invoking, true),
            (Automatic, bounds(9, 9), invoking, false),
            (Automatic, Some(invokes), invoking, true),
            (Automatic, None, unread, false),
            (Automatic, bounds(9, 9), unread, false),
            (Automatic, None, elsewhere, false),
            (Automatic, bounds(9, 9), elsewhere, false),
        ];
        for (mode, automatic_when, changes, is_automatic) in rows {
            assert_eq!(
                approval(mode, automatic_when).is_automatic_for(&changes),
                is_automatic,
                "{automatic_when:?} {changes:?}"
            );
        }
    }
}
