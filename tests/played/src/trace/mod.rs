//! The invariants of every run, one function each, and functions that check all of them. The simulator checks them during a life, the kill
//! loop afterwards in the audit log. The numbers are those of `design/invariants.md`.

mod deeds;
mod rules;

use std::fmt;

use crds::{Changed, RunResult, TerraformRun};

pub use deeds::{Deed, Deeds};

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant in `design/invariants.md`, or `log` if the log itself is unreliable.
    pub invariant: &'static str,
    /// `NAMESPACE/NAME` of the run, or another subject.
    pub of: String,
    pub text: String,
}

impl Violation {
    pub fn new(invariant: &'static str, of: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            invariant,
            of: of.into(),
            text: text.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.invariant, self.of, self.text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Writer {
    pub user: String,
    /// Name of the pod whose token was used. Empty for other writers.
    pub pod: String,
    /// UID of that pod.
    pub pod_uid: String,
}

/// A version of a run, and the previous one.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// `None` for the first known version.
    pub before: Option<&'a TerraformRun>,
    pub after: &'a TerraformRun,
    /// The writer of its status, if known.
    pub by: Option<&'a Writer>,
    /// Whether no version between the two is missing.
    pub whole: bool,
}

/// The invariants that a step violates, each with a description.
pub fn step(step: &Step) -> Vec<(&'static str, String)> {
    let Step {
        before,
        after,
        by,
        whole,
    } = *step;
    let mut found = Vec::new();
    if let Some(before) = before {
        let pairs = [
            ("S12", rules::phase(before, after, whole)),
            ("S5", rules::frozen(before, after)),
            ("S9", rules::attempts(before, after, whole)),
            ("S8", rules::claimed_is_last(before, after)),
            (
                "S6",
                by.and_then(|by| rules::writer(before, after, by, whole)),
            ),
            (
                "S7",
                by.filter(|_| whole)
                    .and_then(|by| rules::fields(before, after, by)),
            ),
        ];
        found.extend(
            pairs
                .into_iter()
                .filter_map(|(invariant, text)| Some((invariant, text?))),
        );
    }
    let claimed = |run: &TerraformRun| run.status.as_ref().and_then(|status| status.claim.clone());
    if let Some(claim) =
        claimed(after).filter(|_| before.is_none_or(|before| claimed(before).is_none()))
    {
        found.extend(rules::claim(&claim, after, by, whole));
    }
    found
}

/// The invariants that a single version violates. `bytes` is the size of its status as JSON.
pub fn version(run: &TerraformRun, bytes: usize) -> Vec<(&'static str, String)> {
    let found = [("S16", rules::size(bytes)), ("L1", rules::named(run))];
    found
        .into_iter()
        .filter_map(|(invariant, text)| Some((invariant, text?)))
        .collect()
}

/// The invariant violated by a run whose result differs from its tool's actions. `changes` is from its failure.
pub fn truth(
    result: RunResult,
    changes: Changed,
    claimed: bool,
    deeds: &Deeds,
) -> Option<(&'static str, String)> {
    rules::truth(result, changes, claimed, deeds)
}
