//! Results that arrive by the datastore: instead of a termination message, or after a run was given up as Indeterminate.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::draft::Draft;
use crate::{
    run::{
        decision::{Action, Decision, Kind, Write},
        memory::DatastoreAsked,
        observed::{LateResult, Observed, PodState},
        timing::{QUESTIONS, after, wait},
    },
    settings::Settings,
};
use crds::{Phase, RunResult, Settled, termination::TerminationMessage, text::clip, whole_seconds};

/// For how long an Indeterminate run is asked about.
const ASKED_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The result in a message, when the process that claimed this run wrote it and it is one that a claimed run can have. A claimed
/// run is never Canceled, and was neither without changes nor planned only: such a message is none.
pub(super) fn of_claim(o: &Observed, message: &TerminationMessage) -> Option<RunResult> {
    let result = message.result.filter(|_| is_claimant(o, message))?;
    let legal = (result.needs_claim() || result == RunResult::Failed) && Phase::Apply.may_become(result.phase());
    legal.then_some(result)
}

/// Whether the process that claimed this run says how it ended, in a word of a newer version: then it is known, and not to us.
pub(super) fn is_newer(o: &Observed, message: &TerminationMessage) -> bool {
    message.result == Some(RunResult::Unknown) && is_claimant(o, message)
}

fn is_claimant(o: &Observed, message: &TerminationMessage) -> bool {
    o.status().claim.as_ref().is_some_and(|claim| {
        message.run_uid == o.run.uid().unwrap_or_default()
            && message.attempt == claim.attempt
            && message.pod_uid == claim.pod_uid
            && message.nonce == claim.nonce
    })
}

/// Whether a run was given up and may still be explained.
fn open_question(o: &Observed) -> bool {
    let status = o.status();
    status.result == Some(RunResult::Indeterminate) && status.settled.is_none() && status.claim.is_some()
}

/// Proof of how an Indeterminate apply ended, from its pod or from the datastore: recorded once.
pub(super) fn settles(o: &Observed, now: Timestamp) -> Option<Write> {
    let of_pod = match &o.pod {
        PodState::Present(pod) => pod.ended.as_ref().and_then(|ended| ended.message.as_ref()),
        PodState::Absent | PodState::Unknown => None,
    };
    let of_store = match &o.late_result {
        LateResult::Found(message) => Some(&**message),
        LateResult::Absent | LateResult::Unknown => None,
    };
    let proves = |message| of_claim(o, message).filter(|result| *result != RunResult::Indeterminate);
    let (message, result) = [of_pod, of_store]
        .into_iter()
        .flatten()
        .find_map(|message| Some((message, proves(message)?)))
        .filter(|_| open_question(o))?;
    let mut draft = Draft::new(&o.run, now);
    let text = format!("{result}, as it turned out: {}", message.message);
    draft.set("settled", Settled { result, message: clip(&message.message, 1024), at: whole_seconds(now) });
    // What was said of the objects was said before this: it is asked for again.
    draft.clear("journal").line("Settled", &text).note("Settled", false, text);
    Some(draft.finish(Kind::Settled))
}

/// Asks the datastore about an Indeterminate run, less and less often.
pub(super) fn ask(o: &Observed, settings: &Settings, now: Timestamp) -> Option<Decision> {
    let ended = o.status().completion_time.as_ref().map(|t| t.0)?;
    if !open_question(o) || !settings.has_datastore() || now >= after(ended, ASKED_FOR) {
        return None;
    }
    if matches!(&o.late_result, LateResult::Found(message) if of_claim(o, message).is_some()) {
        // The agent itself could not say, and a result is written once.
        return None;
    }
    Some(match o.notes.datastore_asked {
        Some(asked) if now < asked.next_at => Decision::until(asked.next_at, now),
        Some(_) | None => Decision::act(Action::AskDatastore),
    })
}

pub(in crate::run) fn asked_again(before: Option<DatastoreAsked>, now: Timestamp) -> DatastoreAsked {
    let times = before.map_or(1, |asked| asked.times.saturating_add(1));
    DatastoreAsked { times, next_at: after(now, wait(QUESTIONS, times)) }
}
