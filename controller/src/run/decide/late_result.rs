//! Results that arrive through the datastore: instead of a termination message, or after the run ended as Indeterminate.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::run::{
    expectations::DatastoreAsked,
    observed::LateResult,
    outcome::{Action, Decision, Outcome},
    situation::Situation,
    timing::{QUESTIONS, after, wait},
};
use crds::{Phase, RunResult, termination::TerminationMessage};

/// The controller asks about an Indeterminate run for this long after its end.
const ASKED_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The result in a message, if the process that claimed this run wrote it and a claimed run may have it. A claimed run is never Canceled,
/// without changes or planned only: such a result is ignored.
pub(super) fn of_claim(s: &Situation<'_>, message: &TerminationMessage) -> Option<RunResult> {
    let result = message.result.filter(|_| is_claimant(s, message))?;
    let legal = (result.needs_claim() || result == RunResult::Failed)
        && Phase::Apply.may_become(result.phase());
    legal.then_some(result)
}

/// Whether the claiming process reports a result of a newer version, which this version must not guess.
pub(super) fn is_newer(s: &Situation<'_>, message: &TerminationMessage) -> bool {
    message.result == Some(RunResult::Unknown) && is_claimant(s, message)
}

fn is_claimant(s: &Situation<'_>, message: &TerminationMessage) -> bool {
    s.status().claim.as_ref().is_some_and(|claim| {
        message.run_uid == s.run.uid().unwrap_or_default()
            && message.attempt == claim.attempt
            && message.pod_uid == claim.pod_uid
            && message.nonce == claim.nonce
    })
}

/// Whether the run is Indeterminate and not settled.
fn open_question(s: &Situation<'_>) -> bool {
    let status = s.status();
    status.result == Some(RunResult::Indeterminate)
        && status.settled.is_none()
        && status.claim.is_some()
}

/// Proof of how an Indeterminate apply ended, from its pod or the datastore. Recorded once.
pub(super) fn settles(s: &Situation<'_>) -> Option<Outcome> {
    let of_pod = s
        .own_pod
        .and_then(|pod| pod.ended.as_ref()?.message.as_ref());
    let of_store = match s.late_result {
        LateResult::Found(message) => Some(&**message),
        LateResult::Absent | LateResult::Unknown => None,
    };
    let proves =
        |message| of_claim(s, message).filter(|result| *result != RunResult::Indeterminate);
    let mut messages = [of_pod, of_store].into_iter().flatten();
    let (message, result) = messages
        .find_map(|message| Some((message, proves(message)?)))
        .filter(|_| open_question(s))?;
    Some(Outcome::Settled {
        result,
        message: message.message.clone(),
    })
}

/// Asks the datastore about an Indeterminate run, with backoff.
pub(super) fn ask(s: &Situation<'_>) -> Option<Decision> {
    let ended = s.status().completion_time.as_ref().map(|t| t.0)?;
    if !open_question(s) || !s.settings.has_datastore() || s.now >= after(ended, ASKED_FOR) {
        return None;
    }
    if matches!(s.late_result, LateResult::Found(message) if of_claim(s, message).is_some()) {
        // The agent itself reported Indeterminate, and a result is written once.
        return None;
    }
    Some(match s.notes.datastore_asked {
        Some(asked) if s.now < asked.next_at => Decision::until(asked.next_at, s.now),
        Some(_) | None => Decision::act(Action::AskDatastore),
    })
}

pub(in crate::run) fn asked_again(
    before: Option<DatastoreAsked>,
    now: Timestamp,
) -> DatastoreAsked {
    let times = before.map_or(1, |asked| asked.times.saturating_add(1));
    DatastoreAsked {
        times,
        next_at: after(now, wait(QUESTIONS, times)),
    }
}
