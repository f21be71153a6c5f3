//! Phases and results of a run, and the legal transitions.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The phase of a run. It is written before its work starts.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema,
)]
pub enum Phase {
    /// No pod works on the run: none has started yet, or the next attempt follows.
    Pending,
    /// Fetches the source, finds the tool, writes variables.
    Setup,
    /// Runs `init`.
    Init,
    /// Runs `plan` and reads its result.
    Plan,
    /// A plan with changes waits for a person.
    AwaitingApproval,
    /// The plan is claimed; `apply` runs or is about to run.
    Apply,
    /// Ended successfully.
    Succeeded,
    /// Ended with a failure.
    Failed,
    /// Ended before anything was applied.
    Canceled,
    /// A value from a newer version. Readers wait. It is never written and is not in the schema.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Phase {
    /// All phases that can be written, in execution order.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Setup,
        Self::Init,
        Self::Plan,
        Self::AwaitingApproval,
        Self::Apply,
        Self::Succeeded,
        Self::Failed,
        Self::Canceled,
    ];

    /// Whether a run in this phase has ended and never changes its phase again.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled)
    }

    /// The phases that may follow this one. The CRD's CEL rule is generated from this table.
    ///
    /// A transition back to `Pending` means that an attempt ended before its claim and another follows. `Apply` comes
    /// after the claim, so from there a run can only end, and never as `Canceled`, which promises that nothing was
    /// applied.
    pub const fn successors(self) -> &'static [Self] {
        match self {
            Self::Pending => &[Self::Setup, Self::Failed, Self::Canceled],
            Self::Setup => &[Self::Init, Self::Pending, Self::Failed, Self::Canceled],
            Self::Init => &[Self::Plan, Self::Pending, Self::Failed, Self::Canceled],
            Self::Plan => &[
                Self::AwaitingApproval,
                Self::Apply,
                Self::Pending,
                Self::Succeeded,
                Self::Failed,
                Self::Canceled,
            ],
            Self::AwaitingApproval => &[Self::Apply, Self::Pending, Self::Failed, Self::Canceled],
            Self::Apply => &[Self::Succeeded, Self::Failed],
            Self::Succeeded | Self::Failed | Self::Canceled | Self::Unknown => &[],
        }
    }

    /// Whether `next` may follow this phase. Staying in a phase is always allowed.
    pub fn may_become(self, next: Self) -> bool {
        self == next || self.successors().contains(&next)
    }

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Setup => "Setup",
            Self::Init => "Init",
            Self::Plan => "Plan",
            Self::AwaitingApproval => "AwaitingApproval",
            Self::Apply => "Apply",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The result of a run.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum RunResult {
    /// The plan has no changes.
    NoChanges,
    /// The run was to plan only, and the plan was made.
    Planned,
    /// The plan was applied.
    Applied,
    /// Everything was destroyed as planned.
    Destroyed,
    /// A refresh-only plan found that the infrastructure differs from the state.
    Drifted,
    /// A person denied the plan.
    Rejected,
    /// A person cancelled or deleted the run before its claim.
    Canceled,
    /// The plan was not approved in time.
    Expired,
    /// A newer run replaced this one.
    Superseded,
    /// The run failed; `status.failure` gives the details and whether anything was changed.
    Failed,
    /// The plan was claimed, and the outcome of its apply is unknown.
    Indeterminate,
    /// A value from a newer version, like [`Phase::Unknown`].
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl RunResult {
    /// All results that can be written.
    pub const ALL: [Self; 11] = [
        Self::NoChanges,
        Self::Planned,
        Self::Applied,
        Self::Destroyed,
        Self::Drifted,
        Self::Rejected,
        Self::Canceled,
        Self::Expired,
        Self::Superseded,
        Self::Failed,
        Self::Indeterminate,
    ];

    /// The phase of a run with this result.
    pub const fn phase(self) -> Phase {
        match self {
            Self::NoChanges | Self::Planned | Self::Applied | Self::Destroyed | Self::Drifted => {
                Phase::Succeeded
            }
            Self::Rejected | Self::Canceled | Self::Expired | Self::Superseded => Phase::Canceled,
            Self::Failed | Self::Indeterminate => Phase::Failed,
            Self::Unknown => Phase::Unknown,
        }
    }

    /// Whether only a run with a claim can have this result.
    pub const fn needs_claim(self) -> bool {
        matches!(self, Self::Applied | Self::Destroyed | Self::Indeterminate)
    }

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoChanges => "NoChanges",
            Self::Planned => "Planned",
            Self::Applied => "Applied",
            Self::Destroyed => "Destroyed",
            Self::Drifted => "Drifted",
            Self::Rejected => "Rejected",
            Self::Canceled => "Canceled",
            Self::Expired => "Expired",
            Self::Superseded => "Superseded",
            Self::Failed => "Failed",
            Self::Indeterminate => "Indeterminate",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_and_results_are_consistent() {
        for phase in Phase::ALL {
            assert_eq!(
                phase.is_terminal(),
                phase.successors().is_empty(),
                "{phase}"
            );
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.as_str());
        }
        for result in RunResult::ALL {
            assert!(result.phase().is_terminal(), "{result}");
            assert_eq!(serde_json::to_value(result).unwrap(), result.as_str());
        }
        // A claimed run is never cancelled or restarted.
        let of = [Phase::Canceled, Phase::Pending, Phase::Apply]
            .map(|next| Phase::Apply.may_become(next));
        assert_eq!(of, [false, false, true]);
    }

    #[test]
    fn unknown_phase_is_parsed_and_has_no_successor() {
        let phase: Phase = serde_json::from_value("Paused".into()).unwrap();
        assert_eq!(phase, Phase::Unknown);
        assert!(
            !phase.is_terminal()
                && Phase::ALL
                    .into_iter()
                    .all(|known| !phase.may_become(known) && !known.may_become(phase))
        );
        let result: RunResult = serde_json::from_value("AppliedInPart".into()).unwrap();
        assert_eq!(
            (result, result.phase(), result.needs_claim()),
            (RunResult::Unknown, Phase::Unknown, false)
        );
    }
}
