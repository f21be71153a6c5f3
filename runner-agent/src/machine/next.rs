//! The transition function.

use crds::Phase;

use super::{
    effect::{Cause, Effect, Ending},
    event::Event as E,
    state::{Mode, Stage, State, Stop, Terms},
};

type Step = (State, Vec<Effect>);

/// The first state, and what it orders.
pub fn begin() -> Step {
    (State::Adopting, vec![Effect::Adopt])
}

/// The answer to an event in a state.
#[must_use]
pub fn next(state: &State, event: &E) -> Step {
    let (state, event) = (*state, *event);
    match state {
        State::Adopting => adopting(event),
        State::Setup(terms) => working(state, event, matches!(event, E::SetupDone), || {
            (State::RecordingInit(terms), vec![Effect::Record(Phase::Init)])
        }),
        // It is the plan that waits, not a new one: nothing is planned and nobody is asked anew.
        State::Restoring => working(state, event, matches!(event, E::SetupDone), || {
            (State::RecordingResult(Mode::Manual), vec![Effect::Record(Phase::AwaitingApproval)])
        }),
        State::Init(terms) => working(state, event, matches!(event, E::InitDone), || {
            (State::RecordingPlan(terms), vec![Effect::Record(Phase::Plan)])
        }),
        State::Planning(terms) => {
            if let E::PlanDone { changes } = event {
                return planned(terms, changes);
            }
            working(state, event, false, || stay(state))
        }
        State::RecordingInit(terms) => recording(state, event, || (State::Init(terms), vec![Effect::RunInit])),
        State::RecordingPlan(terms) => recording(state, event, || (State::Planning(terms), vec![Effect::RunPlan])),
        State::RecordingResult(Mode::Manual) => recording(state, event, || (State::Awaiting, vec![])),
        State::RecordingResult(Mode::Automatic) => recording(state, event, || (State::Leasing, vec![])),
        State::Leasing => leasing(event),
        State::Awaiting => awaiting(event),
        State::Verifying(mode) => verifying(mode, event),
        State::Claiming(mode, stop) => claiming(mode, stop, event),
        State::Stopping { stop, killed } => stopping(stop, killed, event),
        State::Applying => applying(event),
        State::Interrupting { stop, stage } => interrupting(stop, stage, event),
        State::Ending(_) => ending(state, event),
        State::Ended => stay(state),
    }
}

fn stay(state: State) -> Step {
    (state, vec![])
}

fn end(ending: Ending) -> Step {
    (State::Ending(ending), vec![Effect::End(ending)])
}

fn leave() -> Step {
    (State::Ended, vec![Effect::Exit])
}

/// How a stop ends an attempt that has no claim.
fn stopped(stop: Stop) -> Step {
    match stop {
        Stop::Terminated => end(Ending::Attempt(Cause::Terminated)),
        Stop::Deadline => end(Ending::Failed(Cause::Deadline)),
        Stop::Cancelled => end(Ending::Canceled),
        Stop::Denied => end(Ending::Rejected),
        Stop::Deleted => end(Ending::Deleted),
        Stop::Fenced => leave(),
    }
}

/// The stop that an event asks for, wherever it comes.
const fn stop_of(event: E) -> Option<Stop> {
    match event {
        E::StopRequested => Some(Stop::Terminated),
        E::DeadlinePassed => Some(Stop::Deadline),
        E::CancelRequested => Some(Stop::Cancelled),
        E::Denied => Some(Stop::Denied),
        E::DeletionRequested => Some(Stop::Deleted),
        E::Fenced => Some(Stop::Fenced),
        E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::Approved
        | E::Withdrawn
        | E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::ApplyDone
        | E::StepFailed { .. }
        | E::GraceOver
        | E::Reported => None,
    }
}

fn adopting(event: E) -> Step {
    match event {
        E::Adopted(terms) => (State::Setup(terms), vec![Effect::RunSetup]),
        E::AdoptedPlan => (State::Restoring, vec![Effect::RunRestore]),
        // Nothing is adopted yet: what a person wants of the run now is the controller's to carry out.
        E::AdoptionRefused
        | E::Fenced
        | E::StopRequested
        | E::DeadlinePassed
        | E::CancelRequested
        | E::Denied
        | E::DeletionRequested => leave(),
        E::Recorded
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::Approved
        | E::Withdrawn
        | E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::ApplyDone
        | E::StepFailed { .. }
        | E::GraceOver
        | E::Reported => stay(State::Adopting),
    }
}

