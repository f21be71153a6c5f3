//! The search: every state that can be reached within the budgets, breadth first; what must always hold, what must be
//! reachable, and that every state leads to an end once nothing more goes wrong.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
};

use crds::{Changed, Phase, names};
use played::User;
use played::trace::{self, Deed};
use runner_agent::machine::{Effect, Event, State, Stop, Task, Timer};
use serde_json::{Value, json};

use crate::{
    agent::{self, Way},
    controller,
    state::World,
};

/// When everything that is waited for has come, in ticks of two minutes: what has not ended by then never does.
const LATEST: u8 = 60;

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Observe(usize, bool),
    /// So many of the actions that were decided.
    Act(usize, usize),
    Look(usize),
    Request(usize, Way),
    /// What runs ends well, or not.
    Work(usize, bool),
    Stop(usize),
    HoldOver(usize),
    Crash(usize),
    ForceDelete(usize),
    Approve,
    Withdraw,
    Cancel,
    Delete,
    /// Two minutes pass while somebody has something to do.
    Tick,
    /// Nobody has anything to do: time passes until a controller has.
    Wait,
    /// The run that has the lease on the state gives it back.
    Free,
}

impl Step {
    /// Whether it is a fault, or a person's whim: what need not happen for a run to come to its end.
    const fn is_fault(self) -> bool {
        match self {
            Self::Observe(_, stale) => stale,
            Self::Request(_, way) => !matches!(way, Way::Answered),
            Self::Work(_, fine) => !fine,
            Self::Crash(_) | Self::ForceDelete(_) | Self::Withdraw | Self::Cancel | Self::Delete | Self::Approve | Self::Tick => {
                true
            }
            Self::Act(..) | Self::Look(_) | Self::Stop(_) | Self::HoldOver(_) | Self::Wait | Self::Free => false,
        }
    }
}

pub(crate) fn steps(world: &World) -> Vec<Step> {
    let mut all = Vec::new();
    let left = world.left;
    for index in 0..2 {
        if world.seen[index].is_none() {
            if !controller::is_quiet(world, index) {
                all.push(Step::Observe(index, false));
            }
            if left.stale > 0 && world.before.is_some() {
                all.push(Step::Observe(index, true));
            }
        } else {
            let count = controller::decided(world, index).len();
            all.push(Step::Act(index, count));
            if count > 1 && left.crash > 0 {
                all.push(Step::Act(index, 1));
            }
        }
        let Some(agent) = world.agents[index].as_ref().filter(|agent| agent.alive) else { continue };
        if agent::has_news(world, index) {
            all.push(Step::Look(index));
        }
        if agent.pending.is_some() {
            all.push(Step::Request(index, Way::Answered));
            if left.lost > 0 {
                all.extend([Step::Request(index, Way::ReplyLost), Step::Request(index, Way::Lost)]);
            }
        }
        if agent.running.is_some() {
            all.push(Step::Work(index, true));
            if left.crash > 0 {
                all.push(Step::Work(index, false));
            }
        }
        if world.pods[index].there && world.pods[index].deleting && !agent.told {
            all.push(Step::Stop(index));
        }
        if agent.state == State::Awaiting && agent.pending.is_none() {
            all.push(Step::HoldOver(index));
        }
        if left.crash > 0 {
            all.push(Step::Crash(index));
        }
        if left.force > 0 && world.pods[index].there {
            all.push(Step::ForceDelete(index));
        }
    }
    let waits = world.run.as_ref().is_some_and(|run| run.status().phase == Some(Phase::AwaitingApproval));
    let whims = [
        (left.approve > 0 && waits, Step::Approve),
        (left.withdraw > 0 && waits, Step::Withdraw),
        (left.cancel > 0 && world.run.is_some(), Step::Cancel),
        (left.delete > 0 && world.run.is_some(), Step::Delete),
        // Time passes when nobody who looks has anything to do: what is done late is done on the same state.
        (left.ticks > 0 && controller::is_quiet(world, 0), Step::Tick),
    ];
    all.extend(whims.into_iter().filter(|(is, _)| *is).map(|(_, step)| step));
    if world.behind {
        all.push(Step::Free);
    }
    if world.now < LATEST && all.iter().all(|step| step.is_fault()) && !rests(world) {
        all.push(Step::Wait);
    }
    all
}

