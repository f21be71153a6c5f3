//! Knows which runs have a slot and which wait for one: from the watches, and from this process's own writes before the watches show them.
//!
//! A waiting run is queued while its condition has the reason `SlotsFull`, and already from the decision that causes this condition. A
//! reconcile that does not request a slot removes the run from the queue, so no run waits behind another that needs no slot now. The event
//! that frees a slot wakes the runs that may take it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crds::{TerraformRepository, TerraformRun};
use futures::channel::mpsc::UnboundedSender;
use jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt, runtime::watcher};

use super::{
    admission::{Bounds, Class, Place, Slot, wanted},
    allocations::{Allocations, Repository, Run},
    entry::{Kept, Until, place},
};
use crate::{
    cluster::index::{Feed, Feeds},
    settings::Settings,
};

/// How long an unanswered write may still be carried out: longer than any request takes.
const LANDS: SignedDuration = SignedDuration::from_secs(120);

#[derive(Default)]
pub struct Slots {
    inner: Mutex<Allocations>,
    feeds: Feeds,
}

impl Slots {
    /// Slots within the bounds of the settings. The bounds of repositories come from a feed.
    pub fn new(settings: &Settings) -> Self {
        let bounds = Bounds {
            whole: settings.max_concurrent_runs,
            per_namespace: settings.max_concurrent_runs_per_namespace,
            repositories: BTreeMap::new(),
        };
        Self { inner: Mutex::new(Allocations { bounds, ..Allocations::default() }), feeds: Feeds::default() }
    }

    /// Adds a watch of runs, of one namespace or of all; `wake` receives the runs to reconcile.
    pub fn feed(&self, scope: Option<String>, wake: UnboundedSender<Run>) -> Feed {
        self.lock().wakers.push((scope, wake));
        self.feeds.add()
    }

    pub fn repository_feed(&self) -> Feed {
        self.feeds.add()
    }

    /// Waits until every watch has listed once: then every open attempt is counted, and every bound is known.
    pub async fn ready(&self) {
        self.feeds.ready().await;
    }

    /// This watch is not available (no rights), and nothing waits for its listing.
    pub fn does_without(&self, feed: &mut Feed) {
        self.feeds.listed(feed);
    }

    /// Takes an event of a watch, with the untrimmed run.
    pub fn apply(&self, feed: &mut Feed, event: &watcher::Event<TerraformRun>) {
        feed.hears(event);
        let mut inner = self.lock();
        match event {
            watcher::Event::Apply(run) | watcher::Event::InitApply(run) => inner.put(feed.seen(), run),
            watcher::Event::Delete(run) => inner.remove(&run.uid().unwrap_or_default()),
            watcher::Event::Init => {}
            watcher::Event::InitDone => {
                for (uid, gone) in inner.runs.end_listing(feed.seen()) {
                    inner.forget(&uid, &gone);
                }
                self.feeds.listed(feed);
                inner.serve();
            }
        }
    }

    pub fn apply_repository(&self, feed: &mut Feed, event: &watcher::Event<TerraformRepository>) {
        feed.hears(event);
        let key = |of: &TerraformRepository| -> Repository { (of.namespace().unwrap_or_default().into(), of.name_any().into()) };
        let mut inner = self.lock();
        match event {
            watcher::Event::Apply(of) | watcher::Event::InitApply(of) => match of.spec.max_concurrent_runs {
                Some(bound) => drop(inner.repositories.put(feed.seen(), key(of), bound)),
                None => drop(inner.repositories.remove(&key(of))),
            },
            watcher::Event::Delete(of) => drop(inner.repositories.remove(&key(of))),
            watcher::Event::Init => return,
            watcher::Event::InitDone => {
                drop(inner.repositories.end_listing(feed.seen()));
                self.feeds.listed(feed);
            }
        }
        let bounds = inner.repositories.iter().map(|(key, bound)| (key.clone(), *bound)).collect();
        if std::mem::replace(&mut inner.bounds.repositories, bounds) != inner.bounds.repositories {
            inner.serve();
        }
    }

