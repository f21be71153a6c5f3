//! An agent in the model: `machine::next` verbatim, and around it what the driver and its writer do with a lost reply.

use crds::{ApprovalMode, RunResult, names};
use played::trace::Deed;
use runner_agent::{
    api::is_leased,
    machine::{Cause, Effect, Ending, Event, Mode, Permission, State, Stop, Terms, Write, begin, next},
};
use serde_json::{Value, json};

use crate::state::{Agent, Levels, Said, World, agent_user, failure, nonce, state_key, sum};

/// How a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Answered,
    /// It lands, and nobody hears so.
    ReplyLost,
    /// It never lands.
    Lost,
}

/// The pod of an attempt begins to run.
pub(crate) fn start(world: &mut World, index: usize) {
    let (state, effects) = begin();
    world.agents[index] = Some(Agent {
        alive: true,
        state,
        pending: effects.first().copied(),
        running: None,
        levels: Levels::default(),
        told: false,
        interrupts: 0,
        said: None,
    });
}

fn levels(world: &World, index: usize) -> Levels {
    let Some(run) = &world.run else { return Levels { fenced: true, ..Levels::default() } };
    let status = run.status();
    let annotated = |key: &str| run.typed.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key));
    let checksum = status.plan.as_ref().map(|plan| plan.checksum.clone()).unwrap_or_default();
    Levels {
        fenced: !is_own(world, index),
        cancelled: annotated(names::CANCEL),
        deleted: run.typed.metadata.deletion_timestamp.is_some(),
        approved: !checksum.is_empty() && crds::approval::stands(&run.typed, &checksum),
        leased: checksum == sum(index) && is_leased(&run.typed),
    }
}

fn is_own(world: &World, index: usize) -> bool {
    let Some(run) = &world.run else { return false };
    let status = run.status();
    let number = u32::try_from(index).unwrap() + 1;
    status.attempt.as_ref().is_some_and(|a| a.open && a.number == number)
        && status.adopted.as_ref().is_some_and(|a| a.attempt == number && a.nonce == nonce(index))
}

/// Gives an event to the machine and takes up what it orders.
pub(crate) fn feed(world: &mut World, index: usize, event: Event) {
    let Some(agent) = world.agents[index].clone() else { return };
    let (state, effects) = next(&agent.state, &event);
    let before = agent.state;
    let agent = world.agents[index].as_mut().unwrap();
    agent.state = state;
    // A write that was under way for a phase that is over is given up, as the driver does.
    if before != state && !effects.is_empty() {
        agent.pending = None;
    }
    let hooks = world.hooks;
    for effect in effects {
        let agent = world.agents[index].as_mut().unwrap();
        match effect {
            Effect::Adopt | Effect::Record(_) | Effect::Claim => agent.pending = Some(effect),
            Effect::RunSetup
            | Effect::RunRestore
            | Effect::RunInit
            | Effect::RunPlan
            | Effect::VerifyManifest
            | Effect::RunHooksBefore
            | Effect::VerifyAgain
            | Effect::RunHooksAfter(_) => {
                agent.running = Some(effect);
            }
            Effect::RunApply => {
                agent.running = Some(effect);
                apply(world, index);
            }
            Effect::Interrupt => {
                agent.interrupts += 1;
                if agent.interrupts > 1 {
                    world.wrong = Some("S13: a second SIGINT");
                }
            }
            Effect::End(ending) => {
                agent.running = None;
                agent.said = Some(said(ending));
                agent.pending = Some(effect).filter(|_| !hooks);
            }
            Effect::Report => {
                agent.running = None;
                if let State::Reporting(ending) = state {
                    agent.pending = Some(Effect::End(ending));
                }
            }
            Effect::Exit => die(world, index),
            Effect::KillOthers | Effect::KillProviders | Effect::KillTool => {}
        }
    }
    // What the process says stands with the datastore and in its pod at once; the hooks behind it take their time.
    if let (State::Ending(_), true) = (state, hooks && before != state) {
        feed(world, index, Event::Write(Write::Delivered { hooks: true }));
        return;
    }
    // As the driver does on entering them.
    if state == State::Leasing && before != State::Leasing && world.agents[index].as_ref().is_some_and(|a| a.levels.leased) {
        feed(world, index, Event::Permission(Permission::Leased));
    }
    // An approval may have come before the acknowledgement of the plan.
    if state == State::Awaiting && before != State::Awaiting && world.agents[index].as_ref().is_some_and(|a| a.levels.approved) {
        feed(world, index, Event::Permission(Permission::Approved));
    }
}

