//! What happened.

use super::state::Terms;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// The attempt is this process's, and phase Setup is acknowledged.
    Adopted(Terms),
    /// The attempt is this process's, and goes on with the plan that an earlier one made.
    AdoptedPlan,
    /// The attempt is closed, another's, or cannot be had.
    AdoptionRefused,
    /// The write that was ordered last is acknowledged.
    Recorded,
    /// Setup is done.
    SetupDone,
    /// `init` is done.
    InitDone,
    /// `plan` is done and read.
    PlanDone {
        /// Whether there is anything to apply.
        changes: bool,
    },
    /// A person approved this plan, the controller recorded it, and the run holds the lease on its state.
    Approved,
    /// The run holds the lease on the state of its plan.
    Leased,
    /// Another run holds it.
    Queued,
    /// The approval is gone.
    Withdrawn,
    /// A person denied the plan.
    Denied,
    /// A person cancelled the run.
    CancelRequested,
    /// The run is being deleted.
    DeletionRequested,
    /// The plan waited too long.
    Expired,
    /// The pod was held long enough for an approval; the plan is kept outside of it.
    HoldOver,
    /// What is on disk is what was approved.
    ManifestMatched,
    /// What is on disk is something else.
    ManifestDiffers,
    /// The claim is in the API, with the nonce of this process.
    ClaimGranted,
    /// The claim is not in the API.
    ClaimRefused,
    /// The attempt is closed or another's.
    Fenced,
    /// `apply` ended well.
    ApplyDone,
    /// A step failed.
    StepFailed {
        /// Whether its class is retried before the claim.
        retried: bool,
    },
    /// The deadline of the phase passed.
    DeadlinePassed,
    /// SIGTERM or SIGINT.
    StopRequested,
    /// The time given to something that was told to end is over.
    GraceOver,
    /// The end is delivered, or cannot be.
    Reported,
}
