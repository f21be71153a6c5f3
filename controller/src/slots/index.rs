//! Knows which runs have a slot and which wait for one: from the watches, and from this process's own writes before the watches show them.
//!
//! A waiting run is queued while its condition has the reason `SlotsFull`, and already from the decision that causes this condition. A
//! reconcile that does not request a slot removes the run from the queue, so no run waits behind another that needs no slot now. The event
//! that frees a slot wakes the runs that may take it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crds::{TerraformRepository, TerraformRun};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use watching::{Index, Key, name_of};

use super::{
    admission::{Bounds, Class, Place, Slot, wanted},
    allocations::Allocations,
    entry::{Kept, Until, place},
};
use crate::{cluster::watch::Wakers, settings::Settings};

/// How long an unanswered write may still be carried out: longer than any request takes.
const LANDS: SignedDuration = SignedDuration::from_secs(120);

pub struct Slots(Mutex<Allocations>);

impl Index<TerraformRun> for Slots {
    fn apply(&self, key: &Key, run: &TerraformRun) {
        self.lock().put(key, run);
    }

    fn delete(&self, key: &Key) {
        self.lock().remove(key);
    }
}

/// The bounds of repositories.
impl Index<TerraformRepository> for Slots {
    fn apply(&self, key: &Key, of: &TerraformRepository) {
        let mut inner = self.lock();
        let repositories = &mut inner.bounds.repositories;
        let before = match of.spec.max_concurrent_runs {
            Some(bound) => repositories.insert((**key).clone(), bound),
            None => repositories.remove(&**key),
        };
        if before != of.spec.max_concurrent_runs {
            inner.serve();
        }
    }

    fn delete(&self, key: &Key) {
        let mut inner = self.lock();
        if inner.bounds.repositories.remove(&**key).is_some() {
            inner.serve();
        }
    }
}

impl Slots {
    /// Slots within the bounds of the settings. The bounds of repositories come from a watch.
    pub fn new(settings: &Settings, wakers: Arc<Wakers>) -> Self {
        let bounds = Bounds {
            whole: settings.max_concurrent_runs,
            per_namespace: settings.max_concurrent_runs_per_namespace,
            repositories: BTreeMap::new(),
        };
        Self(Mutex::new(Allocations {
            bounds,
            wakers,
            ..Allocations::default()
        }))
    }

    /// The slot of a run, without a new request; and whether other runs wait for the slot of its held pod.
    pub fn look(&self, run: &TerraformRun) -> (Slot, bool) {
        let (inner, key) = (self.lock(), Key::new(name_of(run)));
        let makes_room = inner.makes_room(&key);
        if inner.bounds == Bounds::default() {
            return (Slot::Free, makes_room);
        }
        let Some(entry) = inner.runs.get(&key) else {
            return (Slot::Unasked, false);
        };
        let of_line = entry.held
            && entry.open.is_some_and(|class| {
                wanted(
                    class,
                    &entry.scopes,
                    &inner.line,
                    &inner.open,
                    &inner.bounds,
                )
            });
        let slot = match (entry.kept, &entry.waits) {
            _ if entry
                .scopes
                .iter()
                .all(|scope| inner.bounds.of(scope).is_none()) =>
            {
                Slot::Free
            }
            (Some(kept), _) => Slot::Taken(kept.class),
            (None, Some(place)) if entry.open == Some(place.class) => Slot::Unasked,
            (None, Some(place)) => inner
                .ask(place, &entry.scopes)
                .map_or_else(Slot::Full, |()| Slot::Unasked),
            (None, None) => Slot::Unasked,
        };
        (slot, of_line || makes_room)
    }