    /// The slot of a run, without a new request; and whether other runs wait for the slot of its held pod.
    pub fn look(&self, run: &TerraformRun) -> (Slot, bool) {
        let inner = self.lock();
        if inner.bounds == Bounds::default() {
            return (Slot::Free, false);
        }
        let Some(entry) = inner.runs.get(&*run.uid().unwrap_or_default()) else { return (Slot::Unasked, false) };
        let is_wanted =
            entry.held && entry.open.is_some_and(|class| wanted(class, &entry.scopes, &inner.line, &inner.open, &inner.bounds));
        let slot = match (entry.kept, &entry.waits) {
            _ if entry.scopes.iter().all(|scope| inner.bounds.of(scope).is_none()) => Slot::Free,
            (Some(kept), _) => Slot::Taken(kept.class),
            (None, Some(place)) if entry.open == Some(place.class) => Slot::Unasked,
            (None, Some(place)) => inner.ask(place, &entry.scopes).map_or_else(Slot::Full, |()| Slot::Unasked),
            (None, None) => Slot::Unasked,
        };
        (slot, is_wanted)
    }

    /// Reserves a slot of a class for a run if it is its turn. Otherwise queues the run, and wakes runs whose held pods have slots of the
    /// full bound.
    pub fn take(&self, run: &TerraformRun, class: Class) -> Slot {
        let mut inner = self.lock();
        let uid: Box<str> = run.uid().unwrap_or_default().into();
        // The watch shows a run before its reconcile, so the run is gone.
        let Some(mut entry) = inner.runs.get(&*uid).cloned() else { return Slot::Free };
        if entry.counts().any(|counted| counted == class) {
            return Slot::Taken(class);
        }
        let Some(place) = place(run).map(|place| Place { class, ..place }) else { return Slot::Free };
        match inner.ask(&place, &entry.scopes) {
            Ok(()) => {
                entry.kept = Some(Kept { class, until: Until::Look });
                entry.waits = None;
                inner.change(&uid, entry);
                Slot::Taken(class)
            }
            Err(full) => {
                let held: Vec<_> = inner.holds(&full);
                entry.waits = Some(place);
                inner.change(&uid, entry);
                for (namespace, name) in held {
                    inner.send(&namespace, &name);
                }
                Slot::Full(full)
            }
        }
    }

    /// A write that uses the reserved slot is being sent.
    pub fn sends(&self, uid: &str, now: Timestamp) {
        self.lock().keeps(uid, |until| if matches!(until, Until::Seen(_)) { until } else { Until::Heard(now) });
    }

    /// That write was carried out, as this version, or was refused (`None`).
    pub fn heard(&self, uid: &str, version: Option<u64>) {
        self.lock().keeps(uid, |_| version.map_or(Until::Look, Until::Seen));
    }

    /// A reconcile of a run has ended: returns a reserved slot that it did not use, and removes the run from the queue unless it `waits`.
    /// Returns when to reconcile again while an unanswered write may still be carried out.
    pub fn looked(&self, uid: &str, waits: bool, now: Timestamp) -> Option<Duration> {
        let mut inner = self.lock();
        let mut entry = inner.runs.get(uid)?.clone();
        let due = match entry.kept.map(|kept| kept.until) {
            Some(Until::Heard(at)) => Some(at.checked_add(LANDS).unwrap_or(Timestamp::MAX)).filter(|due| now < *due),
            Some(Until::Look | Until::Seen(_)) | None => None,
        };
        let before = entry.clone();
        if !waits {
            entry.waits = None;
        }
        if due.is_none() && entry.kept.is_some_and(|kept| !matches!(kept.until, Until::Seen(_))) {
            entry.kept = None;
        }
        if entry != before {
            inner.change(uid, entry);
            inner.serve();
        }
        due.map(|due| due.duration_since(now).unsigned_abs())
    }

