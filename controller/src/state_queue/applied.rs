//! Tracks the last apply to each state, and the plans that wait for an approval and are stale after such an apply.
//!
//! Part of the index of [`super::queue`], which the watches fill.

use std::{collections::BTreeSet, ops::Bound};

use jiff::Timestamp;
use kube::ResourceExt;

use crds::{Changed, Phase, TerraformRun};

use crate::cluster::index::{Index, Seen};

/// A waiting plan: name of its state's Lease, namespace and name.
type Place = (Box<str>, Box<str>, Box<str>);

/// An apply that may have changed a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// `NAMESPACE/NAME` of its run.
    pub run: String,
    /// When it ended, or when it was claimed if its end is unknown.
    pub at: Timestamp,
}

/// The last apply to each state, and the waiting plans.
#[derive(Default)]
pub(crate) struct Applies {
    last: Index<Box<str>, Last>,
    waits: Index<Box<str>, Place>,
    line: BTreeSet<Place>,
}

struct Last {
    uid: Box<str>,
    applied: Applied,
}

impl Applies {
    /// Stores a run. If it has applied since it was last seen, returns the runs (namespace and name) with a plan for the same state.
    /// `named` gives the name of a state's Lease, which is equal only for namespaces that share states.
    pub(crate) fn put(&mut self, seen: Seen, run: &TerraformRun, named: impl Fn(&str) -> Box<str>) -> Vec<(Box<str>, Box<str>)> {
        let uid = run.uid().unwrap_or_default();
        self.wait_no_more(&uid);
        if let Some((key, _)) = waits(run) {
            let place: Place = (named(key), run.namespace().unwrap_or_default().into(), run.name_any().into());
            self.line.insert(place.clone());
            self.waits.put(seen, uid.as_str().into(), place);
        }
        let Some((key, at)) = applied(run) else { return Vec::new() };
        let key = named(key);
        let before = self.last.get(&key);
        if before.is_some_and(|last| *last.uid != *uid && last.applied.at >= at) {
            return Vec::new();
        }
        let is_news = before.is_none_or(|last| *last.uid != *uid);
        let name = format!("{}/{}", run.namespace().unwrap_or_default(), run.name_any());
        self.last.put(seen, key.clone(), Last { uid: uid.into(), applied: Applied { run: name, at } });
        if !is_news {
            return Vec::new();
        }
        let first: Place = (key.clone(), Box::default(), Box::default());
        let line = self.line.range((Bound::Included(first), Bound::Unbounded)).take_while(|(of, ..)| *of == key);
        line.map(|(_, namespace, name)| (namespace.clone(), name.clone())).collect()
    }

    pub(crate) fn remove(&mut self, run: &TerraformRun, named: impl Fn(&str) -> Box<str>) {
        let uid = run.uid().unwrap_or_default();
        self.wait_no_more(&uid);
        if let Some((key, _)) = applied(run)
            && let key = named(key)
            && self.last.get(&key).is_some_and(|last| *last.uid == *uid)
        {
            self.last.remove(&key);
        }
    }

    /// Removes entries that a completed listing did not show.
    pub(crate) fn end_listing(&mut self, ended: Seen) {
        self.last.end_listing(ended);
        for (_, place) in self.waits.end_listing(ended) {
            self.line.remove(&place);
        }
    }

    /// The last apply by another run to the state of a waiting plan, if it came after the plan.
    pub(crate) fn since(&self, run: &TerraformRun, named: impl Fn(&str) -> Box<str>) -> Option<Applied> {
        let (key, made) = waits(run)?;
        let last = self.last.get(&named(key))?;
        // Times have whole seconds; the order within a second is unknown.
        (*last.uid != *run.uid()? && last.applied.at > made).then(|| last.applied.clone())
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_empty() && self.waits.is_empty() && self.line.is_empty()
    }

    fn wait_no_more(&mut self, uid: &str) {
        if let Some(place) = self.waits.remove(uid) {
            self.line.remove(&place);
        }
    }
}

/// The state of a plan that waits for a person, and the time of the plan.
fn waits(run: &TerraformRun) -> Option<(&str, Timestamp)> {
    let status = run.status.as_ref()?;
    let waits = status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none();
    let plan = status.plan.as_ref().filter(|_| waits)?;
    Some((plan.state_key.as_deref()?, plan.created_at.as_ref()?.0))
}

