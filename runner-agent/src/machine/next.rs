//! The transition function.
//!
//! No arm is `_`: a kind of events that a state has no use for is named, and of a kind that it uses, every event is.

use crds::Phase;

use super::{
    effect::{Cause, Effect, Ending},
    event::{Event as E, Permission, Task, Timer, Write},
    state::{Mode, Stage, State, Stop, Terms},
};

type Step = (State, Vec<Effect>);

/// The first state, and what it orders.
pub fn begin() -> Step {
    (State::Adopting, vec![Effect::Adopt])
}

#[must_use]
pub fn next(state: &State, event: &E) -> Step {
    let (state, event) = (*state, *event);
    match state {
        State::Adopting => adopting(event),
        State::Setup(terms) => {
            working(state, event, Task::SetupDone, || (State::RecordingInit(terms), vec![Effect::Record(Phase::Init)]))
        }
        // It is the plan that waits, not a new one: nothing is planned and nobody is asked anew.
        State::Restoring => working(state, event, Task::SetupDone, || {
            (State::RecordingResult(Mode::Manual), vec![Effect::Record(Phase::AwaitingApproval)])
        }),
        State::Init(terms) => {
            working(state, event, Task::InitDone, || (State::RecordingPlan(terms), vec![Effect::Record(Phase::Plan)]))
        }
        State::Planning(terms) => {
            let (changes, harmless) = match event {
                E::Task(Task::PlanDone { changes, harmless }) => (changes, harmless),
                E::Task(_) | E::Stop(_) | E::Write(_) | E::Permission(_) | E::Timer(_) => (false, false),
            };
            working(state, event, Task::PlanDone { changes, harmless }, || planned(terms, changes, harmless))
        }
        State::RecordingInit(terms) => recording(state, event, || (State::Init(terms), vec![Effect::RunInit])),
        State::RecordingPlan(terms) => recording(state, event, || (State::Planning(terms), vec![Effect::RunPlan])),
        State::RecordingResult(Mode::Manual) => recording(state, event, || (State::Awaiting, vec![])),
        State::RecordingResult(Mode::Automatic) => recording(state, event, || (State::Leasing, vec![])),
        State::Leasing => leasing(event),
        State::Awaiting => awaiting(event),
        State::Verifying(mode) => verifying(mode, event),
        State::Claiming(mode, stop) => claiming(mode, stop, event),
        State::Preparing => preparing(event),
        State::HoldingBack { stop, killed } => holding_back(stop, killed, event),
        State::VerifyingAgain => verifying_again(event),
        State::Stopping { stop, killed } => stopping(stop, killed, event),
        State::Applying => applying(event),
        State::Interrupting { stop, stage } => interrupting(stop, stage, event),
        State::Ending(end) => ending(end, event),
        State::Finishing(end) => finishing(end, event),
        State::Reporting(_) => reporting(state, event),
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

/// A step before the claim failed.
fn failed(retried: bool) -> Step {
    end(if retried { Ending::Attempt(Cause::Step) } else { Ending::Failed(Cause::Step) })
}

/// How what was claimed ends before its apply begins: it is never retried, nor Canceled.
fn not_applied(cause: Cause) -> Step {
    end(Ending::Failed(cause))
}

/// What a stop behind the claim is a failure of.
fn cause(stop: Stop) -> Cause {
    match stop {
        Stop::Deadline => Cause::Deadline,
        Stop::Cancelled => Cause::Cancelled,
        Stop::Terminated | Stop::Denied | Stop::Deleted | Stop::Fenced => Cause::Terminated,
    }
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

fn adopting(event: E) -> Step {
    match event {
        E::Write(Write::Adopted(terms)) => (State::Setup(terms), vec![Effect::RunSetup]),
        E::Write(Write::AdoptedPlan) => (State::Restoring, vec![Effect::RunRestore]),
        // Nothing is adopted yet: what a person wants of the run now is the controller's to carry out.
        E::Write(Write::AdoptionRefused) | E::Stop(_) => leave(),
        E::Write(
            Write::Recorded | Write::ClaimGranted { .. } | Write::ClaimRefused | Write::Delivered { .. } | Write::Reported,
        )
        | E::Task(_)
        | E::Permission(_)
        | E::Timer(_) => stay(State::Adopting),
    }
}

/// A command before the claim runs.
fn working(state: State, event: E, done: Task, then: impl FnOnce() -> Step) -> Step {
    match event {
        E::Task(Task::StepFailed { retried }) => failed(retried),
        E::Task(task) if task == done => then(),
        E::Stop(stop) => (State::Stopping { stop, killed: false }, vec![Effect::Interrupt]),
        // What another command has done is no end of this one.
        E::Task(
            Task::SetupDone
            | Task::InitDone
            | Task::PlanDone { .. }
            | Task::ManifestMatched
            | Task::ManifestDiffers
            | Task::HooksDone
            | Task::ApplyDone,
        )
        | E::Write(_)
        | E::Permission(_)
        | E::Timer(_) => stay(state),
    }
}

fn planned(terms: Terms, changes: bool, harmless: bool) -> Step {
    match (changes, terms.plan_only, if harmless { terms.mode } else { Mode::Manual }) {
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
        E::Write(Write::Recorded) => then(),
        E::Stop(stop) => stopped(stop),
        // An approval that comes before the acknowledgement is seen again by the driver once the plan waits.
        E::Permission(_)
        | E::Write(
            Write::Adopted(_)
            | Write::AdoptedPlan
            | Write::AdoptionRefused
            | Write::ClaimGranted { .. }
            | Write::ClaimRefused
            | Write::Delivered { .. }
            | Write::Reported,
        )
        | E::Task(_)
        | E::Timer(_) => stay(state),
    }
}

/// Nobody is asked: what is waited for is the lease, or the word that another run has it. Then this plan will be of a state that
/// has changed, so no pod is held for it.
fn leasing(event: E) -> Step {
    match event {
        E::Permission(Permission::Leased) => (State::Verifying(Mode::Automatic), vec![Effect::VerifyManifest]),
        E::Permission(Permission::Queued) => end(Ending::Queued),
        E::Timer(Timer::Expired) => end(Ending::Expired),
        E::Stop(stop) => stopped(stop),
        E::Permission(Permission::Approved | Permission::Withdrawn)
        | E::Timer(Timer::HoldOver | Timer::GraceOver)
        | E::Write(_)
        | E::Task(_) => stay(State::Leasing),
    }
}

fn awaiting(event: E) -> Step {
    match event {
        E::Permission(Permission::Approved) => (State::Verifying(Mode::Manual), vec![Effect::VerifyManifest]),
        E::Timer(Timer::Expired) => end(Ending::Expired),
        E::Timer(Timer::HoldOver) => end(Ending::Released),
        E::Stop(stop) => stopped(stop),
        E::Permission(Permission::Leased | Permission::Queued | Permission::Withdrawn)
        | E::Timer(Timer::GraceOver)
        | E::Write(_)
        | E::Task(_) => stay(State::Awaiting),
    }
}

fn verifying(mode: Mode, event: E) -> Step {
    let state = State::Verifying(mode);
    match event {
        E::Task(Task::ManifestMatched) => (State::Claiming(mode, None), vec![Effect::Claim]),
        E::Task(Task::ManifestDiffers) => end(Ending::Failed(Cause::Mismatch)),
        E::Task(Task::StepFailed { retried }) => failed(retried),
        E::Permission(Permission::Withdrawn) => match mode {
            Mode::Manual => (State::Awaiting, vec![]),
            Mode::Automatic => stay(state),
        },
        E::Stop(stop) => stopped(stop),
        // Expiry counts until an approval is recorded.
        E::Timer(_)
        | E::Permission(Permission::Approved | Permission::Leased | Permission::Queued)
        | E::Task(Task::SetupDone | Task::InitDone | Task::PlanDone { .. } | Task::HooksDone | Task::ApplyDone)
        | E::Write(_) => stay(state),
    }
}

fn claiming(mode: Mode, stop: Option<Stop>, event: E) -> Step {
    let state = State::Claiming(mode, stop);
    match event {
        E::Write(Write::ClaimGranted { hooks }) => match stop {
            // A denial or a deletion that came while the claim was on its way came too late.
            None | Some(Stop::Denied | Stop::Deleted) if hooks => (State::Preparing, vec![Effect::RunHooksBefore]),
            None | Some(Stop::Denied | Stop::Deleted) => (State::Applying, vec![Effect::RunApply]),
            Some(Stop::Cancelled) => end(Ending::Failed(Cause::Cancelled)),
            Some(Stop::Terminated) => end(Ending::Failed(Cause::Terminated)),
            Some(Stop::Deadline) => end(Ending::Failed(Cause::Deadline)),
            Some(Stop::Fenced) => leave(),
        },
        E::Write(Write::ClaimRefused) => match (stop, mode) {
            (Some(stop), _) => stopped(stop),
            (None, Mode::Manual) => (State::Awaiting, vec![]),
            (None, Mode::Automatic) => (State::Leasing, vec![]),
        },
        // Whether the claim stands is not known, so the end must be one that a claimed run may have.
        E::Stop(Stop::Deadline) => end(Ending::Failed(Cause::Deadline)),
        E::Stop(Stop::Fenced) => leave(),
        E::Stop(later @ (Stop::Terminated | Stop::Cancelled | Stop::Denied | Stop::Deleted)) => {
            (State::Claiming(mode, Some(stop.map_or(later, |before| before.and(later)))), vec![])
        }
        // A withdrawal is in the claim's own tests.
        E::Permission(_)
        | E::Write(
            Write::Adopted(_)
            | Write::AdoptedPlan
            | Write::AdoptionRefused
            | Write::Recorded
            | Write::Delivered { .. }
            | Write::Reported,
        )
        | E::Task(_)
        | E::Timer(_) => stay(state),
    }
}

fn stopping(stop: Stop, killed: bool, event: E) -> Step {
    let state = State::Stopping { stop, killed };
    match event {
        E::Task(Task::SetupDone | Task::InitDone | Task::PlanDone { .. } | Task::StepFailed { .. }) => stopped(stop),
        E::Timer(Timer::GraceOver) => {
            if killed {
                stopped(stop)
            } else {
                (State::Stopping { stop, killed: true }, vec![Effect::KillTool])
            }
        }
        E::Stop(later) => (State::Stopping { stop: stop.and(later), killed }, vec![]),
        E::Task(Task::ManifestMatched | Task::ManifestDiffers | Task::HooksDone | Task::ApplyDone)
        | E::Timer(Timer::Expired | Timer::HoldOver)
        | E::Write(_)
        | E::Permission(_) => stay(state),
    }
}

/// Hooks before the apply run, behind the claim.
fn preparing(event: E) -> Step {
    match event {
        E::Task(Task::HooksDone) => (State::VerifyingAgain, vec![Effect::KillOthers, Effect::VerifyAgain]),
        E::Task(Task::StepFailed { .. }) => not_applied(Cause::Step),
        E::Stop(stop @ (Stop::Cancelled | Stop::Terminated | Stop::Deadline)) => {
            (State::HoldingBack { stop, killed: false }, vec![Effect::Interrupt])
        }
        E::Stop(Stop::Fenced | Stop::Denied | Stop::Deleted)
        | E::Task(
            Task::SetupDone
            | Task::InitDone
            | Task::PlanDone { .. }
            | Task::ManifestMatched
            | Task::ManifestDiffers
            | Task::ApplyDone,
        )
        | E::Write(_)
        | E::Permission(_)
        | E::Timer(_) => stay(State::Preparing),
    }
}

/// Hooks before the apply were told to end. However they do, nothing is applied.
fn holding_back(stop: Stop, killed: bool, event: E) -> Step {
    match event {
        E::Task(Task::HooksDone | Task::StepFailed { .. }) => not_applied(cause(stop)),
        E::Timer(Timer::GraceOver) => {
            if killed {
                not_applied(cause(stop))
            } else {
                (State::HoldingBack { stop, killed: true }, vec![Effect::KillTool])
            }
        }
        E::Stop(_)
        | E::Task(
            Task::SetupDone
            | Task::InitDone
            | Task::PlanDone { .. }
            | Task::ManifestMatched
            | Task::ManifestDiffers
            | Task::ApplyDone,
        )
        | E::Timer(Timer::Expired | Timer::HoldOver)
        | E::Write(_)
        | E::Permission(_) => stay(State::HoldingBack { stop, killed }),
    }
}

/// Nothing runs, and nothing was applied.
fn verifying_again(event: E) -> Step {
    match event {
        E::Task(Task::ManifestMatched) => (State::Applying, vec![Effect::RunApply]),
        E::Task(Task::ManifestDiffers) => not_applied(Cause::Mismatch),
        E::Task(Task::StepFailed { .. }) => not_applied(Cause::Step),
        E::Stop(stop @ (Stop::Terminated | Stop::Cancelled | Stop::Deadline)) => not_applied(cause(stop)),
        E::Stop(Stop::Fenced | Stop::Denied | Stop::Deleted)
        | E::Task(Task::SetupDone | Task::InitDone | Task::PlanDone { .. } | Task::HooksDone | Task::ApplyDone)
        | E::Write(_)
        | E::Permission(_)
        | E::Timer(_) => stay(State::VerifyingAgain),
    }
}

fn applying(event: E) -> Step {
    match event {
        E::Task(Task::ApplyDone) => end(Ending::Applied),
        E::Task(Task::StepFailed { .. }) => end(Ending::Failed(Cause::Step)),
        E::Stop(stop @ (Stop::Terminated | Stop::Cancelled | Stop::Deadline)) => {
            (State::Interrupting { stop, stage: Stage::Asked }, vec![Effect::Interrupt])
        }
        // Behind the claim the API no longer matters, a denial comes too late, and a deletion waits.
        E::Stop(Stop::Fenced | Stop::Denied | Stop::Deleted)
        | E::Task(
            Task::SetupDone
            | Task::InitDone
            | Task::PlanDone { .. }
            | Task::ManifestMatched
            | Task::ManifestDiffers
            | Task::HooksDone,
        )
        | E::Write(_)
        | E::Permission(_)
        | E::Timer(_) => stay(State::Applying),
    }
}

fn interrupting(stop: Stop, stage: Stage, event: E) -> Step {
    let state = State::Interrupting { stop, stage };
    let failed = || end(Ending::Failed(cause(stop)));
    match event {
        E::Task(Task::ApplyDone) => end(Ending::Applied),
        E::Task(Task::StepFailed { .. }) => failed(),
        E::Timer(Timer::GraceOver) => match stage {
            Stage::Asked => (State::Interrupting { stop, stage: Stage::ProvidersKilled }, vec![Effect::KillProviders]),
            Stage::ProvidersKilled => (State::Interrupting { stop, stage: Stage::ToolKilled }, vec![Effect::KillTool]),
            Stage::ToolKilled => failed(),
        },
        // One signal is all a tool gets.
        E::Stop(_)
        | E::Task(
            Task::SetupDone
            | Task::InitDone
            | Task::PlanDone { .. }
            | Task::ManifestMatched
            | Task::ManifestDiffers
            | Task::HooksDone,
        )
        | E::Timer(Timer::Expired | Timer::HoldOver)
        | E::Write(_)
        | E::Permission(_) => stay(state),
    }
}

fn ending(end: Ending, event: E) -> Step {
    match event {
        E::Write(Write::Delivered { hooks: true }) => (State::Finishing(end), vec![Effect::RunHooksAfter(end)]),
        E::Write(Write::Delivered { hooks: false }) => (State::Reporting(end), vec![Effect::Report]),
        E::Write(_) | E::Stop(_) | E::Timer(_) | E::Task(_) | E::Permission(_) => reporting(State::Ending(end), event),
    }
}

/// What the run has come to stands outside of the pod, and no hook changes it. They have their time, and that of a pod that is told to
/// end.
fn finishing(end: Ending, event: E) -> Step {
    match event {
        E::Task(Task::HooksDone | Task::StepFailed { .. }) => (State::Reporting(end), vec![Effect::Report]),
        E::Stop(Stop::Deadline | Stop::Cancelled) | E::Timer(Timer::GraceOver) => {
            (State::Reporting(end), vec![Effect::KillTool, Effect::Report])
        }
        E::Stop(Stop::Fenced) => leave(),
        E::Stop(Stop::Terminated | Stop::Denied | Stop::Deleted)
        | E::Task(
            Task::SetupDone
            | Task::InitDone
            | Task::PlanDone { .. }
            | Task::ManifestMatched
            | Task::ManifestDiffers
            | Task::ApplyDone,
        )
        | E::Timer(Timer::Expired | Timer::HoldOver)
        | E::Write(_)
        | E::Permission(_) => stay(State::Finishing(end)),
    }
}

/// The end is on its way to the run.
fn reporting(state: State, event: E) -> Step {
    match event {
        E::Write(Write::Reported) | E::Stop(Stop::Fenced) | E::Timer(Timer::GraceOver) => leave(),
        E::Write(
            Write::Adopted(_)
            | Write::AdoptedPlan
            | Write::AdoptionRefused
            | Write::Recorded
            | Write::ClaimGranted { .. }
            | Write::ClaimRefused
            | Write::Delivered { .. },
        )
        | E::Stop(Stop::Terminated | Stop::Deadline | Stop::Cancelled | Stop::Denied | Stop::Deleted)
        | E::Timer(Timer::Expired | Timer::HoldOver)
        | E::Task(_)
        | E::Permission(_) => stay(state),
    }
}
