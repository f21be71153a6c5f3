//! Ends of attempts: the table of `design/0001-run-protocol.md`.

use jiff::Timestamp;
use kube::ResourceExt;

use super::{apply_log, cleanup::closing, late_result, lost_node, state_queue, waiting_plan};
use crate::{
    run::{
        observed::LateResult,
        outcome::{Action, Cause, Decision, Ending, NodeLoss, Outcome, RunEnd, Unconfirmed},
        situation::{OpenAttempt, Situation},
        timing::{CREATION_LAG, GONE_WAIT, after, backoff},
    },
    runner_pod::status::PodView,
};
use crds::{Attempt, Phase, RunResult, reason, termination::TerminationMessage};

/// Looks again after the creation lag: the pod may be missing from the cache only.
pub(super) fn look_again(now: Timestamp) -> Decision {
    Decision::until(after(now, CREATION_LAG), now)
}

/// The part of log and journal that the pod could not upload to the datastore.
fn unkept(s: &Situation<'_>) -> Option<String> {
    s.own_pod?.ended.as_ref()?.message.as_ref()?.unkept.clone()
}

/// Row 1: the agent has ended the run.
pub(super) fn ended(s: &Situation<'_>, attempt: &Attempt) -> Decision {
    let result = s.status().result.unwrap_or(RunResult::Failed);
    let returns_lease = state_queue::returns_at_end(s, result);
    closing(
        s,
        attempt,
        Outcome::FinishedAndClosed {
            unkept: unkept(s),
            returns_lease,
        },
    )
}

/// The pod's termination message, if the process that the status names wrote it.
fn believed<'a>(
    s: &Situation<'_>,
    open: &OpenAttempt<'_>,
    pod: &'a PodView,
) -> Option<&'a TerminationMessage> {
    let message = pod.ended.as_ref()?.message.as_ref()?;
    let number = open.attempt.number;
    let adopted = s.status().adopted.as_ref().filter(|_| open.adopted);
    let of_pod = message.run_uid == s.run.uid().unwrap_or_default()
        && message.attempt == number
        && message.pod_uid == pod.uid;
    let of_process =
        adopted.is_none_or(|adopted| adopted.pod_uid == pod.uid && adopted.nonce == message.nonce);
    (of_pod && of_process).then_some(message)
}

/// Rows 2 and 3: claimed without an end, and the pod ended.
pub(super) fn claimed(s: &Situation<'_>, pod: &PodView) -> Decision {
    let message = pod.ended.as_ref().and_then(|ended| ended.message.as_ref());
    if let Some((message, result)) =
        message.and_then(|message| Some((message, late_result::of_claim(s, message)?)))
    {
        return delivered(s, message, result);
    }
    if message.is_some_and(|message| late_result::is_newer(s, message)) {
        // The held pod retains the message until a controller version runs that knows its result.
        return Decision::wait();
    }
    unconfirmed(
        s,
        Unconfirmed::PodEnded(pod.ended.as_ref().map(|ended| ended.text.clone())),
    )
}

/// Ends a claimed run with the result that the claiming process reported.
fn delivered(s: &Situation<'_>, message: &TerminationMessage, result: RunResult) -> Decision {
    end_claimed(
        s,
        Ending::Delivered {
            result,
            message: message.message.clone(),
            failure: message.failure.clone(),
        },
    )
}

/// The pod does not prove how the apply ended: takes the datastore's answer, otherwise Indeterminate.
pub(super) fn unconfirmed(s: &Situation<'_>, why: Unconfirmed) -> Decision {
    let found = match s.late_result {
        LateResult::Unknown if s.settings.has_datastore() => {
            return Decision::act(Action::AskDatastore);
        }
        LateResult::Unknown | LateResult::Absent => None,
        LateResult::Found(message) if late_result::is_newer(s, message) => return Decision::wait(),
        LateResult::Found(message) => {
            late_result::of_claim(s, message).map(|result| (message, result))
        }
    };
    match found {
        Some((message, result)) => delivered(s, message, result),
        None => end_claimed(s, Ending::Unconfirmed(why)),
    }
}