    /// Wakes the runs of a namespace that have not ended.
    pub fn wake(&self, namespace: &str) {
        let inner = self.lock();
        for (_, entry) in inner.runs.iter().filter(|(_, entry)| &*entry.namespace == namespace) {
            inner.send(namespace, &entry.name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Allocations> {
        // Each event leaves it complete, so a poisoned lock does no harm.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        slots::admission::{Full, Scope},
        testing,
    };
    use crds::{Attempt, Phase, TerraformRunStatus, conditions, names, reason, whole_seconds};
    use futures::{
        FutureExt,
        channel::mpsc::{UnboundedReceiver, unbounded},
    };
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    struct Rig {
        slots: Slots,
        feed: Feed,
        woken: UnboundedReceiver<Run>,
        version: u64,
    }

    impl Rig {
        fn new(whole: Option<u32>, per_namespace: Option<u32>) -> Self {
            let settings =
                Settings { max_concurrent_runs: whole, max_concurrent_runs_per_namespace: per_namespace, ..Settings::default() };
            let (sender, woken) = unbounded();
            let slots = Slots::new(&settings);
            let feed = slots.feed(None, sender);
            Self { slots, feed, woken, version: 1 }
        }

        fn sees(&mut self, run: &mut TerraformRun) -> u64 {
            self.version += 1;
            run.metadata.resource_version = Some(self.version.to_string());
            self.slots.apply(&mut self.feed, &Apply(run.clone()));
            self.version
        }

        fn woken(&mut self) -> Vec<String> {
            let mut all: Vec<_> = std::iter::from_fn(|| self.woken.try_recv().ok()).map(|run| run.name).collect();
            all.dedup();
            all
        }

        /// A reconcile that asks for a slot and opens the attempt if it gets one.
        fn opens(&mut self, run: &mut TerraformRun) -> bool {
            let slot = self.slots.take(run, Class::Plan);
            let taken = matches!(slot, Slot::Taken(_));
            if taken {
                self.slots.sends(&run.uid().unwrap(), testing::t0());
                self.slots.heard(&run.uid().unwrap(), Some(self.version + 1));
                open(run, true);
            } else if let Slot::Full(full) = &slot {
                says(run, &full.to_string());
            }
            self.slots.looked(&run.uid().unwrap(), !taken, testing::t0());
            taken
        }
    }

    fn run(name: &str, second: i64) -> TerraformRun {
        let mut run = testing::run();
        (run.metadata.name, run.metadata.uid) = (Some(name.into()), Some(format!("uid-{name}")));
        run.metadata.creation_timestamp = Some(whole_seconds(Timestamp::from_second(second).unwrap()));
        run.status = Some(TerraformRunStatus { phase: Some(Phase::Pending), ..TerraformRunStatus::default() });
        run
    }

    fn open(run: &mut TerraformRun, is: bool) {
        let status = run.status.as_mut().unwrap();
        status.attempt = Some(Attempt { number: 1, open: is, ..Attempt::default() });
        conditions::set(&mut status.conditions, conditions::SUCCEEDED, None, reason::RUNNING, "", None, testing::t0());
    }

    fn says(run: &mut TerraformRun, text: &str) {
        let conditions = &mut run.status.as_mut().unwrap().conditions;
        conditions::set(conditions, conditions::SUCCEEDED, None, reason::SLOTS_FULL, text, None, testing::t0());
    }

    #[test]
    fn own_write_occupies_a_slot_before_the_watch_shows_it() {
        let mut rig = Rig::new(Some(2), None);
        let mut runs: Vec<_> = ["a", "b", "c", "d"].iter().zip(1..).map(|(name, at)| run(name, at)).collect();
        for run in &mut runs {
            rig.sees(run);
        }
        let opened: Vec<_> = runs.iter_mut().map(|run| rig.opens(run)).collect();
        assert_eq!(opened, [true, true, false, false]);
        assert_eq!(rig.slots.lock().open.count(Class::Plan, &Scope::Whole), 2);
        for run in &mut runs {
            rig.sees(run);
        }
        assert_eq!(rig.slots.lock().open.count(Class::Plan, &Scope::Whole), 2, "and once");
        assert!(rig.woken().is_empty());
        open(&mut runs[0], false);
        runs[0].status.as_mut().unwrap().phase = Some(Phase::Succeeded);
        rig.sees(&mut runs[0]);
        assert_eq!(rig.woken(), ["c"], "the first in line, and nobody else");
        assert!(!rig.opens(&mut runs[3]), "nor does anybody go past it");
        assert!(rig.opens(&mut runs[2]));
    }

    #[test]
    fn unanswered_write_holds_its_slot_until_it_cannot_land() {
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        rig.sees(&mut a);
        rig.sees(&mut b);
        let (now, uid) = (testing::t0(), a.uid().unwrap());
        assert_eq!(rig.slots.take(&a, Class::Plan), Slot::Taken(Class::Plan));
        rig.slots.sends(&uid, now);
        let later = |seconds: i64| now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
        assert_eq!(rig.slots.looked(&uid, false, later(20)), Some(Duration::from_secs(100)));
        rig.sees(&mut a);
        assert!(!rig.opens(&mut b));
        rig.sees(&mut b);
        assert_eq!((rig.slots.looked(&uid, false, later(120)), rig.woken()), (None, vec!["b".to_owned()]));
        assert!(rig.opens(&mut b));
        // A refused write returns its slot at the end of the reconcile.
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        rig.sees(&mut a);
        rig.sees(&mut b);
        assert_eq!(rig.slots.take(&a, Class::Plan), Slot::Taken(Class::Plan));
        rig.slots.sends(&uid, now);
        rig.slots.heard(&uid, None);
        rig.slots.looked(&uid, false, now);
        assert_eq!(rig.slots.take(&b, Class::Plan), Slot::Taken(Class::Plan));
    }

    #[test]
    fn run_that_requests_no_slot_blocks_no_other() {
        let mut rig = Rig::new(Some(1), None);
        let mut runs: Vec<_> = ["a", "b", "c"].iter().zip(1..).map(|(name, at)| run(name, at)).collect();
        for run in &mut runs {
            rig.sees(run);
            rig.opens(run);
            rig.sees(run);
        }
        drop(rig.woken());
        let mut gone = runs.remove(0);
        rig.version += 1;
        gone.metadata.resource_version = Some(rig.version.to_string());
        rig.slots.apply(&mut rig.feed, &Delete(gone));
        assert_eq!(rig.woken(), ["b"]);
        // Its reconcile ends with an error, or waits for something else.
        rig.slots.looked("uid-b", false, testing::t0());
        assert_eq!(rig.woken(), ["c"]);
        runs[1].metadata.annotations = Some([(names::CANCEL.to_owned(), "x".to_owned())].into());
        rig.sees(&mut runs[1]);
        assert!(rig.slots.lock().line.is_empty(), "one that is cancelled waits no more");
        assert!(rig.opens(&mut runs[0]));
    }

    #[test]
    fn restart_rebuilds_the_queue() {
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b, mut c) = (run("a", 1), run("b", 2), run("c", 3));
        open(&mut a, true);
        says(&mut b, "waits");
        says(&mut c, "waits");
        rig.slots.apply(&mut rig.feed, &Init);
        for run in [&a, &c, &b] {
            rig.slots.apply(&mut rig.feed, &InitApply(run.clone()));
        }
        assert!(rig.slots.ready().now_or_never().is_none(), "nothing is decided before all is counted");
        rig.slots.apply(&mut rig.feed, &InitDone);
        assert!(rig.slots.ready().now_or_never().is_some());
        assert!(rig.woken().is_empty());
        assert!(matches!(rig.slots.look(&c).0, Slot::Full(Full { before: 1, .. })));
        open(&mut a, false);
        rig.sees(&mut a);
        assert_eq!(rig.slots.look(&b).0, Slot::Unasked, "its turn");
        assert!(matches!(rig.slots.take(&c, Class::Plan), Slot::Full(_)));
        rig.slots.apply(&mut rig.feed, &Init);
        rig.slots.apply(&mut rig.feed, &InitDone);
        let inner = rig.slots.lock();
        assert!(inner.line.is_empty() && inner.runs.is_empty() && inner.open.is_empty());
    }

    #[test]
    fn holding_run_is_woken_when_its_slot_is_wanted() {
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        open(&mut a, true);
        let status = a.status.as_mut().unwrap();
        status.phase = Some(Phase::AwaitingApproval);
        let bundle = Some("sha256:2".to_owned());
        status.plan = Some(crds::PlanStatus { checksum: "sha256:1".into(), attempt: 1, bundle, ..crds::PlanStatus::default() });
        rig.sees(&mut a);
        rig.sees(&mut b);
        assert_eq!((rig.slots.look(&a), rig.woken()), ((Slot::Unasked, false), vec![]));
        assert!(!rig.opens(&mut b));
        assert_eq!((rig.slots.look(&a).1, rig.woken()), (true, vec!["a".to_owned()]));
        open(&mut a, false);
        rig.sees(&mut a);
        assert!(!rig.slots.look(&a).1);
        assert!(rig.opens(&mut b));
    }

    #[test]
    fn attempt_that_left_the_plan_class_never_returns() {
        let mut rig = Rig::new(Some(1), None);
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        open(&mut a, true);
        let at = whole_seconds(testing::t0());
        let waits = a.status.as_mut().unwrap();
        waits.phase = Some(Phase::AwaitingApproval);
        waits.plan = Some(crds::PlanStatus { checksum: "sha256:1".into(), attempt: 1, ..crds::PlanStatus::default() });
        let mut approved = a.clone();
        approved.metadata.annotations = Some([(names::APPROVE.to_owned(), "sha256:1".to_owned())].into());
        let status = approved.status.as_mut().unwrap();
        let by = "alice".to_owned();
        status.approval = Some(crds::ApprovalRecord { checksum: Some("sha256:1".into()), by, comment: None, at: at.clone() });
        let mut leased = approved.clone();
        leased.status.as_mut().unwrap().lease = Some(crds::StateLease { state_key: "k".into(), name: "n".into(), at });
        for (mut goes_over, counts) in [(leased, [1, 1]), (approved.clone(), [1, 0])] {
            for run in [&mut a, &mut goes_over, &mut b] {
                rig.sees(run);
            }
            assert!(rig.opens(&mut b), "its place among the plans is free");
            rig.sees(&mut b);
            // The approval is removed.
            rig.sees(&mut a);
            let counted = [Class::Plan, Class::Apply].map(|class| rig.slots.lock().open.count(class, &Scope::Whole));
            assert_eq!(counted, counts);
            // And set again: the run does not wait for itself.
            rig.sees(&mut approved);
            assert_eq!(rig.slots.take(&approved, Class::Apply), Slot::Taken(Class::Apply));
            rig.slots.looked("uid-a", false, testing::t0());
            for run in [&mut a, &mut b] {
                open(run, false);
                rig.sees(run);
            }
            open(&mut a, true);
        }
    }

    #[test]
    fn each_repository_has_its_own_bound() {
        let mut rig = Rig::new(None, None);
        let mut feed = rig.slots.repository_feed();
        let of = |bound: Option<u32>| -> TerraformRepository {
            let spec = serde_json::json!({"url": "https://git.example.com/a", "maxConcurrentRuns": bound});
            let metadata = serde_json::json!({"name": "infra", "namespace": "git"});
            serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let source =
            serde_json::json!({"repository": {"name": "infra", "namespace": "git", "revision": "a".repeat(40), "path": "."}});
        let (mut a, mut b) = (run("a", 1), run("b", 2));
        for run in [&mut a, &mut b] {
            run.spec.source = serde_json::from_value(source.clone()).unwrap();
            rig.sees(run);
        }
        assert_eq!(rig.slots.look(&a).0, Slot::Free);
        rig.slots.apply_repository(&mut feed, &Apply(of(Some(1))));
        assert!(rig.opens(&mut a) && !rig.opens(&mut b));
        rig.sees(&mut a);
        rig.sees(&mut b);
        let text = b.status.as_ref().unwrap().conditions[0].message.clone();
        let said = "waits for a slot, 0 before it when it began to wait: 1 of 1 attempts of repository git/infra are open";
        assert_eq!(text, said);
        drop(rig.woken());
        rig.slots.apply_repository(&mut feed, &Apply(of(Some(2))));
        assert_eq!(rig.woken(), ["b"], "at once");
        assert!(rig.opens(&mut b));
    }
}