/// A command before the claim runs.
fn working(state: State, event: E, done: bool, then: impl FnOnce() -> Step) -> Step {
    match event {
        E::SetupDone | E::InitDone => {
            if done {
                then()
            } else {
                stay(state)
            }
        }
        E::StepFailed { retried: true } => end(Ending::Attempt(Cause::Step)),
        E::StepFailed { retried: false } => end(Ending::Failed(Cause::Step)),
        E::StopRequested => tell(Stop::Terminated),
        E::DeadlinePassed => tell(Stop::Deadline),
        E::CancelRequested => tell(Stop::Cancelled),
        E::Denied => tell(Stop::Denied),
        E::DeletionRequested => tell(Stop::Deleted),
        E::Fenced => tell(Stop::Fenced),
        E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::PlanDone { .. }
        | E::Approved
        | E::Withdrawn
        | E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::ApplyDone
        | E::GraceOver
        | E::Reported => stay(state),
    }
}

fn tell(stop: Stop) -> Step {
    (State::Stopping { stop, killed: false }, vec![Effect::Interrupt])
}

fn planned(terms: Terms, changes: bool) -> Step {
    match (changes, terms.plan_only, terms.mode) {
        (false, _, _) => end(Ending::NoChanges),
        (true, true, _) => end(Ending::Planned),
        // The plan has to stand in the API before the claim that names it.
        (true, false, Mode::Automatic) => {
            (State::RecordingResult(Mode::Automatic), vec![Effect::KillOthers, Effect::Record(Phase::Plan)])
        }
        (true, false, Mode::Manual) => {
            (State::RecordingResult(Mode::Manual), vec![Effect::KillOthers, Effect::Record(Phase::AwaitingApproval)])
        }
    }
}

/// A write is under way and nothing runs.
fn recording(state: State, event: E, then: impl FnOnce() -> Step) -> Step {
    match event {
        E::Recorded => then(),
        E::StopRequested | E::DeadlinePassed | E::CancelRequested | E::Denied | E::DeletionRequested | E::Fenced => {
            stop_of(event).map_or_else(|| stay(state), stopped)
        }
        // An approval that comes before the acknowledgement is seen again by the driver once the plan waits.
        E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::Approved
        | E::Withdrawn
        | E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::ApplyDone
        | E::StepFailed { .. }
        | E::GraceOver
        | E::Reported => stay(state),
    }
}

/// Nobody is asked: what is waited for is the lease, or the word that another run has it. Then this plan will be of a state that
/// has changed, so no pod is held for it.
fn leasing(event: E) -> Step {
    match event {
        E::Leased => (State::Verifying(Mode::Automatic), vec![Effect::VerifyManifest]),
        E::Queued => end(Ending::Queued),
        E::Expired => end(Ending::Expired),
        E::StopRequested | E::DeadlinePassed | E::CancelRequested | E::Denied | E::DeletionRequested | E::Fenced => {
            stop_of(event).map_or_else(|| stay(State::Leasing), stopped)
        }
        E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::Approved
        | E::Withdrawn
        | E::HoldOver
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::ApplyDone
        | E::StepFailed { .. }
        | E::GraceOver
        | E::Reported => stay(State::Leasing),
    }
}

fn awaiting(event: E) -> Step {
    match event {
        E::Approved => (State::Verifying(Mode::Manual), vec![Effect::VerifyManifest]),
        E::Expired => end(Ending::Expired),
        E::HoldOver => end(Ending::Released),
        E::StopRequested | E::DeadlinePassed | E::CancelRequested | E::Denied | E::DeletionRequested | E::Fenced => {
            stop_of(event).map_or_else(|| stay(State::Awaiting), stopped)
        }
        E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::Leased
        | E::Queued
        | E::Withdrawn
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::ApplyDone
        | E::StepFailed { .. }
        | E::GraceOver
        | E::Reported => stay(State::Awaiting),
    }
}

fn verifying(mode: Mode, event: E) -> Step {
    let state = State::Verifying(mode);
    match event {
        E::ManifestMatched => (State::Claiming(mode, None), vec![Effect::Claim]),
        E::ManifestDiffers => end(Ending::Failed(Cause::Mismatch)),
        E::StepFailed { retried: true } => end(Ending::Attempt(Cause::Step)),
        E::StepFailed { retried: false } => end(Ending::Failed(Cause::Step)),
        E::Withdrawn => match mode {
            Mode::Manual => (State::Awaiting, vec![]),
            Mode::Automatic => stay(state),
        },
        E::StopRequested | E::DeadlinePassed | E::CancelRequested | E::Denied | E::DeletionRequested | E::Fenced => {
            stop_of(event).map_or_else(|| stay(state), stopped)
        }
        // Expiry counts until an approval is recorded.
        E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::Approved
        | E::ClaimGranted
        | E::ClaimRefused
        | E::ApplyDone
        | E::GraceOver
        | E::Reported => stay(state),
    }
}

