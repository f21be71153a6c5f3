//! Checks every rule for every run.

use jiff::Timestamp;

use super::{History, Missing, rules, shared};
use played::trace::{self, Step, Violation};

/// Used instead of an invariant's number when the log itself is incomplete.
const LOG: &str = "log";

/// Checks a history. All runs must have ended by `ended_by`; `None` skips that check.
pub fn check(history: &History, ended_by: Option<Timestamp>) -> Vec<Violation> {
    let mut found = Vec::new();
    for versions in history.runs.values() {
        let Some(last) = versions.last() else {
            continue;
        };
        let of = last.of();
        let mut add = |invariant, text: Option<String>| {
            found.extend(text.map(|text| Violation::new(invariant, &of, text)));
        };
        let firsts = std::iter::once(None).chain(versions.iter().map(Some));
        for (before, after) in firsts.zip(versions) {
            let missing = before.map_or(Missing::Nothing, |before| history.missing(before, after));
            let lost = || {
                format!(
                    "the log lacks what {} stands on, and no write went unanswered",
                    after.revision
                )
            };
            add(LOG, (missing == Missing::Unexplained).then(lost));
            let step = Step {
                before: before.map(|before| &before.run),
                after: &after.run,
                by: after.of_status.then_some(&after.by),
                whole: missing == Missing::Nothing,
            };
            for (invariant, text) in trace::step(&step)
                .into_iter()
                .chain(trace::version(&after.run, after.status_bytes))
            {
                add(invariant, Some(text));
            }
        }
        add("L1", ended_by.and_then(|_| rules::ended(versions, history)));
        for text in rules::pods(versions, history) {
            add("S9", Some(text));
        }
        for (invariant, text) in rules::truth(versions, history) {
            add(invariant, Some(text));
        }
        for text in shared::forgotten(versions, history) {
            add("S34", Some(text));
        }
    }
    found.extend(shared::overlaps(history));
    let is_silent = |unlock: &ledger::Entry| ledger::is_silent(&history.ledger, unlock);
    for text in ledger::violations_where(&history.ledger, is_silent) {
        found.push(Violation::new("S1", "ledger", text));
    }
    let leaks = history
        .leaks
        .iter()
        .map(|line| format!("holds the secret: {line}"));
    found.extend(leaks.map(|text| Violation::new("S15", "audit log", text)));
    found
}