pub(crate) fn after(world: &World, step: Step) -> World {
    let mut world = world.clone();
    let alice = User::with("alice", &[names::VERB_APPROVE]);
    match step {
        Step::Observe(index, stale) => {
            world.left.stale -= u8::from(stale);
            controller::observe(&mut world, index, stale);
        }
        Step::Act(index, count) => controller::act(&mut world, index, count),
        Step::Look(index) => agent::look(&mut world, index),
        Step::Request(index, way) => {
            world.left.lost -= u8::from(way != Way::Answered);
            agent::request(&mut world, index, way);
        }
        Step::Work(index, fine) => work(&mut world, index, fine),
        Step::Stop(index) => {
            if let Some(agent) = world.agents[index].as_mut() {
                agent.told = true;
            }
            agent::feed(&mut world, index, Event::Stop(Stop::Terminated));
        }
        Step::HoldOver(index) => agent::feed(&mut world, index, Event::Timer(Timer::HoldOver)),
        Step::Crash(index) => {
            world.left.crash -= 1;
            if let Some(agent) = world.agents[index].as_mut() {
                // What it had put down for its node stays.
                agent.said = agent.said.take().filter(|_| matches!(agent.state, State::Ending(_)));
            }
            agent::die(&mut world, index);
        }
        Step::ForceDelete(index) => {
            world.left.force -= 1;
            world.pods[index].there = false;
        }
        Step::Approve => {
            world.left.approve -= 1;
            let plan = world.run.as_ref().and_then(|run| run.status().plan).unwrap_or_default();
            controller::annotate(&mut world, &alice, &json!({names::APPROVE: plan.checksum, names::APPROVED_BY: "alice"}));
        }
        Step::Withdraw => {
            world.left.withdraw -= 1;
            controller::annotate(&mut world, &alice, &json!({names::APPROVE: null, names::APPROVED_BY: null}));
        }
        Step::Cancel => {
            world.left.cancel -= 1;
            controller::annotate(&mut world, &alice, &json!({names::CANCEL: "why"}));
        }
        Step::Delete => {
            world.left.delete -= 1;
            controller::delete(&mut world);
        }
        Step::Tick => {
            world.left.ticks -= 1;
            world.now += 1;
        }
        Step::Free => world.behind = false,
        Step::Wait => {
            world.now += 1;
            while world.now < LATEST && (0..2).all(|index| controller::is_quiet(&world, index)) {
                world.now += 1;
            }
        }
    }
    world
}

fn work(world: &mut World, index: usize, fine: bool) {
    let Some(agent) = world.agents[index].as_mut() else { return };
    let Some(running) = agent.running.take() else { return };
    let event = match running {
        _ if !fine => Event::Task(Task::StepFailed { retried: true }),
        Effect::RunSetup | Effect::RunRestore => Event::Task(Task::SetupDone),
        Effect::RunInit => Event::Task(Task::InitDone),
        Effect::RunPlan => Event::Task(Task::PlanDone { changes: true, harmless: true }),
        Effect::VerifyManifest | Effect::VerifyAgain => Event::Task(Task::ManifestMatched),
        Effect::RunHooksBefore | Effect::RunHooksAfter(_) => Event::Task(Task::HooksDone),
        _ => Event::Task(Task::ApplyDone),
    };
    if !fine {
        world.left.crash -= 1;
    }
    if running == Effect::RunApply && fine {
        world.deed(Deed::Ended(true));
    }
    agent::feed(world, index, event);
}

/// What must hold in every state.
fn wrong(world: &World) -> Option<&'static str> {
    let status = world.run.as_ref().map(crate::state::Run::status).unwrap_or_default();
    let changes = status.failure.map_or(Changed::None, |failure| failure.changes);
    let lie = || trace::truth(status.result?, changes, status.claim.is_some(), &world.deeds);
    world.wrong.or_else(|| lie().map(|(invariant, _)| invariant))
}

