//! Events of the machine.

use super::state::{Stop, Terms};

/// An event, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    Stop(Stop),
    /// The result of a write.
    Write(Write),
    /// The result of an ordered task.
    Task(Task),
    /// A change of the permission to apply.
    Permission(Permission),
    Timer(Timer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Write {
    /// The attempt is adopted by this process, and phase Setup is acknowledged.
    Adopted(Terms),
    /// The attempt is adopted by this process, and restores an earlier attempt's plan.
    AdoptedPlan,
    /// The attempt is closed, belongs to another process, or cannot be adopted.
    AdoptionRefused,
    /// The last write is acknowledged.
    Recorded,
    /// The API contains the claim with this process's nonce.
    ClaimGranted {
        /// Whether hooks run before the apply.
        hooks: bool,
    },
    /// The API does not contain the claim.
    ClaimRefused,
    /// The end was delivered to a place that outlives the pod, or the delivery failed. After a failure no hook runs.
    Delivered {
        /// Whether hooks run.
        hooks: bool,
    },
    /// The end is delivered to the run, or cannot be.
    Reported,
}

/// The result of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Task {
    SetupDone,
    InitDone,
    /// `plan` has ended and its result is read.
    PlanDone {
        /// Whether there is anything to apply.
        changes: bool,
        /// Whether an Automatic run applies it without an approval.
        harmless: bool,
    },
    /// The files on disk match the approved plan.
    ManifestMatched,
    /// The files on disk differ from the approved plan.
    ManifestDiffers,
    /// The ordered hooks have ended.
    HooksDone,
    /// `apply` succeeded.
    ApplyDone,
    StepFailed {
        /// Whether its failure class is retried before the claim.
        retried: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Permission {
    /// A user approved this plan, the controller recorded it, and the run holds the lease on its state.
    Approved,
    /// The approval was withdrawn.
    Withdrawn,
    /// The run holds the lease on the state of its plan.
    Leased,
    /// Another run holds the lease.
    Queued,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// The plan expired.
    Expired,
    /// The pod's hold for an approval is over. The plan is stored outside the pod.
    HoldOver,
    /// The grace period of an interrupted command is over.
    GraceOver,
}