fn apply(world: &mut World, index: usize) {
    let status = world.run.as_ref().map(crate::state::Run::status);
    // A run that is gone had its claim nevertheless: it goes only when its attempt is closed.
    let own = status.as_ref().map_or(Some(true), |status| status.claim.as_ref().map(|claim| claim.nonce == nonce(index)));
    world.deed(Deed::Applies(own));
}

/// The process ends, and its pod with it.
pub(crate) fn die(world: &mut World, index: usize) {
    let Some(agent) = world.agents[index].as_mut() else { return };
    agent.alive = false;
    (agent.pending, agent.running) = (None, None);
    let said = agent.said.clone();
    let pod = &mut world.pods[index];
    if pod.there {
        (pod.ended, pod.said) = (true, said);
    }
}

fn result(ending: Ending) -> Option<RunResult> {
    match ending {
        Ending::NoChanges => Some(RunResult::NoChanges),
        Ending::Planned => Some(RunResult::Planned),
        Ending::Applied => Some(RunResult::Applied),
        Ending::Rejected => Some(RunResult::Rejected),
        Ending::Canceled | Ending::Deleted => Some(RunResult::Canceled),
        Ending::Expired => Some(RunResult::Expired),
        Ending::Failed(_) => Some(RunResult::Failed),
        Ending::Released | Ending::Queued | Ending::Attempt(_) => None,
    }
}

fn said(ending: Ending) -> Said {
    // Told to end while the plan is kept elsewhere, it ends in peace: the model keeps every plan.
    Said { result: result(ending), failed: matches!(ending, Ending::Failed(_) | Ending::Attempt(Cause::Step)) }
}

/// The agent's look at its run.
pub(crate) fn look(world: &mut World, index: usize) {
    let new = levels(world, index);
    let Some(agent) = world.agents[index].as_mut() else { return };
    let old = std::mem::replace(&mut agent.levels, new);
    let events = [
        (new.fenced && !old.fenced, Event::Stop(Stop::Fenced)),
        (new.cancelled && !old.cancelled, Event::Stop(Stop::Cancelled)),
        (new.deleted && !old.deleted, Event::Stop(Stop::Deleted)),
        (!new.approved && old.approved, Event::Permission(Permission::Withdrawn)),
        (new.approved && !old.approved, Event::Permission(Permission::Approved)),
        (new.leased && !old.leased, Event::Permission(Permission::Leased)),
    ];
    for (happens, event) in events {
        if happens && world.agents[index].as_ref().is_some_and(|agent| agent.alive) {
            feed(world, index, event);
        }
    }
}

/// Whether a look would show anything new.
pub(crate) fn has_news(world: &World, index: usize) -> bool {
    world.agents[index].as_ref().is_some_and(|a| a.alive && a.state != State::Adopting && a.levels != levels(world, index))
}

/// What a write puts into the status.
fn wanted(world: &World, index: usize, effect: Effect) -> Value {
    let number = index + 1;
    let status = world.run.as_ref().map(crate::state::Run::status).unwrap_or_default();
    let restores = status.attempt.as_ref().is_some_and(|attempt| attempt.restores.is_some());
    match effect {
        Effect::Adopt => {
            let phase = if restores { "AwaitingApproval" } else { "Setup" };
            json!({"phase": phase, "failure": null,
                "adopted": {"attempt": number, "podUID": format!("pod-{index}"), "nonce": nonce(index)}})
        }
        Effect::Record(phase) => {
            let planned = matches!(world.agents[index].as_ref().map(|agent| agent.state), Some(State::RecordingResult(_)));
            if planned && !restores {
                json!({"phase": phase, "plan": {"checksum": sum(index), "attempt": number, "summary": "+1 ~0 -0", "add": 1, "change": 0,
                    "destroy": 0, "import": 0, "replace": 0, "forget": 0, "outputs": 0, "tool": "t", "bundle": sum(index), "stateKey": state_key(),
                    "createdAt": "2027-01-15T08:00:00Z"}})
            } else {
                json!({"phase": phase})
            }
        }
        Effect::Claim => {
            let checksum = status.plan.as_ref().map(|plan| plan.checksum.clone()).unwrap_or_default();
            json!({"phase": "Apply", "claim": {"checksum": checksum, "attempt": number, "podUID": format!("pod-{index}"),
                "nonce": nonce(index), "at": "2027-01-15T08:00:00Z"}})
        }
        Effect::End(ending) => {
            let failed = matches!(ending, Ending::Failed(_) | Ending::Attempt(Cause::Step));
            let mut status = json!({});
            if failed {
                status["failure"] = json!(failure());
            }
            if let Some(result) = result(ending) {
                status["phase"] = json!(result.phase());
                status["result"] = json!(result);
            }
            status
        }
        _ => json!({}),
    }
}

