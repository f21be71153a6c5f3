//! Where an attempt is.

use super::effect::Ending;

/// Who lets a plan be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// A person.
    Manual,
    /// Nobody.
    Automatic,
}

/// What the run asks for, as far as the machine cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Terms {
    /// The run ends with its plan.
    pub plan_only: bool,
    pub mode: Mode,
}

/// Why an attempt is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stop {
    /// The process was told to end.
    Terminated,
    /// The phase passed its deadline.
    Deadline,
    /// A person cancelled the run.
    Cancelled,
    /// A person denied the plan.
    Denied,
    Deleted,
    /// The attempt is closed or another's: nothing may be written any more.
    Fenced,
}

impl Stop {
    /// What counts when a further reason comes: to be fenced above all, then what a person said first, then a deadline.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        if later.weight() > self.weight() { later } else { self }
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

/// How hard an apply that is told to end has been pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The tool got its one SIGINT.
    Asked,
    ProvidersKilled,
    ToolKilled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// The run is read and the attempt adopted, phase Setup included.
    Adopting,
    /// Source, tool and inputs are prepared.
    Setup(Terms),
    /// What a plan of an earlier process was made with is found again.
    Restoring,
    /// Phase Init is being acknowledged.
    RecordingInit(Terms),
    Init(Terms),
    /// Phase Plan is being acknowledged.
    RecordingPlan(Terms),
    /// `plan` runs, and is read.
    Planning(Terms),
    /// The plan and the phase that follows it are being acknowledged.
    RecordingResult(Mode),
    /// The plan of an Automatic run waits for the lease on its state.
    Leasing,
    /// The plan waits for a person, and then for the lease on its state.
    Awaiting,
    /// The manifest is computed again.
    Verifying(Mode),
    /// The claim is being acknowledged; a stop that comes meanwhile is kept until its outcome is known.
    Claiming(Mode, Option<Stop>),
    /// The plan is claimed, and hooks before the apply run.
    Preparing,
    /// They were told to end: nothing is applied.
    HoldingBack {
        stop: Stop,
        killed: bool,
    },
    /// They have ended, and the manifest is computed once more.
    VerifyingAgain,
    /// A command before the claim was told to end.
    Stopping {
        stop: Stop,
        killed: bool,
    },
    Applying,
    /// `apply` was told to end.
    Interrupting {
        stop: Stop,
        stage: Stage,
    },
    /// The end is being delivered; where hooks follow, to where it outlives the pod.
    Ending(Ending),
    /// It stands there, and hooks run.
    Finishing(Ending),
    /// They are over, and the end is being delivered to the run.
    Reporting(Ending),
    Ended,
}

impl State {
    /// Name, without what the state holds.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Adopting => "Adopting",
            Self::Setup(_) => "Setup",
            Self::Restoring => "Restoring",
            Self::RecordingInit(_) => "RecordingInit",
            Self::Init(_) => "Init",
            Self::RecordingPlan(_) => "RecordingPlan",
            Self::Planning(_) => "Planning",
            Self::RecordingResult(_) => "RecordingResult",
            Self::Leasing => "Leasing",
            Self::Awaiting => "Awaiting",
            Self::Verifying(_) => "Verifying",
            Self::Claiming(..) => "Claiming",
            Self::Preparing => "Preparing",
            Self::HoldingBack { .. } => "HoldingBack",
            Self::VerifyingAgain => "VerifyingAgain",
            Self::Stopping { .. } => "Stopping",
            Self::Applying => "Applying",
            Self::Interrupting { .. } => "Interrupting",
            Self::Ending(_) => "Ending",
            Self::Finishing(_) => "Finishing",
            Self::Reporting(_) => "Reporting",
            Self::Ended => "Ended",
        }
    }

    /// Whether the plan is claimed by this process, as far as it knows.
    pub const fn is_claimed(&self) -> bool {
        matches!(
            self,
            Self::Preparing | Self::HoldingBack { .. } | Self::VerifyingAgain | Self::Applying | Self::Interrupting { .. }
        )
    }
}
