//! What happened.

use super::state::{Stop, Terms};

/// What happened, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    Stop(Stop),
    /// A write was answered.
    Write(Write),
    /// What was ordered is done.
    Task(Task),
    /// Whether the plan may be applied was said.
    Permission(Permission),
    Timer(Timer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Write {
    /// The attempt is this process's, and phase Setup is acknowledged.
    Adopted(Terms),
    /// The attempt is this process's, and goes on with the plan that an earlier one made.
    AdoptedPlan,
    /// The attempt is closed, another's, or cannot be had.
    AdoptionRefused,
    /// The write that was ordered last is acknowledged.
    Recorded,
    /// The claim is in the API, with the nonce of this process.
    ClaimGranted {
        /// Whether hooks run before the apply.
        hooks: bool,
    },
    /// The claim is not in the API.
    ClaimRefused,
    /// The end has been left where it outlives the pod, or could not be: then no hook runs.
    Delivered {
        /// Whether hooks run.
        hooks: bool,
    },
    /// The end is delivered, or cannot be.
    Reported,
}

/// How what was ordered went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Task {
    SetupDone,
    InitDone,
    /// `plan` is done and read.
    PlanDone {
        /// Whether there is anything to apply.
        changes: bool,
        /// Whether an Automatic run applies it without a person.
        harmless: bool,
    },
    /// What is on disk is what was approved.
    ManifestMatched,
    /// What is on disk is something else.
    ManifestDiffers,
    /// The hooks are done that were ordered.
    HooksDone,
    /// `apply` ended well.
    ApplyDone,
    StepFailed {
        /// Whether its class is retried before the claim.
        retried: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Permission {
    /// A person approved this plan, the controller recorded it, and the run holds the lease on its state.
    Approved,
    /// The approval is gone.
    Withdrawn,
    /// The run holds the lease on the state of its plan.
    Leased,
    /// Another run holds it.
    Queued,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// The plan waited too long.
    Expired,
    /// The pod was held long enough for an approval; the plan is kept outside of it.
    HoldOver,
    /// The time given to something that was told to end is over.
    GraceOver,
}
