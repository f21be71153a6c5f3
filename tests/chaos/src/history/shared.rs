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
    let key = versions.iter().rev().find_map(|version| version.run.status.as_ref()?.plan.as_ref()?.state_key.clone())?;
    Some((versions.last()?.run.namespace().unwrap_or_default(), key))
}

/// The applies by state, each from its begin to the last action of its process.
fn applies(history: &History) -> Vec<(State, Span)> {
    let mut found = Vec::new();
    for versions in history.runs.values() {
        let (Some(state), Some(last)) = (state(versions), versions.last()) else { continue };
        let of_apply = |entry: &Entry| entry.text("command") == Some("apply");
        for begin in entries(history, versions).into_iter().filter(|entry| of_apply(entry) && entry.what == what::COMMAND_START) {
            let own = history.ledger.iter().zip(0..).filter(|(entry, _)| entry.who == begin.who && of_apply(entry));
            let places: Vec<u64> = own.map(|(_, place)| place).collect();
            if let (Some(from), Some(to)) = (places.first(), places.last()) {
                found.push((state.clone(), Span { of: last.of(), from: *from, to: *to }));
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
            let key = version.run.status.as_ref().and_then(|status| status.lease.as_ref()).map(|lease| lease.state_key.clone());
            let whole = before.is_some_and(|(before, had)| had == key && history.missing(before, version) == Missing::Nothing);
            before = Some((version, key.clone()));
            let Some(key) = key else { continue };
            if let Some((_, span)) = found.last_mut().filter(|_| whole) {
                span.to = version.revision;
            } else {
                let span = Span { of: version.of(), from: version.revision, to: version.revision };
                found.push(((version.run.namespace().unwrap_or_default(), key), span));
            }
        }
    }
    found
}

/// Pairs of overlapping spans of one state.
fn pairs(mut spans: Vec<(State, Span)>) -> Vec<(State, String, String)> {
    spans.sort_by(|(one, a), (other, b)| (one, a.from, a.to).cmp(&(other, b.from, b.to)));
    let overlap = |(one, a): &(State, Span), (other, b): &(State, Span)| one == other && b.from < a.to && a.of != b.of;
    let found = spans.windows(2).filter(|pair| overlap(&pair[0], &pair[1]));
    found.map(|pair| (pair[0].0.clone(), pair[0].1.of.clone(), pair[1].1.of.clone())).collect()
}

/// Two runs at once on a state: overlapping applies, and overlapping leases.
pub(super) fn overlaps(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (what, spans) in [("applied a plan", applies(history)), ("had the lease", leases(history))] {
        for ((_, key), first, second) in pairs(spans) {
            let text = format!("{second} {what} on the state {key} before {first} had ended");
            found.push(Violation { invariant: "S29", of: second, text });
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
        let applied = applies(self).into_iter().filter(|(state, _)| runs.contains_key(state)).count();
        (runs.len(), runs.values().sum(), applied)
    }
}

/// Objects that a run created and that are neither in a state nor in its journal. Excludes those of the last moment before a kill.
pub(super) fn forgotten(versions: &Versions, history: &History) -> Vec<String> {
    let Some(last) = versions.last() else { return Vec::new() };
    let status = last.run.status.clone().unwrap_or_default();
    // Without a readable journal there is nothing to check.
    let Some(journal) = history.journals.get(&last.of()) else { return Vec::new() };
    let lines: Vec<Line> = journal.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let named =
        |id: &str| lines.iter().any(|line| matches!(line, Line::Complete(operation) if operation.id.as_deref() == Some(id)));
    let begun = |address: &str| lines.iter().any(|line| matches!(line, Line::Start(operation) if operation.address == address));
    let is_deleted =
        |id: &str| history.ledger.iter().any(|entry| entry.text("action") == Some("delete") && entry.text("id") == Some(id));
    let at = |entry: &Entry| entry.at.parse::<Timestamp>().unwrap_or_default();
    let killed = status.result == Some(RunResult::Indeterminate);
    let told = status.history.iter().any(|line| line.contains("not with the datastore"));
    let own = entries(history, versions);
    let made: Vec<_> =
        own.iter().filter(|entry| entry.what == what::RESOURCE && entry.text("action") != Some("delete")).collect();
    let lost = made.iter().filter(|entry| {
        let (id, address) = (entry.text("id").unwrap_or_default(), entry.text("address").unwrap_or_default());
        let is_last = made.iter().rfind(|other| other.who == entry.who).is_some_and(|other| other == *entry);
        let end = own.iter().filter(|other| other.who == entry.who).map(|other| at(other)).max().unwrap_or_default();
        let lately = killed && at(entry) + LAST_MOMENT >= end;
        let away = killed && history.outages.iter().any(|outage| *outage + AWAY >= at(entry) && *outage <= end + LAST_MOMENT);
        let known = history.states.contains(id) || is_deleted(id) || named(id) || is_last && begun(address);
        !(known || lately || away || told)
    });
    lost.map(|entry| format!("{entry:?} is in no state and in no journal; the run says {:?}", status.result)).collect()
}
