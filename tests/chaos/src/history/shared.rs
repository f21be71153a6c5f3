//! Rules about data that outlives a run: shared states, and objects made in them.

use std::collections::BTreeMap;

use crds::{RunResult, apply_log::Line};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::{History, Missing, Versions, Violation, entries};
use ledger::{Entry, what};

/// An object that was created within this time before a kill of its process may be in no state and no journal.
const LAST_MOMENT: SignedDuration = SignedDuration::from_secs(2);
/// An outage on the way to the datastore may last this long, so an object that was created within this time after a kill may be missing.
const AWAY: SignedDuration = SignedDuration::from_secs(8);

/// A state: namespace and key.
type State = (String, String);

/// An interval in an order of events on a state.
struct Span {
    of: String,
    from: u64,
    to: u64,
}

fn state(versions: &Versions) -> Option<State> {
    let mut plans = versions
        .iter()
        .rev()
        .filter_map(|version| version.status().plan.as_ref());
    let key = plans.find_map(|plan| plan.state_key.clone())?;
    Some((versions.last()?.run.namespace().unwrap_or_default(), key))
}

/// The applies by state, each from its begin to the last action of its process.
fn applies(history: &History) -> Vec<(State, Span)> {
    let mut found = Vec::new();
    for versions in history.runs.values() {
        let (Some(state), Some(last)) = (state(versions), versions.last()) else {
            continue;
        };
        let of_apply = |entry: &Entry| entry.text("command") == Some("apply");
        let is_begin = |entry: &&Entry| of_apply(entry) && entry.what == what::COMMAND_START;
        for begin in entries(history, versions).into_iter().filter(is_begin) {
            let own = |entry: &Entry| entry.who == begin.who && of_apply(entry);
            let places = history
                .ledger
                .iter()
                .zip(0..)
                .filter(|(entry, _)| own(entry));
            let places: Vec<u64> = places.map(|(_, place)| place).collect();
            if let (Some(&from), Some(&to)) = (places.first(), places.last()) {
                found.push((
                    state.clone(),
                    Span {
                        of: last.of(),
                        from,
                        to,
                    },
                ));
            }
        }
    }
    found
}

/// Intervals in which a run is known to have the lease on a state: between versions, with none missing in between.
fn leases(history: &History) -> Vec<(State, Span)> {
    let mut found: Vec<(State, Span)> = Vec::new();
    for versions in history.runs.values() {
        let mut before = None;
        for version in versions {
            let key = version
                .status()
                .lease
                .as_ref()
                .map(|lease| lease.state_key.clone());
            let is_whole = |before| history.missing(before, version) == Missing::Nothing;
            let whole = before.is_some_and(|(before, had)| had == key && is_whole(before));
            before = Some((version, key.clone()));
            let Some(key) = key else { continue };
            if let Some((_, span)) = found.last_mut().filter(|_| whole) {
                span.to = version.revision;
            } else {
                let (from, to) = (version.revision, version.revision);
                let span = Span {
                    of: version.of(),
                    from,
                    to,
                };
                found.push(((version.run.namespace().unwrap_or_default(), key), span));
            }
        }
    }
    found
}

/// Two runs at once on a state: overlapping applies, and overlapping leases.
pub(super) fn overlaps(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (what, mut spans) in [
        ("applied a plan", applies(history)),
        ("had the lease", leases(history)),
    ] {
        spans.sort_by(|(one, a), (other, b)| (one, a.from, a.to).cmp(&(other, b.from, b.to)));
        for ((one, a), (other, b)) in spans.iter().zip(spans.iter().skip(1)) {
            if one == other && b.from < a.to && a.of != b.of {
                let text = format!(
                    "{} {what} on the state {} before {} had ended",
                    b.of, one.1, a.of
                );
                found.push(Violation::new("S29", &b.of, text));
            }
        }
    }
    found
}

impl History {
    /// Number of states with plans of more than one run, number of those runs, and how many of these applied.
    pub(crate) fn competition(&self) -> (usize, usize, usize) {
        let mut runs: BTreeMap<State, usize> = BTreeMap::new();
        for state in self.runs.values().filter_map(state) {
            *runs.entry(state).or_default() += 1;
        }
        runs.retain(|_, count| *count > 1);
        let applies = applies(self);
        let applied = applies.iter().filter(|(state, _)| runs.contains_key(state));
        (runs.len(), runs.values().sum(), applied.count())
    }
}

/// Objects that a run created and that are neither in a state nor in its journal. Excludes those of the last moment before a kill.
pub(super) fn forgotten(versions: &Versions, history: &History) -> Vec<String> {
    let Some(last) = versions.last() else {
        return Vec::new();
    };
    let status = last.status();
    // Without a readable journal there is nothing to check.
    let Some(journal) = history.journals.get(&last.of()) else {
        return Vec::new();
    };
    let lines = journal
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let lines: Vec<Line> = lines.collect();
    let is_known = |id: &str| {
        let named = |line: &Line| matches!(line, Line::Complete(operation) if operation.id.as_deref() == Some(id));
        let deleted =
            |entry: &Entry| entry.text("action") == Some("delete") && entry.text("id") == Some(id);
        history.states.contains(id) || history.ledger.iter().any(deleted) || lines.iter().any(named)
    };
    let is_begun = |address: &str| {
        let begun =
            |line: &Line| matches!(line, Line::Start(operation) if operation.address == address);
        lines.iter().any(begun)
    };
    let at = |entry: &Entry| entry.at.parse::<Timestamp>().unwrap_or_default();
    let killed = status.result == Some(RunResult::Indeterminate);
    let told = status
        .history
        .iter()
        .any(|line| line.contains("not with the datastore"));
    let own = entries(history, versions);
    let is_made =
        |entry: &&&Entry| entry.what == what::RESOURCE && entry.text("action") != Some("delete");
    let made: Vec<_> = own.iter().filter(is_made).collect();
    let is_lost = |entry: &&&&Entry| {
        let (id, address) = (entry.text("id").unwrap_or_default(), entry.text("address"));
        let last = made.iter().rfind(|other| other.who == entry.who);
        let is_last = last.is_some_and(|last| last == *entry);
        let of_process = own.iter().filter(|other| other.who == entry.who);
        let end = of_process.map(|other| at(other)).max().unwrap_or_default();
        let lately = at(entry) + LAST_MOMENT >= end;
        let is_near =
            |outage: &Timestamp| *outage + AWAY >= at(entry) && *outage <= end + LAST_MOMENT;
        let excused = killed && (lately || history.outages.iter().any(is_near));
        let known = is_known(id) || is_last && is_begun(address.unwrap_or_default());
        !(known || excused || told)
    };
    let lost = made.iter().filter(is_lost);
    let result = status.result;
    lost.map(|entry| format!("{entry:?} is in no state and in no journal; the run says {result:?}"))
        .collect()
}
