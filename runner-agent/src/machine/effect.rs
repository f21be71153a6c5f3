//! What has to be done.

use crds::Phase;

/// Why an attempt or a run failed; the failure's texts are the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    Step,
    /// A phase passed its deadline.
    Deadline,
    /// The process was told to end.
    Terminated,
    /// An apply, or a claim that was granted, was cancelled.
    Cancelled,
    /// The manifest does not match.
    Mismatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ending {
    NoChanges,
    /// The plan was all that was asked for.
    Planned,
    Applied,
    /// A person denied the plan.
    Rejected,
    /// A person cancelled the run.
    Canceled,
    Deleted,
    /// Nobody approved in time.
    Expired,
    /// The attempt ends and the plan waits on: it is kept outside of the pod.
    Released,
    /// The attempt ends, since another run applies to the state; when it is this run's turn, a further one plans anew.
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
    /// Find again what a plan was made with.
    RunRestore,
    Record(Phase),
    RunInit,
    /// Run `plan` and read it.
    RunPlan,
    KillOthers,
    /// Compute the manifest again, and prove that a claim can be recorded.
    VerifyManifest,
    /// Write the claim.
    Claim,
    /// Record the claim where it outlives the pod, and run the hooks before the apply.
    RunHooksBefore,
    /// Compute the manifest once more, behind those hooks.
    VerifyAgain,
    RunApply,
    /// Send the one SIGINT.
    Interrupt,
    KillProviders,
    KillTool,
    /// Deliver the end; where hooks follow, to where it outlives the pod.
    End(Ending),
    /// Run the hooks at the end.
    RunHooksAfter(Ending),
    /// Deliver the end to the run.
    Report,
    Exit,
}