/// The state that a run has applied to, and when, unless it is known to have changed nothing.
fn applied(run: &TerraformRun) -> Option<(&str, Timestamp)> {
    let status = run.status.as_ref()?;
    let claim = status.claim.as_ref().filter(|_| status.is_terminal())?;
    let untouched = status.failure.as_ref().is_some_and(|failure| failure.changes == Changed::None);
    let key = status.plan.as_ref().filter(|_| !untouched)?.state_key.as_deref()?;
    let ended = status.steps.iter().rev().find(|step| step.name == "apply").and_then(|step| step.finished_at.as_ref());
    Some((key, ended.unwrap_or(&claim.at).0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{Claim, Failure, FailureClass, PlanStatus, RunResult, Step, TerraformRunStatus, whole_seconds};

    const SEEN: Seen = Seen::of(1, 0);

    /// Every namespace shares its states.
    fn own(key: &str) -> Box<str> {
        key.into()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(testing::t0().as_second() + second).unwrap()
    }

    /// A run whose plan was made at this second.
    fn run(namespace: &str, name: &str, key: &str, second: i64) -> TerraformRun {
        let mut run = testing::run();
        (run.metadata.namespace, run.metadata.name) = (Some(namespace.into()), Some(name.into()));
        run.metadata.uid = Some(format!("{namespace}-{name}"));
        let created_at = Some(whole_seconds(at(second)));
        let plan = PlanStatus { state_key: Some(key.into()), created_at, ..PlanStatus::default() };
        run.status =
            Some(TerraformRunStatus { phase: Some(Phase::AwaitingApproval), plan: Some(plan), ..TerraformRunStatus::default() });
        run
    }

    /// The run after its apply ended at this second.
    fn ended(mut run: TerraformRun, second: i64) -> TerraformRun {
        let status = run.status.as_mut().unwrap();
        let (pod_uid, nonce) = (testing::POD.into(), testing::NONCE.into());
        let claimed = whole_seconds(at(second - 5));
        status.claim = Some(Claim { checksum: "sha256:x".into(), attempt: 1, pod_uid, nonce, at: claimed.clone() });
        (status.phase, status.result) = (Some(Phase::Succeeded), Some(RunResult::Applied));
        status.steps = vec![Step {
            name: "apply".into(),
            attempt: 1,
            started_at: claimed,
            finished_at: Some(whole_seconds(at(second))),
            exit_code: Some(0),
            newer: std::collections::BTreeMap::new(),
        }];
        run
    }

    fn failed(mut run: TerraformRun, changes: Changed) -> TerraformRun {
        let status = run.status.as_mut().unwrap();
        (status.phase, status.result) = (Some(Phase::Failed), Some(RunResult::Failed));
        let (class, message) = (FailureClass::Configuration, String::new());
        status.failure = Some(Failure { class, reason: "ApplyFailed".into(), message, changes, diagnostics: Vec::new() });
        run
    }

    fn woken(found: Vec<(Box<str>, Box<str>)>) -> Vec<String> {
        found.into_iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect()
    }

    #[test]
    fn waiting_plan_is_stale_after_a_later_apply() {
        let mut index = Applies::default();
        let (old, same, other) = (run("x", "old", "s", 10), run("x", "same", "s", 20), run("x", "other", "t", 10));
        for run in [&old, &same, &other] {
            assert!(index.put(SEEN, run, own).is_empty());
            assert_eq!(index.since(run, own), None);
        }
        let begun = |second| {
            let mut run = ended(run("y", "b", "s", 5), second);
            run.status.as_mut().unwrap().phase = Some(Phase::Apply);
            run
        };
        assert!(index.put(SEEN, &begun(20), own).is_empty(), "it has not ended");
        assert_eq!(woken(index.put(SEEN, &ended(run("y", "b", "s", 5), 20), own)), ["x/old", "x/same"], "across namespaces");
        assert_eq!(index.since(&old, own), Some(Applied { run: "y/b".into(), at: at(20) }));
        assert_eq!(index.since(&same, own), None, "made in the same second");
        assert_eq!(index.since(&other, own), None, "another state");
        assert!(index.put(SEEN, &ended(run("y", "b", "s", 5), 20), own).is_empty(), "said already");
        assert!(index.put(SEEN, &ended(run("y", "a", "s", 5), 15), own).is_empty(), "the last one counts");
        assert_eq!(index.since(&old, own).unwrap().run, "y/b");
        assert_eq!(index.since(&ended(old, 30), own), None, "it waits no more");
    }

    #[test]
    fn apply_without_changes_makes_no_plan_stale() {
        for (changes, stale) in [(Changed::None, false), (Changed::Some, true), (Changed::Unknown, true)] {
            let (mut index, old) = (Applies::default(), run("x", "old", "s", 10));
            index.put(SEEN, &failed(ended(run("y", "b", "s", 5), 20), changes), own);
            assert_eq!(index.since(&old, own).is_some(), stale, "{changes:?}");
        }
        let mut unseen = ended(run("y", "b", "s", 5), 20);
        unseen.status.as_mut().unwrap().steps.clear();
        let mut index = Applies::default();
        index.put(SEEN, &unseen, own);
        assert_eq!(index.since(&run("x", "old", "s", 10), own).unwrap().at, at(15), "nobody saw its end: when it was claimed");
    }

    #[test]
    fn deleted_runs_are_dropped() {
        let (old, b) = (run("x", "old", "s", 10), ended(run("y", "b", "s", 5), 20));
        let mut index = Applies::default();
        index.put(SEEN, &old, own);
        index.put(Seen::of(2, 0), &b, own);
        index.end_listing(Seen::of(1, 1));
        assert!(index.put(Seen::of(2, 0), &ended(run("y", "c", "s", 5), 30), own).is_empty(), "nobody waits any more");
        index.end_listing(Seen::of(2, 1));
        assert!(index.is_empty());
        index.put(SEEN, &old, own);
        index.put(SEEN, &b, own);
        index.remove(&old, own);
        index.remove(&b, own);
        assert!(index.is_empty());
    }
}
