//! What really happened to runs, read afterwards from the API server's audit log and the ledger of tools and states, and held
//! against what must never happen. It believes neither agent nor controller: every version of a run is as the API server
//! stored it, with who wrote it.

mod check;
mod evidence;
mod read;
mod rules;
mod shared;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crds::{TerraformRun, TerraformRunStatus};
use jiff::Timestamp;
use kube::ResourceExt as _;

pub use check::check;
pub use evidence::evidence;
pub use read::{end, read};

pub use played::trace::{Violation, Writer};

use ledger::Entry;

/// One version of a run, as the API server answered with it.
#[derive(Clone, Debug)]
pub struct Version {
    /// Position in the order of all writes.
    pub revision: u64,
    /// The version that the writer said it stood on; the API server took the write, so it was the one before. None when it
    /// named none.
    pub base: Option<u64>,
    /// When the API server answered.
    pub at: Timestamp,
    pub by: Writer,
    /// Whether the status was written, as opposed to the rest.
    pub of_status: bool,
    pub run: TerraformRun,
    /// Bytes of its status as JSON.
    pub status_bytes: usize,
}

impl Version {
    /// The run: `NAMESPACE/NAME`.
    pub(crate) fn of(&self) -> String {
        format!("{}/{}", self.run.namespace().unwrap_or_default(), self.run.name_any())
    }

    /// Whether it was written on another; none when its writer did not say what it stands on.
    fn follows(&self, before: &Self) -> Option<bool> {
        self.base.map(|base| base == before.revision)
    }
}

/// All versions of one run, in their order.
pub type Versions = Vec<Version>;

#[derive(Clone, Debug, Default)]
pub struct History {
    /// Versions by UID of the run.
    pub runs: BTreeMap<String, Versions>,
    /// Successful creations of pods: `NAMESPACE/NAME`, in their order.
    pub pods: Vec<(Timestamp, String)>,
    /// What tools and states wrote down.
    pub ledger: Vec<Entry>,
    /// When the API server was killed: a version that was stored then may be missing here.
    pub gaps: Vec<Timestamp>,
    /// Writes of a run, `NAMESPACE/NAME`, whose answer was an error of the server's: when they came and when they were answered.
    /// Such a write may have landed, and its version is missing here.
    pub lost: Vec<(Timestamp, Timestamp, String)>,
    /// How runs stand at the end, by UID, read live: the last version of a run may be among those that the log has not.
    pub last: BTreeMap<String, TerraformRunStatus>,
    /// The journals of runs that could be read, by `NAMESPACE/NAME`; empty where none is kept.
    pub journals: BTreeMap<String, String>,
    /// When something was struck that a journal passes on its way.
    pub outages: Vec<Timestamp>,
    /// All that the states know at the end.
    pub states: String,
    /// Lines of the audit log that hold the secret.
    pub leaks: Vec<String>,
    /// Names of the namespaces that are looked at.
    pub namespaces: Vec<String>,
}

/// What is missing between two versions that follow each other in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Nothing,
    /// Perhaps something: a write was not answered, and the later version does not say what it stands on.
    Perhaps,
    /// A version: the later one stands on one that is not here, and a write was not answered.
    Explained,
    /// A version, and no write is known that was not answered.
    Unexplained,
}

impl History {
    /// What is missing between two versions of a run.
    pub(crate) fn missing(&self, before: &Version, after: &Version) -> Missing {
        match (after.follows(before), self.may_miss(&after.of(), before.at, after.at)) {
            (Some(true), _) | (None, false) => Missing::Nothing,
            (None, true) => Missing::Perhaps,
            (Some(false), true) => Missing::Explained,
            (Some(false), false) => Missing::Unexplained,
        }
    }

    /// Places where the log is known to lack versions.
    pub(crate) fn holes(&self) -> usize {
        let pairs = self.runs.values().flat_map(|versions| versions.windows(2));
        pairs.filter(|pair| pair[1].follows(&pair[0]) == Some(false)).count()
    }

    /// Whether a version of a run may be missing between two times.
    pub(crate) fn may_miss(&self, of: &str, from: Timestamp, to: Timestamp) -> bool {
        let slack = jiff::SignedDuration::from_secs(2);
        let meets = |begin: Timestamp, end: Timestamp| {
            end.checked_add(slack).is_ok_and(|late| late >= from) && begin.checked_sub(slack).is_ok_and(|early| early <= to)
        };
        let lost = self.lost.iter().filter(|(_, _, run)| run == of).any(|(begin, end, _)| meets(*begin, *end));
        lost || self.gaps.iter().any(|gap| meets(*gap, *gap))
    }
}

/// The run's own entries of the ledger: its scripts carry its name, or, where it is of a layer, its pods wrote them.
fn entries<'a>(history: &'a History, versions: &Versions) -> Vec<&'a ledger::Entry> {
    let Some(last) = versions.last() else { return Vec::new() };
    let of = last.of();
    let pods = format!("{}-{}-a", last.run.name_any(), crds::names::short_hash(&last.run.uid().unwrap_or_default()));
    let is_own = |entry: &&ledger::Entry| entry.text("script") == Some(&of) || entry.who.starts_with(&pods);
    history.ledger.iter().filter(is_own).collect()
}