    /// Reserves a slot of a class for a run if it is its turn. Otherwise queues the run, and wakes runs whose held pods have slots of the
    /// full bound.
    pub fn take(&self, run: &TerraformRun, class: Class) -> Slot {
        let mut inner = self.lock();
        let key = Key::new(name_of(run));
        // The watch shows a run before its reconcile, so the run is gone.
        let Some(mut entry) = inner.runs.get(&key).cloned() else {
            return Slot::Free;
        };
        if entry.counts().any(|counted| counted == class) {
            return Slot::Taken(class);
        }
        let Some(place) = place(run).map(|place| Place { class, ..place }) else {
            return Slot::Free;
        };
        match inner.ask(&place, &entry.scopes) {
            Ok(()) => {
                entry.kept = Some(Kept {
                    class,
                    until: Until::Look,
                });
                entry.waits = None;
                inner.change(&key, entry);
                Slot::Taken(class)
            }
            Err(full) => {
                inner.wake_held(&full);
                entry.waits = Some(place);
                inner.change(&key, entry);
                Slot::Full(full)
            }
        }
    }

    /// A write that uses the reserved slot is being sent.
    pub fn sends(&self, run: &impl ResourceExt, now: Timestamp) {
        self.lock().keeps(&Key::new(name_of(run)), |until| {
            if matches!(until, Until::Seen(_)) {
                until
            } else {
                Until::Heard(now)
            }
        });
    }

    /// That write was carried out, as this version, or was refused (`None`).
    pub fn heard(&self, run: &impl ResourceExt, version: Option<u64>) {
        self.lock().keeps(&Key::new(name_of(run)), |_| {
            version.map_or(Until::Look, Until::Seen)
        });
    }

    /// A reconcile of a run has ended: returns a reserved slot that it did not use, and removes the run from the queue unless it `waits`.
    /// Returns when to reconcile again while an unanswered write may still be carried out.
    pub fn looked(&self, run: &impl ResourceExt, waits: bool, now: Timestamp) -> Option<Duration> {
        let (mut inner, key) = (self.lock(), Key::new(name_of(run)));
        let mut entry = inner.runs.get(&key)?.clone();
        let due = match entry.kept.map(|kept| kept.until) {
            Some(Until::Heard(at)) => {
                Some(at.checked_add(LANDS).unwrap_or(Timestamp::MAX)).filter(|due| now < *due)
            }
            Some(Until::Look | Until::Seen(_)) | None => None,
        };
        let before = entry.clone();
        if !waits {
            entry.waits = None;
        }
        if due.is_none()
            && entry
                .kept
                .is_some_and(|kept| !matches!(kept.until, Until::Seen(_)))
        {
            entry.kept = None;
        }
        if entry != before {
            inner.change(&key, entry);
            inner.serve();
        }
        due.map(|due| due.duration_since(now).unsigned_abs())
    }

    /// Number of open attempts and of waiting runs: plans, then approved applies.
    pub fn load(&self) -> [(u32, usize); 2] {
        let inner = self.lock();
        [Class::Plan, Class::Apply].map(|class| inner.load(class))
    }

    /// The runs with an open attempt.
    pub fn opened(&self) -> Vec<Key> {
        self.lock().opened().cloned().collect()
    }

