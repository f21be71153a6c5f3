//! Tests the machine over every state, every event and every sequence.

mod table;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    path::PathBuf,
};

use super::{
    Cause, Effect, Ending, Event, Mode, Permission, Stage, State, Stop, Task, Terms, Timer, Write,
    begin, next,
};

const MODES: [Mode; 2] = [Mode::Manual, Mode::Automatic];
const STOPS: [Stop; 6] = [
    Stop::Terminated,
    Stop::Deadline,
    Stop::Cancelled,
    Stop::Denied,
    Stop::Deleted,
    Stop::Fenced,
];
const CAUSES: [Cause; 5] = [
    Cause::Step,
    Cause::Deadline,
    Cause::Terminated,
    Cause::Cancelled,
    Cause::Mismatch,
];

fn terms() -> Vec<Terms> {
    [false, true]
        .into_iter()
        .flat_map(|plan_only| MODES.map(|mode| Terms { plan_only, mode }))
        .collect()
}

fn events() -> Vec<Event> {
    let mut events: Vec<_> = terms()
        .into_iter()
        .map(|terms| Event::Write(Write::Adopted(terms)))
        .collect();
    let writes = [
        Write::AdoptedPlan,
        Write::AdoptionRefused,
        Write::Recorded,
        Write::ClaimRefused,
    ];
    events.extend(writes.map(Event::Write));
    for hooks in [false, true] {
        events
            .extend([Write::ClaimGranted { hooks }, Write::Delivered { hooks }].map(Event::Write));
    }
    events.push(Event::Write(Write::Reported));
    let tasks = [
        Task::SetupDone,
        Task::InitDone,
        Task::ManifestMatched,
        Task::ManifestDiffers,
        Task::HooksDone,
        Task::ApplyDone,
    ];
    events.extend(tasks.map(Event::Task));
    for yes in [true, false] {
        let plans = [true, false].map(|harmless| Task::PlanDone {
            changes: yes,
            harmless,
        });
        events.extend(
            plans
                .into_iter()
                .chain([Task::StepFailed { retried: yes }])
                .map(Event::Task),
        );
    }
    let permissions = [
        Permission::Approved,
        Permission::Withdrawn,
        Permission::Leased,
        Permission::Queued,
    ];
    events.extend(permissions.map(Event::Permission));
    events.extend([Timer::Expired, Timer::HoldOver, Timer::GraceOver].map(Event::Timer));
    events.extend(STOPS.map(Event::Stop));
    events.iter().copied().for_each(is_listed);
    events
}

/// Fails to compile if there is a new event, which must then be added to the list above.
const fn is_listed(event: Event) {
    use {Permission as P, Task as T, Write as W};
    match event {
        Event::Stop(
            Stop::Terminated
            | Stop::Deadline
            | Stop::Cancelled
            | Stop::Denied
            | Stop::Deleted
            | Stop::Fenced,
        )
        | Event::Write(
            W::Adopted(_)
            | W::AdoptedPlan
            | W::AdoptionRefused
            | W::Recorded
            | W::ClaimGranted { .. }
            | W::ClaimRefused
            | W::Delivered { .. }
            | W::Reported,
        )
        | Event::Task(
            T::SetupDone
            | T::InitDone
            | T::PlanDone { .. }
            | T::ManifestMatched
            | T::ManifestDiffers
            | T::HooksDone
            | T::ApplyDone
            | T::StepFailed { .. },
        )
        | Event::Permission(P::Approved | P::Withdrawn | P::Leased | P::Queued)
        | Event::Timer(Timer::Expired | Timer::HoldOver | Timer::GraceOver) => {}
    }
}

fn states() -> Vec<State> {
    let mut states = vec![
        State::Adopting,
        State::Restoring,
        State::Leasing,
        State::Awaiting,
        State::Preparing,
        State::VerifyingAgain,
        State::Applying,
        State::Ended,
    ];
    for t in terms() {
        states.extend([
            State::Setup(t),
            State::RecordingInit(t),
            State::Init(t),
            State::RecordingPlan(t),
            State::Planning(t),
        ]);
    }
    for mode in MODES {
        states.extend([
            State::RecordingResult(mode),
            State::Verifying(mode),
            State::Claiming(mode, None),
        ]);
        states.extend(STOPS.map(|stop| State::Claiming(mode, Some(stop))));
    }
    for stop in STOPS {
        states.extend([false, true].map(|killed| State::Stopping { stop, killed }));
        states.extend([false, true].map(|killed| State::HoldingBack { stop, killed }));
        states.extend(
            [Stage::Asked, Stage::ProvidersKilled, Stage::ToolKilled]
                .map(|stage| State::Interrupting { stop, stage }),
        );
    }
    let mut endings = vec![
        Ending::NoChanges,
        Ending::Planned,
        Ending::Applied,
        Ending::Rejected,
        Ending::Canceled,
        Ending::Deleted,
        Ending::Expired,
        Ending::Released,
        Ending::Queued,
    ];
    endings.extend(
        CAUSES
            .iter()
            .flat_map(|c| [Ending::Failed(*c), Ending::Attempt(*c)]),
    );
    states.extend(endings.into_iter().flat_map(|end| {
        [
            State::Ending(end),
            State::Finishing(end),
            State::Reporting(end),
        ]
    }));
    states
}