/// Ends a claimed run, and closes its attempt unless another writer has closed it.
fn end_claimed(s: &Situation<'_>, ending: Ending) -> Decision {
    let (open, result) = (s.run.open_attempt(), ending.result());
    let outcome = Outcome::Ended(RunEnd {
        ending,
        closes: open.is_some(),
        unkept: open.and_then(|_| unkept(s)),
        returns_lease: state_queue::returns_at_end(s, result),
        objects: apply_log::known(s, result),
    });
    match open {
        Some(attempt) => closing(s, attempt, outcome),
        None => Decision::write(outcome),
    }
}

/// Row 4: claimed without an end, and the pod is gone or its node is over (`node` tells why). Waits under a condition, then ends as
/// Indeterminate.
pub(super) fn claimed_and_gone(s: &Situation<'_>, node: Option<String>) -> Decision {
    match s.status().stalled_since(reason::POD_GONE) {
        Some(since) if s.now >= after(since, GONE_WAIT) => {
            unconfirmed(s, Unconfirmed::PodGone { node, since })
        }
        Some(since) => Decision::until(after(since, GONE_WAIT), s.now),
        None => Decision::write(Outcome::PodGone {
            node,
            record: lost_node::record(s, false),
        }),
    }
}

/// Row 5: cancelled, denied, deleted, superseded or made before a restore, before the claim.
pub(super) fn early(s: &Situation<'_>, attempt: &Attempt, ending: Ending) -> Decision {
    closing(
        s,
        attempt,
        Outcome::Ended(RunEnd::unclaimed(ending, true, None)),
    )
}

/// Closes an unclaimed attempt whose node is lost. The attempt did not fail, so it uses up no try.
pub(super) fn node_lost(s: &Situation<'_>, open: &OpenAttempt<'_>, loss: NodeLoss) -> Decision {
    closing(
        s,
        open.attempt,
        Outcome::NodeLost {
            loss,
            plan_waits: open.waiting.is_some(),
        },
    )
}

/// Rows 6 and 7: unclaimed, and the pod ended or is gone.
pub(super) fn unclaimed(
    s: &Situation<'_>,
    open: &OpenAttempt<'_>,
    pod: Option<&PodView>,
) -> Decision {
    let (status, attempt, adopted) = (s.status(), open.attempt, open.adopted);
    let message = pod.and_then(|pod| believed(s, open, pod));
    let phase = status.phase.unwrap_or(Phase::Pending);
    // Before the adoption the failure in the status is the controller's own: why the pod did not start.
    let said = status.failure.as_ref().filter(|_| adopted);
    // The pod ended as announced at the end of its hold.
    let quiet = message
        .is_some_and(|message| message.result.is_none() && message.failure.is_none())
        && said.is_none();
    // A result that the agent could not write to the status. Before the claim nothing was applied, whatever the message reports.
    let delivered = message
        .filter(|_| adopted)
        .and_then(|message| Some((message, message.result?)))
        .filter(|(_, result)| !result.needs_claim() && phase.may_become(result.phase()));
    let failure = message
        .and_then(|message| message.failure.clone())
        .or_else(|| said.cloned());
    let ends = |ending| {
        closing(
            s,
            attempt,
            Outcome::Ended(RunEnd::unclaimed(ending, true, unkept(s))),
        )
    };
    if let Some((message, result)) = delivered {
        let failure = failure.filter(|_| result.phase() == Phase::Failed);
        return ends(Ending::Delivered {
            result,
            message: message.message.clone(),
            failure,
        });
    }
    let cause = match (failure, pod.and_then(|pod| pod.ended.as_ref())) {
        (Some(failure), _) => Cause::Told(failure),
        (None, Some(ended)) => Cause::PodEnded {
            reason: ended.reason,
            text: ended.text.clone(),
        },
        (None, None) => Cause::PodGone,
    };
    if !cause.class().is_retried() {
        return ends(Ending::Failed(cause));
    }
    if open.waiting.is_some() {
        return waiting_plan::close(s, attempt, cause, quiet);
    }
    if quiet && state_queue::is_queued(s) {
        return closing(s, attempt, Outcome::Requeued);
    }
    if attempt.tries > s.run.spec.retry.limit {
        return ends(Ending::TriesUsedUp {
            cause,
            restoring: false,
        });
    }
    let next = after(s.now, backoff(attempt.tries));
    closing(
        s,
        attempt,
        Outcome::Retried {
            cause,
            unkept: unkept(s),
            next,
        },
    )
}
