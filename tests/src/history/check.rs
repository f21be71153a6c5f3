//! The check: every rule over every run.

use std::fmt;

use jiff::Timestamp;

use super::{History, Missing, Versions, rules};
use crate::ledger;

/// Stands in the place of an invariant where the check itself does not have what it needs.
const LOG: &str = "log";

/// Something that must never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant in `design/invariants.md`, or `log`: the log itself cannot be relied on.
    pub invariant: &'static str,
    /// `NAMESPACE/NAME` of the run, or what else it is about.
    pub of: String,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.invariant, self.of, self.text)
    }
}

/// Holds a history against the invariants. `ended_by`: until when every run has to have ended; none to leave that open.
pub fn check(history: &History, ended_by: Option<Timestamp>) -> Vec<Violation> {
    let mut found = Vec::new();
    for versions in history.runs.values() {
        let Some(last) = versions.last() else { continue };
        let of = last.of();
        let mut add = |invariant, text: Option<String>| {
            if let Some(text) = text {
                found.push(Violation { invariant, of: of.clone(), text });
            }
        };
        let pairs = || versions.windows(2).map(|pair| (&pair[0], &pair[1]));
        for (before, after) in pairs() {
            let missing = history.missing(before, after);
            let whole = missing == Missing::Nothing;
            let lost = || format!("the log lacks what {} stands on, and no write went unanswered", after.revision);
            add(LOG, (missing == Missing::Unexplained).then(lost));
            add("S12", rules::phase(before, after, whole));
            add("S5", rules::frozen(before, after));
            add("S9", rules::attempts(before, after, whole));
            add("S8", rules::claimed_is_last(before, after));
            if whole {
                add("S6", rules::writer(before, after));
            }
        }
        for version in versions {
            add("S16", rules::size(version));
            add("L1", rules::named(version));
        }
        for text in rules::claim(versions, history) {
            add("S2", Some(text));
        }
        add("L1", ended_by.and_then(|_| rules::ended(versions, history)));
        for text in rules::pods(versions, history) {
            add("S9", Some(text));
        }
        for (invariant, text) in rules::truth(versions, history) {
            add(invariant, Some(text));
        }
    }
    for text in ledger::violations(&history.ledger) {
        found.push(Violation { invariant: "S1", of: "ledger".into(), text });
    }
    for line in &history.leaks {
        found.push(Violation { invariant: "S15", of: "audit log".into(), text: format!("holds the secret: {line}") });
    }
    found
}

/// The run's own entries of the ledger: its scripts carry its name.
pub(super) fn entries<'a>(history: &'a History, versions: &Versions) -> Vec<&'a ledger::Entry> {
    let Some(last) = versions.last() else { return Vec::new() };
    let of = last.of();
    history.ledger.iter().filter(|entry| entry.text("script") == Some(&of)).collect()
}