#[test]
fn every_pair_is_handled_and_the_end_is_final() {
    for state in states() {
        for event in events() {
            let (after, effects) = next(&state, &event);
            let runs = effects
                .iter()
                .filter(|e| matches!(e, Effect::RunApply))
                .count();
            assert!(
                runs == 0
                    || matches!(
                        (state, event),
                        (
                            State::Claiming(..),
                            Event::Write(Write::ClaimGranted { hooks: false })
                        ) | (State::VerifyingAgain, Event::Task(Task::ManifestMatched))
                    ),
                "{state:?} {event:?}"
            );
            assert_eq!(
                effects.contains(&Effect::Exit),
                after == State::Ended && state != State::Ended,
                "{state:?} {event:?}"
            );
            if state == State::Ended {
                assert_eq!((after, effects), (State::Ended, vec![]));
            } else if let State::Ending(end) | State::Finishing(end) | State::Reporting(end) = state
            {
                // Hooks do not change the decided end.
                let then = [
                    State::Ending(end),
                    State::Finishing(end),
                    State::Reporting(end),
                    State::Ended,
                ];
                let at = then.iter().position(|one| *one == state);
                assert!(
                    then.iter().position(|one| *one == after) >= at,
                    "{state:?} {event:?} {after:?}"
                );
            }
            // After the claim no end may promise that nothing was applied.
            if let (true, State::Ending(end)) = (state.is_claimed(), after) {
                assert!(
                    matches!(end, Ending::Applied | Ending::Failed(_)),
                    "{state:?} {event:?} {end:?}"
                );
            }
        }
    }
}

/// The facts about a sequence of events so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Trace {
    state: State,
    applies: u8,
    interrupts: u8,
    matched: bool,
    granted: bool,
    claims_out: bool,
    stop_seen: bool,
    unapproved: bool,
    leased: bool,
    hooks_before: u8,
    hooks_after: u8,
}

fn step(trace: Trace, event: Event) -> Trace {
    let mut t = trace;
    let before = t.state;
    match event {
        Event::Task(Task::ManifestMatched) => {
            t.matched |= matches!(before, State::Verifying(_) | State::VerifyingAgain);
        }
        Event::Write(Write::ClaimGranted { .. }) if t.claims_out => t.granted = true,
        Event::Permission(Permission::Withdrawn) => t.unapproved = true,
        Event::Permission(Permission::Approved) => t.unapproved = false,
        Event::Permission(Permission::Leased) => t.leased |= before == State::Leasing,
        // The admission policy may have refused the claim because the lease is missing.
        Event::Write(Write::ClaimRefused) if matches!(before, State::Claiming(..)) => {
            t.leased = false;
        }
        _ => {}
    }
    if matches!(event, Event::Stop(_)) && !matches!(before, State::Ended) {
        t.stop_seen = true;
    }
    let (after, effects) = next(&before, &event);
    t.state = after;
    for effect in effects {
        match effect {
            Effect::Claim => {
                assert!(
                    t.matched,
                    "claim without a manifest that matched: {trace:?} {event:?}"
                );
                assert!(
                    !t.stop_seen,
                    "claim after a stop was seen: {trace:?} {event:?}"
                );
                assert!(
                    !t.unapproved || matches!(before, State::Verifying(Mode::Automatic)),
                    "claim after a withdrawal: {trace:?}"
                );
                assert!(
                    t.leased || matches!(before, State::Verifying(Mode::Manual)),
                    "an automatic claim without a lease: {trace:?}"
                );
                t.claims_out = true;
            }
            Effect::RunApply => {
                assert!(t.granted, "apply without a claim: {trace:?} {event:?}");
                assert!(
                    t.matched,
                    "apply without a check after the hooks: {trace:?} {event:?}"
                );
                t.applies += 1;
            }
            Effect::RunHooksBefore => {
                assert!(
                    t.granted && t.applies == 0,
                    "hooks before the apply out of turn: {trace:?} {event:?}"
                );
                t.hooks_before += 1;
                t.matched = false;
            }
            Effect::RunHooksAfter(end) => {
                assert!(
                    matches!(before, State::Ending(_)),
                    "hooks at the end before its delivery: {trace:?} {event:?}"
                );
                assert!(
                    t.applies == 1 || end != Ending::Applied,
                    "{trace:?} {event:?}"
                );
                t.hooks_after += 1;
            }
            Effect::Interrupt => t.interrupts += 1,
            Effect::VerifyManifest | Effect::VerifyAgain => t.matched = false,
            _ => {}
        }
    }
    assert!(
        t.hooks_before <= 1 && t.hooks_after <= 1,
        "hooks twice: {trace:?} {event:?}"
    );
    assert!(t.applies <= 1, "two applies: {trace:?} {event:?}");
    assert!(t.interrupts <= 1, "two interrupts: {trace:?} {event:?}");
    t
}

