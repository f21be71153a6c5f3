//! Runs that have ended, or end before an attempt of theirs is open.

use jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _};

use super::{
    apply_log, close,
    draft::{Draft, End},
    late_result,
    lost_node::{self, Fate},
    policies, recovery, release, rerun, state_queue,
};
use crate::{
    gc::ttl,
    run::{
        decision::{Action, Decision, Kind},
        observed::Observed,
        situation::AttemptPod,
        timing::{ASK_GRACE, after},
    },
    settings::Settings,
};
use crds::{Attempt, Phase, RunResult, conditions, names};

/// Somebody asks that a run without an open attempt comes to an end.
pub(super) fn stopped(o: &Observed, result: RunResult, why: &str, now: Timestamp) -> Decision {
    if o.status().phase.is_some() {
        return release::end(o, &End::stopped(result, why), now);
    }
    if o.run.meta().deletion_timestamp.is_some() {
        return release::remove(&o.run);
    }
    // The first phase is Pending, so the end takes a second write.
    let mut draft = Draft::new(&o.run, now);
    draft.set("phase", Phase::Pending);
    Decision::act(Action::Write(draft.finish(Kind::Begin)))
}

/// The agent has ended the run, and its pod is still to end.
pub(super) fn but_open(o: &Observed, attempt: &Attempt, pod: &AttemptPod<'_>, now: Timestamp) -> Decision {
    match pod {
        AttemptPod::Unknown => close::look_again(now),
        AttemptPod::Absent | AttemptPod::Ended(_) => close::ended(o, attempt, now),
        AttemptPod::Running(pod) => {
            // A node that is lost may keep its pod for long: people need not wait for it.
            let ended_at = o.status().completion_time.as_ref().map_or(now, |t| t.0);
            let late = after(ended_at, ASK_GRACE);
            if now < late {
                return Decision::until(late, now);
            }
            if let Fate::Lost(_) | Fate::Over(_) = lost_node::fate(o) {
                return close::ended(o, attempt, now);
            }
            let mut actions: Vec<_> = unfinished(o, now).into_iter().collect();
            if o.run.meta().deletion_timestamp.is_some() && !pod.deleting {
                actions.push(Action::delete(pod));
            }
            Decision::all(actions)
        }
    }
}

/// The conditions of a run that has ended, when it does not have them yet.
fn unfinished(o: &Observed, now: Timestamp) -> Option<Action> {
    let finished = conditions::status(&o.status().conditions, conditions::FINISHED) == Some(true);
    (!finished).then(|| Action::Write(close::finish_conditions(o, Kind::Conditions, now)))
}

/// The run has ended and no attempt is open: tidy up, answer a rerun, or delete it when its TTL is over.
pub(super) fn at_rest(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    // Before its pod is let go: what it says may be the proof that an Indeterminate run waits for.
    if let Some(write) = late_result::settles(o, now) {
        return Decision::act(Action::Write(write));
    }
    let acts = |decision: &Option<Decision>| decision.clone().filter(|decision| !decision.actions.is_empty());
    let lease = state_queue::confirmed(o, settings, now);
    if let Some(decision) = acts(&lease).or_else(|| release::pod(o)) {
        return decision;
    }
    let lease = lease.or_else(|| state_queue::unconfirmed(o, settings, now));
    if let Some(decision) = acts(&lease) {
        return decision;
    }
    let mut decision = match (o.run.meta().deletion_timestamp.is_some(), &lease) {
        (true, None) => return release::remove(&o.run),
        // What proves the end of its apply lets go of its lease, and with that of the run.
        (true, Some(_)) => late_result::ask(o, settings, now).unwrap_or_else(Decision::wait),
        (false, _) => tidy(o, settings, now),
    };
    if decision.actions.is_empty() {
        decision.requeue = decision.requeue.into_iter().chain(lease.and_then(|lease| lease.requeue)).min();
    }
    decision
}

/// Nothing of the run is left: conditions, a rerun that is asked for, a late result, its time.
fn tidy(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    if let Some(action) = unfinished(o, now) {
        return Decision::act(action);
    }
    let reruns = o.run.annotations().get(names::RERUN).is_some_and(|value| value == "true");
    if reruns && o.status().rerun.is_some() {
        // So that asking once more is seen, and refused with the name of the run that answered.
        return Decision::act(Action::TakeOff(&[names::RERUN]));
    }
    let recovers = !reruns && recovery::is_asked(&o.run);
    if recovers && o.run.whole().is_none() {
        // The cache does not know whether there was a claim.
        return Decision::act(Action::Read);
    }
    if reruns || recovers {
        // Who may ask is the policies' business.
        let answer = || if reruns { rerun::answer(o, now) } else { recovery::answer(o, now) };
        return policies::unproven(o, now).unwrap_or_else(answer);
    }
    if let Some(write) = apply_log::adds(o, now) {
        return Decision::act(Action::Write(write));
    }
    let asked = late_result::ask(o, settings, now).or_else(|| apply_log::ask(o, settings, now));
    asked.unwrap_or_else(|| expire(o, settings, now))
}

/// Whether the run goes now, later or never.
fn expire(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let status = o.status();
    let ttl = o.run.spec.ttl_seconds_after_finished;
    match ttl::due(&o.run, ttl, status.completion_time.as_ref(), status.result, settings) {
        Some(due) if now >= due => Decision::act(Action::Prune),
        // Until then the sweep of finished runs remembers it.
        Some(due) => {
            Decision { requeue: Decision::until(due, now).requeue.filter(|wait| *wait < 2 * ttl::SWEEP), ..Decision::wait() }
        }
        None => Decision::wait(),
    }
}