/// The write that is under way goes this way; what the agent makes of it.
pub(crate) fn request(world: &mut World, index: usize, way: Way) {
    let Some(effect) = world.agents[index].as_ref().and_then(|agent| agent.pending) else { return };
    // The tests that the honest agent puts before its writes: the attempt open, its own nonce.
    let mine = if effect == Effect::Adopt { true } else { is_own(world, index) };
    let there = world.pods[index].there;
    let patch = wanted(world, index, effect);
    let landed = way != Way::Lost && there && mine && world.commit(&agent_user(index), &patch);
    if landed && way == Way::Answered {
        world.agents[index].as_mut().unwrap().pending = None;
        return granted(world, index, effect);
    }
    judge(world, index, effect);
}

fn granted(world: &mut World, index: usize, effect: Effect) {
    let status = world.run.as_ref().map(crate::state::Run::status).unwrap_or_default();
    let automatic = world.run.as_ref().is_some_and(|run| run.typed.spec.approval.mode == ApprovalMode::Automatic);
    let mode = if automatic { Mode::Automatic } else { Mode::Manual };
    match effect {
        Effect::Adopt => {
            let restores = status.attempt.as_ref().is_some_and(|attempt| attempt.restores.is_some());
            look(world, index);
            if world.agents[index].as_ref().is_some_and(|agent| agent.alive && agent.state == State::Adopting) {
                feed(
                    world,
                    index,
                    if restores {
                        Event::Write(Write::AdoptedPlan)
                    } else {
                        Event::Write(Write::Adopted(Terms { plan_only: false, mode }))
                    },
                );
            }
        }
        Effect::Record(_) => {
            look(world, index);
            if world.agents[index].as_ref().is_some_and(|agent| agent.alive) {
                feed(world, index, Event::Write(Write::Recorded));
            }
        }
        Effect::Claim => {
            let hooks = world.hooks;
            feed(world, index, Event::Write(Write::ClaimGranted { hooks }));
        }
        Effect::End(_) => feed(world, index, Event::Write(Write::Reported)),
        _ => {}
    }
}

/// No plain success: the run is read, and what it says decides.
fn judge(world: &mut World, index: usize, effect: Effect) {
    let there = world.pods[index].there;
    let give_up = |world: &mut World, event| {
        world.agents[index].as_mut().unwrap().pending = None;
        feed(world, index, event);
    };
    if effect == Effect::Adopt {
        let status = world.run.as_ref().map(crate::state::Run::status).unwrap_or_default();
        let open = status.attempt.as_ref().is_some_and(|a| a.open && usize::try_from(a.number) == Ok(index + 1));
        if is_own(world, index) {
            world.agents[index].as_mut().unwrap().pending = None;
            granted(world, index, effect);
        } else if !open || !there {
            give_up(world, Event::Write(Write::AdoptionRefused));
        }
        return;
    }
    if !there || !is_own(world, index) {
        let event = if matches!(effect, Effect::End(_)) { Event::Write(Write::Reported) } else { Event::Stop(Stop::Fenced) };
        return give_up(world, event);
    }
    let Some(run) = world.run.clone() else { return };
    let patch = wanted(world, index, effect);
    let stands = patch.as_object().is_some_and(|fields| {
        fields.iter().all(|(field, value)| {
            run.object["status"].get(field).is_some_and(|there| there == value || field == "plan" || field == "failure")
        })
    });
    let status = run.status();
    if stands {
        world.agents[index].as_mut().unwrap().pending = None;
        return granted(world, index, effect);
    }
    if effect == Effect::Claim {
        let now = levels(world, index);
        let automatic = run.typed.spec.approval.mode == ApprovalMode::Automatic;
        if status.claim.is_some() {
            give_up(world, Event::Stop(Stop::Fenced));
        } else if now.cancelled || now.deleted || (!now.approved && !automatic) {
            look(world, index);
            give_up(world, Event::Write(Write::ClaimRefused));
        }
    }
}
