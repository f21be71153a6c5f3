//! The account of the objects of an apply whose agent cannot give it: the datastore compares the journal with a managed state. An end never
//! waits for it: a late account is added after the end.

use jiff::SignedDuration;

use crate::run::{
    outcome::{Action, Decision, Objects, Outcome},
    situation::Situation,
    timing::after,
};
use crds::{Journal, RunResult};

/// For how long after its end a run without a journal is asked about.
const ASKED_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Whether an apply ended so that its objects have to be accounted for.
const fn is_due(result: RunResult) -> bool {
    matches!(result, RunResult::Failed | RunResult::Indeterminate)
}

/// The account that goes with the end of a claimed run: the one of its agent stays, otherwise that of the datastore.
pub(super) fn known(s: &Situation<'_>, result: RunResult) -> Option<Objects> {
    let status = s.status();
    if !is_due(result) || status.claim.is_none() {
        return None;
    }
    let told = status.journal.as_ref().or_else(|| fresh(s));
    told.map(|journal| Objects::Compared(Box::new(journal.clone())))
        .or_else(|| (!s.settings.has_datastore()).then_some(Objects::InLog))
}

/// The datastore's account, unless the run was settled since.
fn fresh<'a>(s: &Situation<'a>) -> Option<&'a Journal> {
    let (settled, journal) = s.notes.journal.as_ref()?;
    (*settled == s.status().settled.is_some()).then_some(journal)
}

/// The run has ended and lacks the account of its objects.
fn is_missing(s: &Situation<'_>) -> bool {
    let status = s.status();
    let ended = status.completion_time.as_ref().is_some_and(|at| s.now < after(at.0, ASKED_FOR));
    ended && status.claim.is_some() && status.journal.is_none() && status.result.is_some_and(is_due)
}

/// The datastore's account, after the end.
pub(super) fn adds(s: &Situation<'_>) -> Option<Outcome> {
    let journal = fresh(s).filter(|_| is_missing(s))?;
    Some(Outcome::Accounted(Box::new(journal.clone())))
}

/// Asks the datastore again.
pub(super) fn ask(s: &Situation<'_>) -> Option<Decision> {
    if !is_missing(s) || !s.settings.has_datastore() {
        return None;
    }
    Some(match s.notes.datastore_asked {
        // It has answered, before the run was settled: then at once, and otherwise less and less often.
        Some(asked) if s.now < asked.next_at && s.notes.journal.is_none() => Decision::until(asked.next_at, s.now),
        Some(_) | None => Decision::act(Action::AskDatastore),
    })
}
