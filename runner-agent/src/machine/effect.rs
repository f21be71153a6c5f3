//! Effects that the machine orders.

use crds::Phase;

/// Cause of a failed attempt or run. The driver adds the failure's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    Step,
    /// A phase exceeded its timeout.
    Deadline,
    /// The process was asked to stop.
    Terminated,
    /// A running apply or a granted claim was cancelled.
    Cancelled,
    /// The manifest differs from the plan's.
    Mismatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ending {
    NoChanges,
    /// The run requested a plan only.
    Planned,
    Applied,
    /// A user denied the plan.
    Rejected,
    /// A user cancelled the run.
    Canceled,
    Deleted,
    /// The approval did not come in time.
    Expired,
    /// The attempt ends, and the plan continues to wait outside the pod.
    Released,
    /// The attempt ends, since another run applies to the state. A new attempt plans again when it is this run's turn.
    Queued,
    Failed(Cause),
    /// The attempt failed; another may follow.
    Attempt(Cause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    /// Read the run and adopt the attempt.
    Adopt,
    /// Fetch the source, find the tool, write the inputs.
    RunSetup,
    /// Restore the inputs that a plan was made with.
    RunRestore,
    Record(Phase),
    RunInit,
    /// Run `plan` and read its result.
    RunPlan,
    KillOthers,
    /// Compute the manifest again, and prove that a claim can be recorded.
    VerifyManifest,
    /// Write the claim.
    Claim,
    /// Record the claim where it outlives the pod, then run the hooks before the apply.
    RunHooksBefore,
    /// Compute the manifest again after those hooks.
    VerifyAgain,
    RunApply,
    /// Send the one SIGINT.
    Interrupt,
    KillProviders,
    KillTool,
    /// Deliver the end; if hooks follow, only to where it outlives the pod.
    End(Ending),
    /// Run the hooks at the end.
    RunHooksAfter(Ending),
    /// Deliver the end to the run.
    Report,
    Exit,
}