fn explore() -> BTreeMap<Trace, BTreeSet<Trace>> {
    let (state, _) = begin();
    let first = Trace {
        state,
        applies: 0,
        interrupts: 0,
        matched: false,
        granted: false,
        claims_out: false,
        stop_seen: false,
        unapproved: false,
        leased: false,
        hooks_before: 0,
        hooks_after: 0,
    };
    let mut graph = BTreeMap::new();
    let mut queue = VecDeque::from([first]);
    while let Some(trace) = queue.pop_front() {
        if graph.contains_key(&trace) {
            continue;
        }
        let successors: BTreeSet<_> = events()
            .into_iter()
            .map(|event| step(trace, event))
            .collect();
        queue.extend(successors.iter().copied());
        graph.insert(trace, successors);
    }
    graph
}

#[test]
fn no_sequence_of_events_breaks_a_rule() {
    let graph = explore();
    assert!(
        graph.len() > 200,
        "{} situations are too few to be all",
        graph.len()
    );
    assert!(
        graph.keys().any(|t| t.applies == 1),
        "an apply is reachable"
    );
    assert!(graph.keys().any(|t| t.state == State::Ended));
    // Every state of the table is reachable.
    let name = |state: &State| {
        format!("{state:?}")
            .split([' ', '('])
            .next()
            .map(str::to_owned)
    };
    let reached: BTreeSet<_> = graph.keys().map(|t| name(&t.state)).collect();
    assert_eq!(reached, states().iter().map(name).collect::<BTreeSet<_>>());
}

#[test]
fn every_accepted_stop_leads_to_an_end() {
    // After a stop, the driver's own events (outcomes of running tasks, timers, the delivery of the end) lead to an end.
    for (trace, _) in explore() {
        if !trace.stop_seen || trace.state == State::Ended {
            continue;
        }
        // Deletion, denial and fencing do not end a claimed apply; its own outcome does.
        let mut state = trace.state;
        let mut steps = 0;
        while state != State::Ended {
            let event = match state {
                State::Stopping { .. } | State::HoldingBack { .. } | State::Interrupting { .. } => {
                    Event::Timer(Timer::GraceOver)
                }
                State::Claiming(..)
                | State::Preparing
                | State::VerifyingAgain
                | State::Applying
                | State::Finishing(_) => Event::Stop(Stop::Deadline),
                State::Ending(_) => Event::Write(Write::Delivered { hooks: true }),
                State::Reporting(_) => Event::Write(Write::Reported),
                other => panic!("a stop was seen and the attempt goes on in {other:?}"),
            };
            state = next(&state, &event).0;
            steps += 1;
            assert!(steps < 10, "{trace:?}");
        }
    }
}

#[test]
fn apply_is_interrupted_in_stages() {
    let (mut state, mut seen) = (State::Applying, Vec::new());
    for event in [
        Event::Stop(Stop::Terminated),
        Event::Stop(Stop::Cancelled),
        Event::Timer(Timer::GraceOver),
        Event::Timer(Timer::GraceOver),
        Event::Timer(Timer::GraceOver),
    ] {
        let (after, effects) = next(&state, &event);
        state = after;
        seen.extend(effects);
    }
    let end = Ending::Failed(Cause::Terminated);
    assert_eq!(
        seen,
        [
            Effect::Interrupt,
            Effect::KillProviders,
            Effect::KillTool,
            Effect::End(end)
        ]
    );
}

#[test]
fn users_request_outranks_a_signal() {
    let state = State::Stopping {
        stop: Stop::Terminated,
        killed: false,
    };
    let (state, _) = next(&state, &Event::Stop(Stop::Cancelled));
    let (state, _) = next(&state, &Event::Stop(Stop::Denied));
    assert_eq!(
        next(&state, &Event::Task(Task::StepFailed { retried: true })).0,
        State::Ending(Ending::Canceled)
    );
}