    /// Wakes the runs of a namespace that have not ended.
    pub fn wake(&self, namespace: &str) {
        let inner = self.lock();
        for key in inner.runs.keys().filter(|key| &*key.0 == namespace) {
            inner.wakers.send(namespace, &key.1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Allocations> {
        // Each event leaves it complete, so a poisoned lock does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{slots::admission::Scope, testing};
    use crds::{Attempt, Phase, TerraformRunStatus, conditions, names, reason, whole_seconds};
    use futures::channel::mpsc::{UnboundedReceiver, unbounded};

    struct Rig {
        slots: Slots,
        woken: UnboundedReceiver<Key>,
        version: u64,
    }

    impl Rig {
        fn new(whole: Option<u32>, per_namespace: Option<u32>) -> Self {
            let settings = Settings {
                max_concurrent_runs: whole,
                max_concurrent_runs_per_namespace: per_namespace,
                ..Settings::default()
            };
            let ((wake, woken), wakers) = (unbounded(), Arc::new(Wakers::default()));
            wakers.add(None, wake);
            Self {
                slots: Slots::new(&settings, wakers),
                woken,
                version: 1,
            }
        }

        fn sees(&mut self, run: &mut TerraformRun) -> u64 {
            self.version += 1;
            run.metadata.resource_version = Some(self.version.to_string());
            self.slots.apply(&key(run), run);
            self.version
        }

        fn woken(&mut self) -> Vec<String> {
            let mut all: Vec<_> = std::iter::from_fn(|| self.woken.try_recv().ok())
                .map(|run| run.1.to_string())
                .collect();
            all.dedup();
            all
        }

        /// A reconcile that asks for a slot and opens the attempt if it gets one.
        fn opens(&mut self, run: &mut TerraformRun) -> bool {
            let slot = self.slots.take(run, Class::Plan);
            let taken = matches!(slot, Slot::Taken(_));
            if taken {
                self.slots.sends(run, testing::t0());
                self.slots.heard(run, Some(self.version + 1));
                open(run, true);
            } else if let Slot::Full(full) = &slot {
                says(run, &full.to_string());
            }
            self.slots.looked(run, !taken, testing::t0());
            taken
        }
    }

    fn key(object: &impl ResourceExt) -> Key {
        Key::new(name_of(object))
    }

    fn run(name: &str, second: i64) -> TerraformRun {
        let mut run = testing::named("team", name, second);
        run.status = Some(TerraformRunStatus {
            phase: Some(Phase::Pending),
            ..TerraformRunStatus::default()
        });
        run
    }

    fn open(run: &mut TerraformRun, is: bool) {
        let status = run.status.as_mut().unwrap();
        status.attempt = Some(Attempt {
            number: 1,
            open: is,
            ..Attempt::default()
        });
        conditions::set(
            &mut status.conditions,
            conditions::SUCCEEDED,
            None,
            reason::RUNNING,
            "",
            None,
            testing::t0(),
        );
    }

    fn says(run: &mut TerraformRun, text: &str) {
        let conditions = &mut run.status.as_mut().unwrap().conditions;
        conditions::set(
            conditions,
            conditions::SUCCEEDED,
            None,
            reason::SLOTS_FULL,
            text,
            None,
            testing::t0(),
        );
    }

    #[test]
    fn own_attempt_counts_before_the_watch_shows_it() {
        let mut rig = Rig::new(Some(2), None);
        let mut runs: Vec<_> = ["a", "b", "c", "d"]
            .iter()
            .zip(1..)
            .map(|(name, at)| run(name, at))
            .collect();
        for run in &mut runs {
            rig.sees(run);
        }
        let opened: Vec<_> = runs.iter_mut().map(|run| rig.opens(run)).collect();
        assert_eq!(opened, [true, true, false, false]);
        assert_eq!(rig.slots.lock().open.count(Class::Plan, &Scope::Whole), 2);
        for run in &mut runs {
            rig.sees(run);
        }
        assert_eq!(
            rig.slots.lock().open.count(Class::Plan, &Scope::Whole),
            2,
            "and once"
        );
        assert!(rig.woken().is_empty());
        open(&mut runs[0], false);
        runs[0].status.as_mut().unwrap().phase = Some(Phase::Succeeded);
        rig.sees(&mut runs[0]);
        assert_eq!(rig.woken(), ["c"], "the first in line, and nobody else");
        assert!(!rig.opens(&mut runs[3]), "nor does anybody go past it");
        assert!(rig.opens(&mut runs[2]));
    }

    #[test]
    fn unanswered_write_reserves_its_slot_until_it_cannot_land() {
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        rig.sees(&mut a);
        rig.sees(&mut b);
        let now = testing::t0();
        assert_eq!(rig.slots.take(&a, Class::Plan), Slot::Taken(Class::Plan));
        rig.slots.sends(&a, now);
        assert_eq!(
            rig.slots.looked(&a, false, testing::at(20)),
            Some(Duration::from_secs(100))
        );
        rig.sees(&mut a);
        assert!(!rig.opens(&mut b));
        rig.sees(&mut b);
        assert_eq!(rig.slots.looked(&a, false, testing::at(120)), None);
        assert_eq!(rig.woken(), vec!["b".to_owned()]);
        assert!(rig.opens(&mut b));
        // A refused write returns its slot at the end of the reconcile.
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        rig.sees(&mut a);
        rig.sees(&mut b);
        assert_eq!(rig.slots.take(&a, Class::Plan), Slot::Taken(Class::Plan));
        rig.slots.sends(&a, now);
        rig.slots.heard(&a, None);
        rig.slots.looked(&a, false, now);
        assert_eq!(rig.slots.take(&b, Class::Plan), Slot::Taken(Class::Plan));
    }

    #[test]
    fn run_that_needs_no_slot_blocks_no_other() {
        let mut rig = Rig::new(Some(1), None);
        let mut runs: Vec<_> = ["a", "b", "c"]
            .iter()
            .zip(1..)
            .map(|(name, at)| run(name, at))
            .collect();
        for run in &mut runs {
            rig.sees(run);
            rig.opens(run);
            rig.sees(run);
        }
        drop(rig.woken());
        Index::<TerraformRun>::delete(&rig.slots, &key(&runs.remove(0)));
        assert_eq!(rig.woken(), ["b"]);
        // Its reconcile ends with an error, or waits for something else.
        rig.slots.looked(&runs[0], false, testing::t0());
        assert_eq!(rig.woken(), ["c"]);
        runs[1].metadata.annotations = Some([(names::CANCEL.to_owned(), "x".to_owned())].into());
        rig.sees(&mut runs[1]);
        assert!(
            rig.slots.lock().line.is_empty(),
            "one that is cancelled waits no more"
        );
        assert!(rig.opens(&mut runs[0]));
    }

    #[test]
    fn restart_restores_the_line() {
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b, mut c) = (run("a", 1), run("b", 2), run("c", 3));
        open(&mut a, true);
        says(&mut b, "waits");
        says(&mut c, "waits");
        for run in [&a, &c, &b] {
            rig.slots.apply(&key(run), run);
        }
        assert!(rig.woken().is_empty());
        assert!(matches!(rig.slots.look(&c).0, Slot::Full(_)));
        open(&mut a, false);
        rig.sees(&mut a);
        assert_eq!(rig.slots.look(&b).0, Slot::Unasked, "its turn");
        assert!(matches!(rig.slots.take(&c, Class::Plan), Slot::Full(_)));
        for run in [&a, &b, &c] {
            Index::<TerraformRun>::delete(&rig.slots, &key(run));
        }
        let inner = rig.slots.lock();
        assert!(inner.line.is_empty());
        assert!(inner.runs.is_empty());
        assert!(inner.open.is_empty());
    }

    #[test]
    fn held_run_is_woken_when_others_want_its_slot() {
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        open(&mut a, true);
        let status = a.status.as_mut().unwrap();
        status.phase = Some(Phase::AwaitingApproval);
        let bundle = Some("sha256:2".to_owned());
        status.plan = Some(crds::PlanStatus {
            checksum: "sha256:1".into(),
            attempt: 1,
            bundle,
            ..crds::PlanStatus::default()
        });
        rig.sees(&mut a);
        rig.sees(&mut b);
        assert_eq!(rig.slots.look(&a), (Slot::Unasked, false));
        assert!(rig.woken().is_empty());
        assert!(!rig.opens(&mut b));
        assert!(rig.slots.look(&a).1);
        assert_eq!(rig.woken(), vec!["a".to_owned()]);
        open(&mut a, false);
        rig.sees(&mut a);
        assert!(!rig.slots.look(&a).1);
        assert!(rig.opens(&mut b));
    }

    #[test]
    fn held_pods_end_for_pods_that_find_no_room() {
        let mut rig = Rig::new(None, None);
        let mut held = [run("a", 1), run("b", 2), run("c", 3)];
        for run in &mut held {
            open(run, true);
            let status = run.status.as_mut().unwrap();
            status.phase = Some(Phase::AwaitingApproval);
            status.plan = Some(crds::PlanStatus {
                checksum: "sha256:1".into(),
                attempt: 1,
                bundle: Some("sha256:2".to_owned()),
                ..crds::PlanStatus::default()
            });
            rig.sees(run);
        }
        let mut stuck = run("d", 4);
        open(&mut stuck, true);
        let mut says = |rig: &mut Rig, reason: &str, text: &str| {
            let conditions = &mut stuck.status.as_mut().unwrap().conditions;
            let is = Some(!reason.is_empty());
            conditions::set(
                conditions,
                conditions::STALLED,
                is,
                reason,
                text,
                None,
                testing::t0(),
            );
            rig.sees(&mut stuck);
        };
        let ends = |rig: &Rig| held.iter().filter(|run| rig.slots.look(run).1).count();
        let one = vec!["a".to_owned()];
        for (reason, text, woken) in [
            (reason::UNSCHEDULABLE, "1 node(s) didn't match", vec![]),
            (reason::UNSCHEDULABLE, "1 Insufficient cpu.", one.clone()),
            ("", "", vec![]),
            (reason::QUOTA_EXCEEDED, "exceeded quota: q", one),
        ] {
            says(&mut rig, reason, text);
            assert_eq!((ends(&rig), rig.woken()), (woken.len(), woken), "{text}");
        }
    }

    #[test]
    fn attempt_never_counts_as_a_plan_again() {
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        open(&mut a, true);
        let at = whole_seconds(testing::t0());
        let waits = a.status.as_mut().unwrap();
        waits.phase = Some(Phase::AwaitingApproval);
        waits.plan = Some(crds::PlanStatus {
            checksum: "sha256:1".into(),
            attempt: 1,
            ..crds::PlanStatus::default()
        });
        let mut approved = a.clone();
        approved.metadata.annotations =
            Some([(names::APPROVE.to_owned(), "sha256:1".to_owned())].into());
        let status = approved.status.as_mut().unwrap();
        let by = "alice".to_owned();
        status.approval = Some(crds::ApprovalRecord {
            checksum: Some("sha256:1".into()),
            by,
            comment: None,
            at: at.clone(),
        });
        let mut leased = approved.clone();
        leased.status.as_mut().unwrap().lease = Some(crds::StateLease {
            state_key: "k".into(),
            name: "n".into(),
            at,
        });
        for (mut goes_over, counts) in [(leased, [1, 1]), (approved.clone(), [1, 0])] {
            for run in [&mut a, &mut goes_over, &mut b] {
                rig.sees(run);
            }
            assert!(rig.opens(&mut b), "its place among the plans is free");
            rig.sees(&mut b);
            // The approval is removed.
            rig.sees(&mut a);
            let counted = [Class::Plan, Class::Apply]
                .map(|class| rig.slots.lock().open.count(class, &Scope::Whole));
            assert_eq!(counted, counts);
            // And set again: the run does not wait for itself.
            rig.sees(&mut approved);
            assert_eq!(
                rig.slots.take(&approved, Class::Apply),
                Slot::Taken(Class::Apply)
            );
            rig.slots.looked(&a, false, testing::t0());
            for run in [&mut a, &mut b] {
                open(run, false);
                rig.sees(run);
            }
            open(&mut a, true);
        }
    }

    #[test]
    fn repository_bound_applies_at_once() {
        let mut rig = Rig::new(None, None);
        let of = |bound: Option<u32>| -> TerraformRepository {
            let spec =
                serde_json::json!({"url": "https://git.example.com/a", "maxConcurrentRuns": bound});
            let metadata = serde_json::json!({"name": "infra", "namespace": "git"});
            serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let source = serde_json::json!({"repository": {"name": "infra", "namespace": "git", "revision": "a".repeat(40), "path": "."}});
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        for run in [&mut a, &mut b] {
            run.spec.source = serde_json::from_value(source.clone()).unwrap();
            rig.sees(run);
        }
        assert_eq!(rig.slots.look(&a).0, Slot::Free);
        rig.slots.apply(&key(&of(None)), &of(Some(1)));
        assert!(rig.opens(&mut a) && !rig.opens(&mut b));
        rig.sees(&mut a);
        rig.sees(&mut b);
        let text = b.status.as_ref().unwrap().conditions[0].message.clone();
        let said = "waits for a slot: 1 of 1 attempts of repository git/infra are open";
        assert_eq!(text, said);
        drop(rig.woken());
        rig.slots.apply(&key(&of(None)), &of(Some(2)));
        assert_eq!(rig.woken(), ["b"], "at once");
        assert!(rig.opens(&mut b));
    }
}
