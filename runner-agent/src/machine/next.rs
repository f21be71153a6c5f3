//! The transition function.
//!
//! The last arm of a state's function is `_`: all other events change nothing there. The exhaustive list is the table in
//! `design/0003-state-machine.md`, generated from every state and event: a new event changes each of its rows.

use crds::Phase;

use super::{
    effect::{Cause, Effect, Ending},
    event::{Event as E, Permission, Task, Timer, Write},
    state::{Mode, Stage, State, Stop, Terms},
};

type Step = (State, Vec<Effect>);

/// The first state, and its effects.
pub fn begin() -> Step {
    (State::Adopting, vec![Effect::Adopt])
}

#[must_use]
pub fn next(state: &State, event: &E) -> Step {
    let (state, event) = (*state, *event);
    match state {
        State::Adopting => adopting(event),
        State::Setup(terms) => working(state, event, |task| {
            (task == Task::SetupDone).then(|| {
                (
                    State::RecordingInit(terms),
                    vec![Effect::Record(Phase::Init)],
                )
            })
        }),
        // The waiting plan continues to wait: it is not planned again and needs no new approval.
        State::Restoring => working(state, event, |task| {
            let waits = (
                State::RecordingResult(Mode::Manual),
                vec![Effect::Record(Phase::AwaitingApproval)],
            );
            (task == Task::SetupDone).then_some(waits)
        }),
        State::Init(terms) => working(state, event, |task| {
            (task == Task::InitDone).then(|| {
                (
                    State::RecordingPlan(terms),
                    vec![Effect::Record(Phase::Plan)],
                )
            })
        }),
        State::Planning(terms) => working(state, event, |task| match task {
            Task::PlanDone { changes, harmless } => Some(planned(terms, changes, harmless)),
            _ => None,
        }),
        State::RecordingInit(terms) => {
            recording(state, event, (State::Init(terms), vec![Effect::RunInit]))
        }
        State::RecordingPlan(terms) => recording(
            state,
            event,
            (State::Planning(terms), vec![Effect::RunPlan]),
        ),
        State::RecordingResult(Mode::Manual) => recording(state, event, stay(State::Awaiting)),
        State::RecordingResult(Mode::Automatic) => recording(state, event, stay(State::Leasing)),
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
    end(if retried {
        Ending::Attempt(Cause::Step)
    } else {
        Ending::Failed(Cause::Step)
    })
}

/// Ends a claimed run before its apply begins. Such an end is never retried, nor Canceled.
fn not_applied(cause: Cause) -> Step {
    end(Ending::Failed(cause))
}

/// The cause of a failure by a stop after the claim.
fn cause(stop: Stop) -> Cause {
    match stop {
        Stop::Deadline => Cause::Deadline,
        Stop::Cancelled => Cause::Cancelled,
        Stop::Terminated | Stop::Denied | Stop::Deleted | Stop::Fenced => Cause::Terminated,
    }
}

/// The end of an attempt without a claim that is stopped.
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
        // Nothing is adopted yet, so the controller handles the user's request.
        E::Write(Write::AdoptionRefused) | E::Stop(_) => leave(),
        _ => stay(State::Adopting),
    }
}

/// A command before the claim runs.
fn working(state: State, event: E, then: impl FnOnce(Task) -> Option<Step>) -> Step {
    match event {
        E::Task(Task::StepFailed { retried }) => failed(retried),
        // A late result of another command does not end this one.
        E::Task(task) => then(task).unwrap_or_else(|| stay(state)),
        E::Stop(stop) => (
            State::Stopping {
                stop,
                killed: false,
            },
            vec![Effect::Interrupt],
        ),
        _ => stay(state),
    }
}

fn planned(terms: Terms, changes: bool, harmless: bool) -> Step {
    match (
        changes,
        terms.plan_only,
        if harmless { terms.mode } else { Mode::Manual },
    ) {
        (false, _, _) => end(Ending::NoChanges),
        (true, true, _) => end(Ending::Planned),
        // The API must contain the plan before the claim that names it.
        (true, false, Mode::Automatic) => (
            State::RecordingResult(Mode::Automatic),
            vec![Effect::KillOthers, Effect::Record(Phase::Plan)],
        ),
        (true, false, Mode::Manual) => (
            State::RecordingResult(Mode::Manual),
            vec![Effect::KillOthers, Effect::Record(Phase::AwaitingApproval)],
        ),
    }
}

