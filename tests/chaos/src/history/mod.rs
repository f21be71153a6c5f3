//! The history of runs, read from the API server's audit log and the ledger of tools and states, and checked against the invariants. It
//! relies on neither agent nor controller: every version of a run is as the API server stored it, with its writer.

mod check;
mod evidence;
mod read;
mod rules;
mod shared;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::LazyLock};

use crds::{TerraformRun, TerraformRunStatus, names};
use jiff::Timestamp;
use kube::ResourceExt as _;

pub use check::check;
pub use evidence::evidence;
pub use read::{end, read};

pub use played::trace::{Violation, Writer};

use ledger::Entry;

/// One version of a run, from a response of the API server.
#[derive(Clone, Debug)]
pub struct Version {
    /// Position in the order of all writes.
    pub revision: u64,
    /// The resourceVersion precondition of the write. Since the API server accepted the write, this was the previous version. `None`
    /// without a precondition.
    pub base: Option<u64>,
    /// Time of the response.
    pub at: Timestamp,
    pub by: Writer,
    /// Whether the write was to the status subresource.
    pub of_status: bool,
    pub run: TerraformRun,
    /// Size of its status as JSON.
    pub status_bytes: usize,
}

impl Version {
    /// The run: `NAMESPACE/NAME`.
    pub(crate) fn of(&self) -> String {
        format!(
            "{}/{}",
            self.run.namespace().unwrap_or_default(),
            self.run.name_any()
        )
    }

    pub(crate) fn status(&self) -> &TerraformRunStatus {
        static NONE: LazyLock<TerraformRunStatus> = LazyLock::new(TerraformRunStatus::default);
        self.run.status.as_ref().unwrap_or(&NONE)
    }

    /// The name of the pod of an attempt.
    fn pod(&self, attempt: u32) -> String {
        names::attempt_name(
            &self.run.name_any(),
            &self.run.uid().unwrap_or_default(),
            attempt,
        )
    }

    /// Whether it directly follows another version. `None` if the write had no precondition.
    fn follows(&self, before: &Self) -> Option<bool> {
        self.base.map(|base| base == before.revision)
    }
}

/// All versions of one run, in order.
pub type Versions = Vec<Version>;

#[derive(Clone, Debug, Default)]
pub struct History {
    /// Versions by UID of the run.
    pub runs: BTreeMap<String, Versions>,
    /// Successful creations of pods: `NAMESPACE/NAME`, in order.
    pub pods: Vec<(Timestamp, String)>,
    /// Entries of tools and states.
    pub ledger: Vec<Entry>,
    /// Times at which the API server was killed. A version stored then may be missing here.
    pub gaps: Vec<Timestamp>,
    /// Writes of a run, `NAMESPACE/NAME`, with a server error as response: time of request and response. Such a write may have landed, and
    /// its version is missing here.
    pub lost: Vec<(Timestamp, Timestamp, String)>,
    /// Final statuses by UID, read live: the log may lack the last version of a run.
    pub last: BTreeMap<String, TerraformRunStatus>,
    /// Journals of runs that were readable, by `NAMESPACE/NAME`. Empty where none is stored.
    pub journals: BTreeMap<String, String>,
    /// Times of kills and network faults between an agent and the datastore, which may interrupt a journal.
    pub outages: Vec<Timestamp>,
    /// The contents of all states at the end.
    pub states: String,
    /// Lines of the audit log that contain the secret.
    pub leaks: Vec<String>,
    /// Names of the checked namespaces.
    pub namespaces: Vec<String>,
}

/// The gap between two consecutive versions in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Nothing,
    /// Perhaps a version: a write had no response, and the later version had no precondition.
    Perhaps,
    /// A version: the later one's precondition is not in the log, and a write had no response.
    Explained,
    /// A version, although all writes had a response.
    Unexplained,
}

impl History {
    /// The gap between two versions of a run.
    pub(crate) fn missing(&self, before: &Version, after: &Version) -> Missing {
        match (
            after.follows(before),
            self.may_miss(&after.of(), before.at, after.at),
        ) {
            (Some(true), _) | (None, false) => Missing::Nothing,
            (None, true) => Missing::Perhaps,
            (Some(false), true) => Missing::Explained,
            (Some(false), false) => Missing::Unexplained,
        }
    }

    /// Number of places where the log is known to lack versions.
    pub(crate) fn holes(&self) -> usize {
        let pairs = self.runs.values().flat_map(|versions| versions.windows(2));
        pairs
            .filter(|pair| pair[1].follows(&pair[0]) == Some(false))
            .count()
    }

    /// Whether a version of a run may be missing between two times.
    pub(crate) fn may_miss(&self, of: &str, from: Timestamp, to: Timestamp) -> bool {
        let slack = jiff::SignedDuration::from_secs(2);
        let meets = |begin: Timestamp, end: Timestamp| {
            end.checked_add(slack).is_ok_and(|late| late >= from)
                && begin.checked_sub(slack).is_ok_and(|early| early <= to)
        };
        let lost = self
            .lost
            .iter()
            .filter(|(_, _, run)| run == of)
            .any(|(begin, end, _)| meets(*begin, *end));
        lost || self.gaps.iter().any(|gap| meets(*gap, *gap))
    }
}

/// The run's entries of the ledger: those with the name of its script or, for a run of a layer, those that its pods wrote.
fn entries<'a>(history: &'a History, versions: &Versions) -> Vec<&'a Entry> {
    let Some(last) = versions.last() else {
        return Vec::new();
    };
    let of = last.of();
    let uid = last.run.uid().unwrap_or_default();
    let pods = format!("{}-{}-a", last.run.name_any(), names::short_hash(&uid));
    let is_own = |entry: &&Entry| entry.text("script") == Some(&of) || entry.who.starts_with(&pods);
    history.ledger.iter().filter(is_own).collect()
}