/// Whether a state may be the last: the run ended and is tidy, or is gone, or waits for a person.
fn rests(world: &World) -> bool {
    let Some(run) = &world.run else { return true };
    let status = run.status();
    let open = status.attempt.as_ref().is_some_and(|attempt| attempt.open);
    let waits = status.phase == Some(Phase::AwaitingApproval) && status.approval.is_none() && !open;
    let deleted = run.typed.metadata.deletion_timestamp.is_some();
    // The model has pods for two attempts.
    let beyond = status.attempt.as_ref().is_some_and(|attempt| attempt.number > 2);
    (status.is_terminal() && !open && !deleted) || (waits && !deleted) || beyond
}

fn ending(world: &World) -> Option<&'static str> {
    let Some(run) = &world.run else { return Some("gone") };
    let status = run.status();
    match status.result {
        Some(result) => Some(result.as_str()),
        None if status.attempt.as_ref().is_some_and(|a| a.restores.is_some()) && status.claim.is_some() => Some("restored"),
        None if status.attempt.as_ref().is_some_and(|a| a.number > 1) => Some("retried"),
        None => None,
    }
}

fn print(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

pub(crate) struct Closed {
    pub states: usize,
    pub edges: usize,
    pub endings: BTreeMap<&'static str, usize>,
    /// Whether every state within the budgets was reached.
    pub whole: bool,
}

/// Searches from a state; at most so many states.
pub(crate) fn search(first: World, most: usize) -> Result<Closed, String> {
    let mut known: HashMap<u64, u32> = HashMap::from([(print(&first), 0)]);
    let mut parents: Vec<(u32, Option<Step>)> = vec![(0, None)];
    let mut resting = vec![rests(&first)];
    // Edges that are no faults, backwards.
    let mut back: Vec<Vec<u32>> = vec![Vec::new()];
    let mut expanded = vec![false];
    let (mut edges, mut endings) = (0, BTreeMap::new());
    let mut frontier = std::collections::VecDeque::from([(0_u32, first)]);
    while let Some((number, world)) = frontier.pop_front() {
        if known.len() > most {
            break;
        }
        expanded[number as usize] = true;
        if let Some(ending) = ending(&world) {
            *endings.entry(ending).or_default() += 1;
        }
        for step in steps(&world) {
            let next = after(&world, step);
            edges += 1;
            let fresh = u32::try_from(parents.len()).unwrap();
            let id = *known.entry(print(&next)).or_insert(fresh);
            if id == fresh {
                parents.push((number, Some(step)));
                resting.push(rests(&next));
                back.push(Vec::new());
                expanded.push(false);
                if let Some(text) = wrong(&next) {
                    return Err(format!("{text}\n{}", path(&parents, fresh)));
                }
                frontier.push_back((fresh, next));
            }
            if !step.is_fault() {
                back[id as usize].push(number);
            }
        }
    }
    // What was not looked at any further counts as an end: nothing is known of it.
    let mut leads: Vec<bool> = resting.iter().zip(&expanded).map(|(rests, expanded)| *rests || !expanded).collect();
    let mut reached: Vec<u32> = (0..u32::try_from(leads.len()).unwrap()).filter(|id| leads[*id as usize]).collect();
    while let Some(id) = reached.pop() {
        for before in std::mem::take(&mut back[id as usize]) {
            if !std::mem::replace(&mut leads[before as usize], true) {
                reached.push(before);
            }
        }
    }
    // The last of them, where the others lead.
    if let Some(stuck) = leads.iter().rposition(|leads| !leads) {
        return Err(format!("L1: nothing leads from here to an end\n{}", path(&parents, u32::try_from(stuck).unwrap())));
    }
    Ok(Closed { states: known.len(), edges, endings, whole: frontier.is_empty() })
}

/// The shortest way to a state.
fn path(parents: &[(u32, Option<Step>)], mut at: u32) -> String {
    let mut steps = Vec::new();
    while let (before, Some(step)) = parents[at as usize] {
        steps.push(format!("{step:?}"));
        at = before;
    }
    steps.reverse();
    steps.join("\n")
}

/// A state as JSON, to look at.
pub(crate) fn show(world: &World) -> Value {
    json!({"run": world.run.as_ref().map(|run| (*run.object).clone()), "agents": format!("{:?}", world.agents)})
}
