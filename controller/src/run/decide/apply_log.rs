//! Adds the journal of an apply whose agent could not write it: the datastore compares it with a managed state. The end of a run never
//! waits for it; a late journal is added afterwards.

use jiff::SignedDuration;

use crate::run::{
    outcome::{Action, Decision, Objects, Outcome},
    situation::Situation,
    timing::after,
};
use crds::{Journal, RunResult};

/// The controller asks about a run without a journal for this long after its end.
const ASKED_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Whether an apply with this result needs an account of its objects.
const fn is_due(result: RunResult) -> bool {
    matches!(result, RunResult::Failed | RunResult::Indeterminate)
}

/// The journal that the end of a claimed run records: the agent's if it wrote one, otherwise the datastore's.
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

/// Whether the run has ended without an account of its objects and is still asked about.
fn is_missing(s: &Situation<'_>) -> bool {
    let status = s.status();
    let ended = status
        .completion_time
        .as_ref()
        .is_some_and(|at| s.now < after(at.0, ASKED_FOR));
    ended && status.claim.is_some() && status.journal.is_none() && status.result.is_some_and(is_due)
}

/// Adds the datastore's account after the end.
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
        // An account from before the settlement is asked for again at once; otherwise with backoff.
        Some(asked) if s.now < asked.next_at && s.notes.journal.is_none() => {
            Decision::until(asked.next_at, s.now)
        }
        Some(_) | None => Decision::act(Action::AskDatastore),
    })
}
