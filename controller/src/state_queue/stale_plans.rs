//! Tracks the last apply to each state, and the plans that wait for an approval and are stale after such an apply.
//!
//! Part of the index of [`super::queue`], which the watches fill.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use jiff::Timestamp;
use watching::{Key, Name};

use crds::{Changed, Phase, TerraformRun};

/// A waiting plan: name of its state's Lease, and the run.
type Place = (Arc<str>, Key);

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
    last: BTreeMap<Arc<str>, (Key, Timestamp)>,
    /// By run: the state that it was the last to apply to.
    of: HashMap<Key, Arc<str>>,
    waits: HashMap<Key, Place>,
    line: BTreeSet<Place>,
}

impl Applies {
    /// Stores a run. Returns returns the runs (namespace and name) with a plan for the same to since it was last seen.
    /// `named` gives the name of a state's Lease, which is equal only for namespaces that share states have in common.
    pub(crate) fn put(
        &mut self,
        key: &Key,
        run: &TerraformRun,
        named: impl Fn(&str) -> Arc<str>,
    ) -> Vec<Key> {
        self.wait_no_more(key);
        if let Some((state, _)) = waits(run) {
            let place = (named(state), key.clone());
            self.line.insert(place.clone());
            self.waits.insert(key.clone(), place);
        }
        let Some((state, at)) = applied(run) else {
            return Vec::new();
        };
        let state = named(state);
        let before = self.last.get(&state).cloned();
        if before
            .as_ref()
            .is_some_and(|(last, before)| last != key && *before >= at)
        {
            return Vec::new();
        }
        self.last.insert(state.clone(), (key.clone(), at));
        self.of.insert(key.clone(), state.clone());
        match before {
            Some((last, _)) if last == *key => return Vec::new(),
            Some((last, _)) => drop(self.of.remove(&last)),
            None => {}
        }
        let line = self.line.range((
            Bound::Included((state.clone(), Key::default())),
            Bound::Unbounded,
        ));
        line.take_while(|(of, _)| *of == state)
            .map(|(_, key)| key.clone())
            .collect()
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.wait_no_more(key);
        if let Some(state) = self.of.remove(key) {
            self.last.remove(&state);
        }
    }

    /// The last apply by another run to the state of a waiting plan, if it came after the plan.
    pub(crate) fn since(
        &self,
        name: &Name,
        run: &TerraformRun,
        named: impl Fn(&str) -> Arc<str>,
    ) -> Option<Applied> {
        let (state, made) = waits(run)?;
        let (last, at) = self.last.get(&named(state))?;
        // Times have whole seconds; the order within a second is unknown.
        (**last != *name && *at > made).then(|| Applied {
            run: format!("{}/{}", last.0, last.1),
            at: *at,
        })
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_empty() && self.of.is_empty() && self.waits.is_empty() && self.line.is_empty()
    }

