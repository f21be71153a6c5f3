//! States of an attempt.

use super::effect::Ending;

/// Who permits the apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// A user approves.
    Manual,
    /// No approval is needed.
    Automatic,
}

/// The run's settings that concern the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Terms {
    /// The run ends with its plan.
    pub plan_only: bool,
    pub mode: Mode,
}

/// Reason why an attempt is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stop {
    /// The process was asked to stop.
    Terminated,
    /// The phase exceeded its timeout.
    Deadline,
    /// A user cancelled the run.
    Cancelled,
    /// A user denied the plan.
    Denied,
    Deleted,
    /// The attempt is closed or belongs to another process: nothing may be written any more.
    Fenced,
}

impl Stop {
    /// Of two reasons to stop, the one that counts: fencing first, then a user's first request, then a deadline.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        if later.weight() > self.weight() {
            later
        } else {
            self
        }
    }

    const fn weight(self) -> u8 {
        match self {
            Self::Terminated => 0,
            Self::Deadline => 1,
            Self::Cancelled | Self::Denied | Self::Deleted => 2,
            Self::Fenced => 3,
        }
    }
}

/// Escalation stage of an interrupted apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The tool got its one SIGINT.
    Asked,
    ProvidersKilled,
    ToolKilled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// The run is read and the attempt adopted, including phase Setup.
    Adopting,
    /// Source, tool and inputs are prepared.
    Setup(Terms),
    /// The inputs of an earlier process's plan are restored.
    Restoring,
    /// Phase Init is being acknowledged.
    RecordingInit(Terms),
    Init(Terms),
    /// Phase Plan is being acknowledged.
    RecordingPlan(Terms),
    /// `plan` runs, and its result is read.
    Planning(Terms),
    /// The plan and the phase that follows it are being acknowledged.
    RecordingResult(Mode),
    /// The plan of an Automatic run waits for the lease on its state.
    Leasing,
    /// The plan waits for an approval, and then for the lease on its state.
    Awaiting,
    /// The manifest is computed again.
    Verifying(Mode),
    /// The claim is being acknowledged. A stop that comes meanwhile is remembered until the outcome is known.
    Claiming(Mode, Option<Stop>),
    /// The plan is claimed, and hooks before the apply run.
    Preparing,
    /// These hooks were asked to stop: nothing is applied.
    HoldingBack {
        stop: Stop,
        killed: bool,
    },
    /// These hooks have ended, and the manifest is computed again.
    VerifyingAgain,
    /// A command before the claim was asked to stop.
    Stopping {
        stop: Stop,
        killed: bool,
    },
    Applying,
    /// `apply` was asked to stop.
    Interrupting {
        stop: Stop,
        stage: Stage,
    },
    /// The end is being delivered; if hooks follow, only to where it outlives the pod.
    Ending(Ending),
    /// The end is delivered there, and hooks run.
    Finishing(Ending),
    /// The hooks have ended, and the end is being delivered to the run.
    Reporting(Ending),
    Ended,
}

impl State {
    /// Whether this process has claimed the plan, as far as it knows.
    pub const fn is_claimed(&self) -> bool {
        matches!(
            self,
            Self::Preparing
                | Self::HoldingBack { .. }
                | Self::VerifyingAgain
                | Self::Applying
                | Self::Interrupting { .. }
        )
    }
}
