//! Runs that have ended, and runs that end without an open attempt.

use kube::Resource as _;

use super::{
    apply_log, cleanup, close_attempt, late_result, policies, recovery, rerun, state_queue,
};
use crate::{
    gc::expired_runs,
    run::{
        outcome::{Action, Decision, Ending, Outcome},
        situation::{AttemptPod, Fate, Situation},
        timing::{ASK_GRACE, after},
    },
};
use crds::{Attempt, RunResult, conditions, names};

/// Stops a run without an open attempt.
pub(super) fn stopped(s: &Situation<'_>, result: RunResult, why: &str) -> Decision {
    if s.status().phase.is_some() {
        return cleanup::end(Ending::Stopped {
            result,
            why: why.to_owned(),
        });
    }
    if s.run.meta().deletion_timestamp.is_some() {
        return cleanup::remove(s.run);
    }
    // The first phase is Pending, so the end takes a second write.
    Decision::write(Outcome::Noticed)
}

/// The agent has ended the run, and its pod has still to end.
pub(super) fn but_open(s: &Situation<'_>, attempt: &Attempt, pod: &AttemptPod<'_>) -> Decision {
    match pod {
        AttemptPod::Unknown => close_attempt::look_again(s.now),
        AttemptPod::Absent | AttemptPod::Ended(_) => close_attempt::ended(s, attempt),
        AttemptPod::Running(pod) => {
            // A lost node may keep its pod for long. Write the conditions after the grace all the same.
            let ended_at = s.status().completion_time.as_ref().map_or(s.now, |t| t.0);
            let late = after(ended_at, ASK_GRACE);
            if s.now < late {
                return Decision::until(late, s.now);
            }
            if let Fate::Lost(_) | Fate::Over(_) = s.fate {
                return close_attempt::ended(s, attempt);
            }
            let mut actions: Vec<_> = unfinished(s).into_iter().collect();
            if s.run.meta().deletion_timestamp.is_some() && !pod.deleting {
                actions.push(Action::delete(pod));
            }
            Decision::all(actions)
        }
    }
}

/// The final conditions, if the run lacks them.
fn unfinished(s: &Situation<'_>) -> Option<Action> {
    let finished = conditions::status(&s.status().conditions, conditions::FINISHED) == Some(true);
    (!finished).then_some(Action::Write(Outcome::Finished))
}

/// The run has ended and no attempt is open: cleans up, answers a rerun, or deletes the run when its TTL is over.
pub(super) fn at_rest(s: &Situation<'_>) -> Decision {
    // Read the message before the pod is released: it may prove the end of an Indeterminate run.
    if let Some(outcome) = late_result::settles(s) {
        return Decision::write(outcome);
    }
    let acts = |decision: &Option<Decision>| {
        decision
            .clone()
            .filter(|decision| !decision.actions.is_empty())
    };
    let lease = state_queue::confirmed(s);
    if let Some(decision) = acts(&lease).or_else(|| cleanup::pod(s)) {
        return decision;
    }
    let lease = lease.or_else(|| state_queue::unconfirmed(s));
    if let Some(decision) = acts(&lease) {
        return decision;
    }
    let mut decision = match (s.run.meta().deletion_timestamp.is_some(), &lease) {
        (true, None) => return cleanup::remove(s.run),
        // Proof of the apply's end releases the lease, and then the run.
        (true, Some(_)) => late_result::ask(s).unwrap_or_else(Decision::wait),
        (false, _) => tidy(s),
    };
    if decision.actions.is_empty() {
        decision.requeue = decision
            .requeue
            .into_iter()
            .chain(lease.and_then(|lease| lease.requeue))
            .min();
    }
    decision
}

/// Nothing of the run remains: writes the conditions, answers a rerun or recovery, asks for a late result, expires the run.
fn tidy(s: &Situation<'_>) -> Decision {
    if let Some(action) = unfinished(s) {
        return Decision::act(action);
    }
    let reruns = names::is_on(s.run.meta(), names::RERUN);
    if reruns && s.status().rerun.is_some() {
        // Removes the annotation, so that a second request is a change, which the policy refuses with the name of the run that answered the
        // first.
        return Decision::act(Action::TakeOff(&[names::RERUN]));
    }
    let recovers = !reruns && recovery::is_asked(s.run);
    if recovers && s.run.whole().is_none() {
        // The packed form does not tell whether there was a claim.
        return Decision::act(Action::Read);
    }
    if reruns || recovers {
        // The admission policies decide who may ask.
        let answer = || {
            if reruns {
                rerun::answer(s)
            } else {
                recovery::answer(s)
            }
        };
        return policies::unproven(s).unwrap_or_else(answer);
    }
    if let Some(outcome) = apply_log::adds(s) {
        return Decision::write(outcome);
    }
    let asked = late_result::ask(s).or_else(|| apply_log::ask(s));
    asked.unwrap_or_else(|| expire(s))
}

/// Deletes the run now, later or never, by its TTL.
fn expire(s: &Situation<'_>) -> Decision {
    let status = s.status();
    let ttl = s.run.spec.ttl_seconds_after_finished;
    match expired_runs::due(
        s.run,
        ttl,
        status.completion_time.as_ref(),
        status.result,
        s.settings,
    ) {
        Some(due) if s.now >= due => Decision::act(Action::Prune),
        // The sweep of finished runs takes those that are due later.
        Some(due) => Decision {
            requeue: Decision::until(due, s.now)
                .requeue
                .filter(|wait| *wait < 2 * expired_runs::SWEEP),
            ..Decision::wait()
        },
        None => Decision::wait(),
    }
}