/// A write is in progress and no command runs.
fn recording(state: State, event: E, then: Step) -> Step {
    match event {
        E::Write(Write::Recorded) => then,
        E::Stop(stop) => stopped(stop),
        // The driver reports an approval again once the plan waits.
        _ => stay(state),
    }
}

/// No approval is needed. Waits for the lease, or for a plan that needs no approval. If another run holds the lease, that run will change the plan's state, so the pod
/// ends instead of waiting.
fn leasing(event: E) -> Step {
    match event {
        E::Permission(Permission::Leased) => (
            State::Verifying(Mode::Automatic),
            vec![Effect::VerifyManifest],
        ),
        E::Permission(Permission::Queued) => end(Ending::Queued),
        E::Timer(Timer::Expired) => end(Ending::Expired),
        E::Stop(stop) => stopped(stop),
        _ => stay(State::Leasing),
    }
}

fn awaiting(event: E) -> Step {
    match event {
        E::Permission(Permission::Approved) => {
            (State::Verifying(Mode::Manual), vec![Effect::VerifyManifest])
        }
        E::Timer(Timer::Expired) => end(Ending::Expired),
        E::Timer(Timer::HoldOver) => end(Ending::Released),
        E::Stop(stop) => stopped(stop),
        _ => stay(State::Awaiting),
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
        // Expiry no longer applies: an approval is recorded.
        _ => stay(state),
    }
}

fn claiming(mode: Mode, stop: Option<Stop>, event: E) -> Step {
    let state = State::Claiming(mode, stop);
    match event {
        E::Write(Write::ClaimGranted { hooks }) => match stop {
            // A denial or deletion during the write of the claim comes too late.
            None | Some(Stop::Denied | Stop::Deleted) if hooks => {
                (State::Preparing, vec![Effect::RunHooksBefore])
            }
            None | Some(Stop::Denied | Stop::Deleted) => (State::Applying, vec![Effect::RunApply]),
            Some(stop @ (Stop::Cancelled | Stop::Terminated | Stop::Deadline)) => {
                not_applied(cause(stop))
            }
            Some(Stop::Fenced) => leave(),
        },
        E::Write(Write::ClaimRefused) => match (stop, mode) {
            (Some(stop), _) => stopped(stop),
            (None, Mode::Manual) => (State::Awaiting, vec![]),
            (None, Mode::Automatic) => (State::Leasing, vec![]),
        },
        // Whether the API contains the claim is unknown, so the end must be valid for a claimed run.
        E::Stop(Stop::Deadline) => end(Ending::Failed(Cause::Deadline)),
        E::Stop(Stop::Fenced) => leave(),
        E::Stop(later @ (Stop::Terminated | Stop::Cancelled | Stop::Denied | Stop::Deleted)) => (
            State::Claiming(mode, Some(stop.map_or(later, |before| before.and(later)))),
            vec![],
        ),
        // The claim's own tests cover a withdrawal.
        _ => stay(state),
    }
}

fn stopping(stop: Stop, killed: bool, event: E) -> Step {
    let state = State::Stopping { stop, killed };
    match event {
        E::Task(
            Task::SetupDone | Task::InitDone | Task::PlanDone { .. } | Task::StepFailed { .. },
        ) => stopped(stop),
        E::Timer(Timer::GraceOver) => {
            if killed {
                stopped(stop)
            } else {
                (
                    State::Stopping { stop, killed: true },
                    vec![Effect::KillTool],
                )
            }
        }
        E::Stop(later) => (
            State::Stopping {
                stop: stop.and(later),
                killed,
            },
            vec![],
        ),
        _ => stay(state),
    }
}

/// Hooks before the apply run, after the claim.
fn preparing(event: E) -> Step {
    match event {
        E::Task(Task::HooksDone) => (
            State::VerifyingAgain,
            vec![Effect::KillOthers, Effect::VerifyAgain],
        ),
        E::Task(Task::StepFailed { .. }) => not_applied(Cause::Step),
        E::Stop(stop @ (Stop::Cancelled | Stop::Terminated | Stop::Deadline)) => (
            State::HoldingBack {
                stop,
                killed: false,
            },
            vec![Effect::Interrupt],
        ),
        _ => stay(State::Preparing),
    }
}