    fn wait_no_more(&mut self, key: &Key) {
        if let Some(place) = self.waits.remove(key) {
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
    let untouched = status
        .failure
        .as_ref()
        .is_some_and(|failure| failure.changes == Changed::None);
    let key = status
        .plan
        .as_ref()
        .filter(|_| !untouched)?
        .state_key
        .as_deref()?;
    let ended = status
        .steps
        .iter()
        .rev()
        .find(|step| step.name == "apply")
        .and_then(|step| step.finished_at.as_ref());
    Some((key, ended.unwrap_or(&claim.at).0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, at};
    use crds::{
        Claim, Failure, FailureClass, PlanStatus, RunResult, Step, TerraformRunStatus,
        whole_seconds,
    };

    /// Every namespace shares its states.
    fn own(key: &str) -> Arc<str> {
        key.into()
    }

    fn key(run: &TerraformRun) -> Key {
        Key::new(watching::name_of(run))
    }

    /// Stores a run. Returns `NAMESPACE/NAME` of the runs whose plan is stale.
    fn put(index: &mut Applies, run: &TerraformRun) -> Vec<String> {
        index
            .put(&key(run), run, own)
            .iter()
            .map(|key| format!("{}/{}", key.0, key.1))
            .collect()
    }

    fn since(index: &Applies, run: &TerraformRun) -> Option<Applied> {
        index.since(&key(run), run, own)
    }

    /// A run whose plan was made at this second.
    fn run(namespace: &str, name: &str, key: &str, second: i64) -> TerraformRun {
        let mut run = testing::named(namespace, name, 0);
        let created_at = Some(whole_seconds(at(second)));
        let plan = PlanStatus {
            state_key: Some(key.into()),
            created_at,
            ..PlanStatus::default()
        };
        run.status = Some(TerraformRunStatus {
            phase: Some(Phase::AwaitingApproval),
            plan: Some(plan),
            ..TerraformRunStatus::default()
        });
        run
    }

    /// The run after its apply ended at this second.
    fn ended(mut run: TerraformRun, second: i64) -> TerraformRun {
        let status = run.status.as_mut().unwrap();
        let (pod_uid, nonce) = (testing::POD.into(), testing::NONCE.into());
        let claimed = whole_seconds(at(second - 5));
        status.claim = Some(Claim {
            checksum: "sha256:x".into(),
            attempt: 1,
            pod_uid,
            nonce,
            at: claimed.clone(),
        });
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
        let class = FailureClass::Configuration;
        status.failure = Some(Failure::new(class, "ApplyFailed", "", changes));
        run
    }

    #[test]
    fn waiting_plan_is_stale_after_a_later_apply() {
        let mut index = Applies::default();
        let (old, same, other) = (
            run("x", "old", "s", 10),
            run("x", "same", "s", 20),
            run("x", "other", "t", 10),
        );
        for run in [&old, &same, &other] {
            assert!(put(&mut index, run).is_empty());
            assert_eq!(since(&index, run), None);
        }
        let begun = |second| {
            let mut run = ended(run("y", "b", "s", 5), second);
            run.status.as_mut().unwrap().phase = Some(Phase::Apply);
            run
        };
        assert!(put(&mut index, &begun(20)).is_empty(), "it has not ended");
        assert_eq!(
            put(&mut index, &ended(run("y", "b", "s", 5), 20)),
            ["x/old", "x/same"],
            "across namespaces"
        );
        assert_eq!(
            since(&index, &old),
            Some(Applied {
                run: "y/b".into(),
                at: at(20)
            })
        );
        assert_eq!(since(&index, &same), None, "made in the same second");
        assert_eq!(since(&index, &other), None, "another state");
        assert!(
            put(&mut index, &ended(run("y", "b", "s", 5), 20)).is_empty(),
            "said already"
        );
        assert!(
            put(&mut index, &ended(run("y", "a", "s", 5), 15)).is_empty(),
            "the last one counts"
        );
        assert_eq!(since(&index, &old).unwrap().run, "y/b");
        assert_eq!(since(&index, &ended(old, 30)), None, "it waits no more");
    }

    #[test]
    fn apply_without_changes_makes_no_plan_stale() {
        for (changes, stale) in [
            (Changed::None, false),
            (Changed::Some, true),
            (Changed::Unknown, true),
        ] {
            let (mut index, old) = (Applies::default(), run("x", "old", "s", 10));
            put(
                &mut index,
                &failed(ended(run("y", "b", "s", 5), 20), changes),
            );
            assert_eq!(since(&index, &old).is_some(), stale, "{changes:?}");
        }
        let mut unseen = ended(run("y", "b", "s", 5), 20);
        unseen.status.as_mut().unwrap().steps.clear();
        let mut index = Applies::default();
        put(&mut index, &unseen);
        assert_eq!(
            since(&index, &run("x", "old", "s", 10)).unwrap().at,
            at(15),
            "nobody saw its end: when it was claimed"
        );
    }

    #[test]
    fn deleted_runs_are_dropped() {
        let (old, b) = (run("x", "old", "s", 10), ended(run("y", "b", "s", 5), 20));
        let mut index = Applies::default();
        put(&mut index, &old);
        put(&mut index, &b);
        index.remove(&key(&old));
        assert!(
            put(&mut index, &ended(run("y", "c", "s", 5), 30)).is_empty(),
            "no plan waits any more"
        );
        index.remove(&key(&b));
        assert_eq!(
            since(&index, &old).unwrap().run,
            "y/c",
            "a later one is the last"
        );
        index.remove(&key(&ended(run("y", "c", "s", 5), 30)));
        assert!(index.is_empty());
    }
}
