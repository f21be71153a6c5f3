//! What became of the objects of an apply whose agent cannot say it: the datastore compares the journal with a managed state. It never
//! holds an end up: what it did not say in time is added later.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::draft::Draft;
use crate::{
    run::{
        decision::{Action, Decision, Kind, Write},
        observed::Observed,
        timing::after,
    },
    settings::Settings,
};
use crds::{Journal, RunResult, names, status_limit};

/// For how long after its end a run without a journal is asked about.
const ASKED_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Whether an apply ended so that its objects have to be accounted for.
const fn is_due(result: RunResult) -> bool {
    matches!(result, RunResult::Failed | RunResult::Indeterminate)
}

/// With the end of a claimed run: what its agent said of the objects stays, otherwise what the datastore said.
pub(super) fn tell(draft: &mut Draft<'_>, o: &Observed, result: RunResult, settings: &Settings) {
    let status = o.status();
    let Some(claim) = status.claim.as_ref().filter(|_| is_due(result)) else { return };
    let alone = || {
        let pod = status.attempt.as_ref().filter(|attempt| attempt.number == claim.attempt).map_or("its pod", |a| &a.pod_name);
        let summary = format!("without a datastore what the tool said of each object is in the log of {pod} only");
        Journal { summary, ..Journal::default() }
    };
    let told = status.journal.clone().or_else(|| fresh(o).cloned());
    if let Some(journal) = told.or_else(|| (!settings.has_datastore()).then(alone)) {
        write(draft, o, journal, result);
    }
}

/// What the datastore said, unless more is known of the run since.
fn fresh(o: &Observed) -> Option<&Journal> {
    let (settled, journal) = o.notes.journal.as_ref()?;
    (*settled == o.status().settled.is_some()).then_some(journal)
}

fn write(draft: &mut Draft<'_>, o: &Observed, journal: Journal, result: RunResult) {
    let Some(mut whole) = draft.whole().map(|run| run.status.clone().unwrap_or_default()) else { return };
    let step = if journal.wants_recovery() {
        Some(names::recover_command(&o.run.namespace().unwrap_or_default(), &o.run.name_any()))
    } else {
        draft.next_step(result, whole.failure.as_ref())
    };
    if whole.journal.as_ref() != Some(&journal) {
        draft.line("Journal", &journal.summary);
    }
    whole.journal = Some(journal);
    status_limit::fit_journal(&mut whole);
    draft.set("journal", whole.journal);
    if let Some(step) = step {
        draft.set("nextStep", step);
    }
}

/// A run that has ended and says nothing of its objects.
fn is_missing(o: &Observed, now: Timestamp) -> bool {
    let status = o.status();
    let ended = status.completion_time.as_ref().is_some_and(|at| now < after(at.0, ASKED_FOR));
    ended && status.claim.is_some() && status.journal.is_none() && status.result.is_some_and(is_due)
}

/// What the datastore said after the end.
pub(super) fn adds(o: &Observed, now: Timestamp) -> Option<Write> {
    let (journal, result) = (fresh(o)?, o.status().result?);
    if !is_missing(o, now) {
        return None;
    }
    let mut draft = Draft::new(&o.run, now);
    write(&mut draft, o, journal.clone(), result);
    Some(draft.finish(Kind::Journal))
}

/// Asks the datastore again.
pub(super) fn ask(o: &Observed, settings: &Settings, now: Timestamp) -> Option<Decision> {
    if !is_missing(o, now) || !settings.has_datastore() {
        return None;
    }
    Some(match o.notes.datastore_asked {
        // It has answered, before the run was settled: then at once, and otherwise less and less often.
        Some(asked) if now < asked.next_at && o.notes.journal.is_none() => Decision::until(asked.next_at, now),
        Some(_) | None => Decision::act(Action::AskDatastore),
    })
}