/// Hooks before the apply were asked to stop. Whatever their result, nothing is applied.
fn holding_back(stop: Stop, killed: bool, event: E) -> Step {
    match event {
        E::Task(Task::HooksDone | Task::StepFailed { .. }) => not_applied(cause(stop)),
        E::Timer(Timer::GraceOver) => {
            if killed {
                not_applied(cause(stop))
            } else {
                (
                    State::HoldingBack { stop, killed: true },
                    vec![Effect::KillTool],
                )
            }
        }
        _ => stay(State::HoldingBack { stop, killed }),
    }
}

/// No command runs, and nothing was applied.
fn verifying_again(event: E) -> Step {
    match event {
        E::Task(Task::ManifestMatched) => (State::Applying, vec![Effect::RunApply]),
        E::Task(Task::ManifestDiffers) => not_applied(Cause::Mismatch),
        E::Task(Task::StepFailed { .. }) => not_applied(Cause::Step),
        E::Stop(stop @ (Stop::Terminated | Stop::Cancelled | Stop::Deadline)) => {
            not_applied(cause(stop))
        }
        _ => stay(State::VerifyingAgain),
    }
}

fn applying(event: E) -> Step {
    match event {
        E::Task(Task::ApplyDone) => end(Ending::Applied),
        E::Task(Task::StepFailed { .. }) => end(Ending::Failed(Cause::Step)),
        E::Stop(stop @ (Stop::Terminated | Stop::Cancelled | Stop::Deadline)) => (
            State::Interrupting {
                stop,
                stage: Stage::Asked,
            },
            vec![Effect::Interrupt],
        ),
        // After the claim the apply does not need the API, a denial is too late, and a deletion waits.
        _ => stay(State::Applying),
    }
}

fn interrupting(stop: Stop, stage: Stage, event: E) -> Step {
    let state = State::Interrupting { stop, stage };
    let failed = || end(Ending::Failed(cause(stop)));
    match event {
        E::Task(Task::ApplyDone) => end(Ending::Applied),
        E::Task(Task::StepFailed { .. }) => failed(),
        E::Timer(Timer::GraceOver) => match stage {
            Stage::Asked => (
                State::Interrupting {
                    stop,
                    stage: Stage::ProvidersKilled,
                },
                vec![Effect::KillProviders],
            ),
            Stage::ProvidersKilled => (
                State::Interrupting {
                    stop,
                    stage: Stage::ToolKilled,
                },
                vec![Effect::KillTool],
            ),
            Stage::ToolKilled => failed(),
        },
        // The tool gets only one signal.
        _ => stay(state),
    }
}

fn ending(end: Ending, event: E) -> Step {
    match event {
        E::Write(Write::Delivered { hooks: true }) => {
            (State::Finishing(end), vec![Effect::RunHooksAfter(end)])
        }
        E::Write(Write::Delivered { hooks: false }) => {
            (State::Reporting(end), vec![Effect::Report])
        }
        _ => reporting(State::Ending(end), event),
    }
}

/// Hooks after the end. The result is already stored outside the pod, so they cannot change it. They have their own timeout, and in a
/// terminating pod its grace period.
fn finishing(end: Ending, event: E) -> Step {
    match event {
        E::Task(Task::HooksDone | Task::StepFailed { .. }) => {
            (State::Reporting(end), vec![Effect::Report])
        }
        E::Stop(Stop::Deadline | Stop::Cancelled) | E::Timer(Timer::GraceOver) => (
            State::Reporting(end),
            vec![Effect::KillTool, Effect::Report],
        ),
        E::Stop(Stop::Fenced) => leave(),
        _ => stay(State::Finishing(end)),
    }
}

/// The end is being written to the run.
fn reporting(state: State, event: E) -> Step {
    match event {
        E::Write(Write::Reported) | E::Stop(Stop::Fenced) | E::Timer(Timer::GraceOver) => leave(),
        _ => stay(state),
    }
}