fn claiming(mode: Mode, stop: Option<Stop>, event: E) -> Step {
    let state = State::Claiming(mode, stop);
    match event {
        E::ClaimGranted => match stop {
            // A denial or a deletion that came while the claim was on its way came too late.
            None | Some(Stop::Denied | Stop::Deleted) => (State::Applying, vec![Effect::RunApply]),
            Some(Stop::Cancelled) => end(Ending::Failed(Cause::Cancelled)),
            Some(Stop::Terminated) => end(Ending::Failed(Cause::Terminated)),
            Some(Stop::Deadline) => end(Ending::Failed(Cause::Deadline)),
            Some(Stop::Fenced) => leave(),
        },
        E::ClaimRefused => match (stop, mode) {
            (Some(stop), _) => stopped(stop),
            (None, Mode::Manual) => (State::Awaiting, vec![]),
            (None, Mode::Automatic) => (State::Leasing, vec![]),
        },
        // Whether the claim stands is not known, so the end must be one that a claimed run may have.
        E::DeadlinePassed => end(Ending::Failed(Cause::Deadline)),
        E::Fenced => leave(),
        E::StopRequested => keep(mode, stop, Stop::Terminated),
        E::CancelRequested => keep(mode, stop, Stop::Cancelled),
        E::Denied => keep(mode, stop, Stop::Denied),
        E::DeletionRequested => keep(mode, stop, Stop::Deleted),
        // A withdrawal is in the claim's own tests.
        E::Withdrawn
        | E::Approved
        | E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ApplyDone
        | E::StepFailed { .. }
        | E::GraceOver
        | E::Reported => stay(state),
    }
}

fn keep(mode: Mode, before: Option<Stop>, stop: Stop) -> Step {
    (State::Claiming(mode, Some(before.map_or(stop, |b| b.and(stop)))), vec![])
}

fn stopping(stop: Stop, killed: bool, event: E) -> Step {
    let state = State::Stopping { stop, killed };
    match event {
        E::SetupDone | E::InitDone | E::PlanDone { .. } | E::StepFailed { .. } => stopped(stop),
        E::GraceOver => {
            if killed {
                stopped(stop)
            } else {
                (State::Stopping { stop, killed: true }, vec![Effect::KillTool])
            }
        }
        E::StopRequested | E::DeadlinePassed | E::CancelRequested | E::Denied | E::DeletionRequested | E::Fenced => {
            (State::Stopping { stop: stop_of(event).map_or(stop, |later| stop.and(later)), killed }, vec![])
        }
        E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::Approved
        | E::Withdrawn
        | E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::ApplyDone
        | E::Reported => stay(state),
    }
}

fn applying(event: E) -> Step {
    let interrupt = |stop| (State::Interrupting { stop, stage: Stage::Asked }, vec![Effect::Interrupt]);
    match event {
        E::ApplyDone => end(Ending::Applied),
        E::StepFailed { .. } => end(Ending::Failed(Cause::Step)),
        E::StopRequested => interrupt(Stop::Terminated),
        E::CancelRequested => interrupt(Stop::Cancelled),
        E::DeadlinePassed => interrupt(Stop::Deadline),
        // Behind the claim the API no longer matters, a denial comes too late, and a deletion waits.
        E::Fenced
        | E::Denied
        | E::DeletionRequested
        | E::Withdrawn
        | E::Approved
        | E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::GraceOver
        | E::Reported => stay(State::Applying),
    }
}

fn interrupting(stop: Stop, stage: Stage, event: E) -> Step {
    let state = State::Interrupting { stop, stage };
    let failed = || {
        end(Ending::Failed(match stop {
            Stop::Deadline => Cause::Deadline,
            Stop::Cancelled => Cause::Cancelled,
            Stop::Terminated | Stop::Denied | Stop::Deleted | Stop::Fenced => Cause::Terminated,
        }))
    };
    match event {
        E::ApplyDone => end(Ending::Applied),
        E::StepFailed { .. } => failed(),
        E::GraceOver => match stage {
            Stage::Asked => (State::Interrupting { stop, stage: Stage::ProvidersKilled }, vec![Effect::KillProviders]),
            Stage::ProvidersKilled => (State::Interrupting { stop, stage: Stage::ToolKilled }, vec![Effect::KillTool]),
            Stage::ToolKilled => failed(),
        },
        // One signal is all a tool gets.
        E::StopRequested
        | E::DeadlinePassed
        | E::CancelRequested
        | E::Denied
        | E::DeletionRequested
        | E::Fenced
        | E::Withdrawn
        | E::Approved
        | E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::Reported => stay(state),
    }
}

fn ending(state: State, event: E) -> Step {
    match event {
        E::Reported | E::Fenced | E::GraceOver => leave(),
        E::Adopted(_)
        | E::AdoptedPlan
        | E::AdoptionRefused
        | E::Recorded
        | E::SetupDone
        | E::InitDone
        | E::PlanDone { .. }
        | E::Approved
        | E::Withdrawn
        | E::Denied
        | E::CancelRequested
        | E::DeletionRequested
        | E::Expired
        | E::Leased
        | E::Queued
        | E::HoldOver
        | E::ManifestMatched
        | E::ManifestDiffers
        | E::ClaimGranted
        | E::ClaimRefused
        | E::ApplyDone
        | E::StepFailed { .. }
        | E::DeadlinePassed
        | E::StopRequested => stay(state),
    }
}
