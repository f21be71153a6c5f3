//! The queue of each state, its holder, and its last apply. Filled by the watches; makes no requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use crds::TerraformRun;
use futures::channel::mpsc::UnboundedSender;
use jiff::Timestamp;
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher},
};

use super::{
    applied::{Applied, Applies},
    lease_request::{LeaseRequest, requested_lease},
};
use crate::{
    cluster::index::{Feed, Feeds, Index, Seen},
    settings::{Settings, sharing::SharedStates},
};

type Run = ObjectRef<TerraformRun>;
/// A run in the queue of its state: name of the Lease, request time, namespace and name.
type Place = (Box<str>, Timestamp, Box<str>, Box<str>);

/// The queues of all requested states.
pub struct Queue {
    inner: Mutex<Inner>,
    feeds: Feeds,
    shared: SharedStates,
    has_datastore: bool,
}

#[derive(Default)]
struct Inner {
    /// By UID; only runs that wait or have a lease.
    runs: Index<Box<str>, Entry>,
    line: BTreeSet<Place>,
    /// Waiting runs that their Lease was found to name: namespace and name by Lease.
    named: BTreeMap<Box<str>, (Box<str>, Box<str>)>,
    applies: Applies,
    wakers: Vec<(Option<String>, UnboundedSender<Run>)>,
}

struct Entry {
    /// Its place, while it waits.
    waits: Option<Place>,
    /// The current name of the Lease that the run has recorded. The run may have recorded it when the Lease had another name.
    has: Option<Box<str>>,
    namespace: Box<str>,
    name: Box<str>,
}

/// The runs before a run in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Position in the queue, from 1.
    pub place: usize,
    /// `NAMESPACE/NAME` of the run that has the lease, or gets it next.
    pub first: String,
}

impl Queue {
    pub fn new(settings: &Settings) -> Self {
        Self {
            inner: Mutex::default(),
            feeds: Feeds::default(),
            shared: settings.shared_states.clone(),
            has_datastore: settings.has_datastore(),
        }
    }

    /// Registers a watch of one namespace or of all. `wake` receives its runs that have moved forward in a queue.
    pub fn feed(&self, scope: Option<String>, wake: UnboundedSender<Run>) -> Feed {
        self.lock().wakers.push((scope, wake));
        self.feeds.add()
    }

    /// Waits until every watch has listed its runs once. Only then the queues show each run that has recorded a lease,
    /// including leases recorded under another name.
    pub async fn ready(&self) {
        self.feeds.ready().await;
    }

    /// Applies an event of a watch, with the untrimmed object.
    pub fn apply(&self, feed: &mut Feed, event: &watcher::Event<TerraformRun>) {
        feed.hears(event);
        let mut inner = self.lock();
        match event {
            watcher::Event::Apply(run) | watcher::Event::InitApply(run) => {
                let namespace = run.namespace().unwrap_or_default();
                let named = |key: &str| -> Box<str> { self.shared.lease_name(&namespace, key).into() };
                let has = run.status.as_ref().and_then(|status| status.lease.as_ref()).map(|lease| named(&lease.state_key));
                let want = requested_lease(run, false, self.has_datastore).map(|want| (named(&want.key), want.since));
                let moved = inner.put(feed.seen(), run, want, has);
                inner.wake(&moved);
                for (namespace, name) in inner.applies.put(feed.seen(), run, named) {
                    inner.send(&namespace, &name);
                }
            }
            watcher::Event::Delete(run) => {
                let moved = inner.remove(&run.uid().unwrap_or_default());
                inner.wake(&moved);
                let namespace = run.namespace().unwrap_or_default();
                inner.applies.remove(run, |key| self.shared.lease_name(&namespace, key).into());
            }
            watcher::Event::Init => {}
            watcher::Event::InitDone => {
                for (_, gone) in inner.runs.end_listing(feed.seen()) {
                    let moved = inner.leaves(gone);
                    inner.wake(&moved);
                }
                inner.applies.end_listing(feed.seen());
                self.feeds.listed(feed);
            }
        }
    }

    /// The runs before a run that requests a lease; `None` when it may try to take it.
    pub fn ahead(&self, run: &TerraformRun, want: &LeaseRequest) -> Option<Ahead> {
        let inner = self.lock();
        let (uid, namespace) = (run.uid().unwrap_or_default(), run.namespace().unwrap_or_default());
        let lease: Box<str> = self.shared.lease_name(&namespace, &want.key).into();
        let holder = inner.runs.iter().find(|(of, entry)| ***of != *uid && entry.has.as_ref() == Some(&lease));
        let is_named = inner.named.get(&lease).is_some_and(|(of, name)| **of == *namespace && **name == *run.name_any());
        if is_named && holder.is_none() {
            return None;
        }
        let own: Place = (lease.clone(), want.since, namespace.into(), run.name_any().into());
        let before: Vec<_> = inner.in_line(&lease).take_while(|place| **place < own).collect();
        let first = match (holder, before.first()) {
            (Some((_, entry)), _) => format!("{}/{}", entry.namespace, entry.name),
            (None, Some((_, _, namespace, name))) => format!("{namespace}/{name}"),
            (None, None) => return None,
        };
        Some(Ahead { place: before.len() + 1, first })
    }

    /// Records that a Lease names `holder`, `NAMESPACE/NAME`, which is entitled to it. A queued holder goes first, since no other run can
    /// get the Lease before it. A holder may be queued behind others if its approval was withdrawn and set again after it took the Lease.
    pub fn names(&self, lease: &str, holder: &str) {
        let Some((namespace, name)) = holder.split_once('/') else { return };
        let mut inner = self.lock();
        let waits = inner.in_line(lease).any(|(_, _, of, run)| &**of == namespace && &**run == name);
        if waits {
            inner.named.insert(lease.into(), (namespace.into(), name.into()));
            inner.send(namespace, name);
        }
    }

    /// The last apply by another run to the state of a waiting plan, if it came after the plan.
    pub fn applied_since(&self, run: &TerraformRun) -> Option<Applied> {
        let namespace = run.namespace().unwrap_or_default();
        self.lock().applies.since(run, |key| self.shared.lease_name(&namespace, key).into())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Stores a run. Returns the Leases whose queues moved.
    fn put(
        &mut self,
        seen: Seen,
        run: &TerraformRun,
        want: Option<(Box<str>, Timestamp)>,
        has: Option<Box<str>>,
    ) -> Vec<Box<str>> {
        let uid: Box<str> = run.uid().unwrap_or_default().into();
        let (namespace, name): (Box<str>, Box<str>) = (run.namespace().unwrap_or_default().into(), run.name_any().into());
        let want = want.filter(|(lease, _)| has.as_ref() != Some(lease));
        let waits = want.map(|(lease, since)| (lease, since, namespace.clone(), name.clone()));
        let before = self.runs.remove(&uid);
        let mut moved = Vec::new();
        if let Some(before) = before {
            if let Some(place) = before.waits {
                self.steps_out(&place);
                if waits.as_ref() != Some(&place) {
                    moved.push(place.0);
                }
            }
            moved.extend(before.has.filter(|key| Some(key) != has.as_ref()));
        }
        if has.is_some() || waits.is_some() {
            self.line.extend(waits.clone());
            self.runs.put(seen, uid, Entry { waits, has, namespace, name });
        }
        moved
    }

    fn remove(&mut self, uid: &str) -> Vec<Box<str>> {
        self.runs.remove(uid).map_or_else(Vec::new, |entry| self.leaves(entry))
    }

    /// Removes a run from its queues. Returns the Leases whose queues moved.
    fn leaves(&mut self, entry: Entry) -> Vec<Box<str>> {
        if let Some(place) = &entry.waits {
            self.steps_out(place);
        }
        entry.waits.into_iter().map(|place| place.0).chain(entry.has).collect()
    }

    fn steps_out(&mut self, place: &Place) {
        self.line.remove(place);
        let (lease, _, namespace, name) = place;
        if self.named.get(lease).is_some_and(|(of, run)| of == namespace && run == name) {
            self.named.remove(lease);
        }
    }

    /// The runs that wait for a Lease, in order.
    fn in_line<'a>(&'a self, lease: &'a str) -> impl Iterator<Item = &'a Place> {
        let first: Place = (lease.into(), Timestamp::MIN, Box::default(), Box::default());
        self.line.range(first..).take_while(move |(of, ..)| **of == *lease)
    }

    /// Wakes the runs that wait for these Leases, in order.
    fn wake(&self, moved: &[Box<str>]) {
        for key in moved {
            for (_, _, namespace, name) in self.in_line(key) {
                self.send(namespace, name);
            }
        }
    }

    /// Wakes a run.
    fn send(&self, namespace: &str, name: &str) {
        for (_, waker) in self.wakers.iter().filter(|(scope, _)| scope.as_deref().is_none_or(|scope| scope == namespace)) {
            // The receiver is gone when the controller shuts down.
            let _ = waker.unbounded_send(ObjectRef::new(name).within(namespace));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{ApprovalMode, StateLease, TerraformRunStatus, whole_seconds};
    use futures::channel::mpsc::{UnboundedReceiver, unbounded};
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    fn run(namespace: &str, name: &str, second: i64) -> TerraformRun {
        let mut run = testing::run();
        (run.metadata.namespace, run.metadata.name) = (Some(namespace.into()), Some(name.into()));
        run.metadata.uid = Some(format!("{namespace}-{name}"));
        run.metadata.creation_timestamp = Some(whole_seconds(Timestamp::from_second(second).unwrap()));
        run.spec.approval.mode = ApprovalMode::Automatic;
        run.spec.backend =
            serde_json::from_value(serde_json::json!({"type": "http", "config": {"address": "http://s/a"}})).unwrap();
        run
    }

    fn has(mut run: TerraformRun) -> TerraformRun {
        let key = requested_lease(&run, false, true).unwrap().key;
        // Recorded under the name of an earlier controller.
        let lease = StateLease { name: "pawl-state-x".into(), state_key: key, at: whole_seconds(testing::t0()) };
        run.status = Some(TerraformRunStatus { lease: Some(lease), ..TerraformRunStatus::default() });
        run
    }

    /// A queue of the namespaces `x` and `y`, which share states.
    fn queue() -> Queue {
        let shared_states = r#"[["x","y"]]"#.parse().unwrap();
        Queue::new(&Settings { shared_states, datastore_url: Some("https://d".into()), ..Settings::default() })
    }

    fn ahead(queue: &Queue, run: &TerraformRun) -> Option<(usize, String)> {
        queue.ahead(run, &requested_lease(run, false, true).unwrap()).map(|ahead| (ahead.place, ahead.first))
    }

    fn woken(receiver: &mut UnboundedReceiver<Run>) -> Vec<String> {
        std::iter::from_fn(|| receiver.try_recv().ok())
            .map(|run| format!("{}/{}", run.namespace.unwrap_or_default(), run.name))
            .collect()
    }

    #[test]
    fn queue_is_by_creation_and_moves_when_the_lease_is_free() {
        let (sender, mut receiver) = unbounded();
        let queue = queue();
        let mut feed = queue.feed(None, sender);
        let (a, b, c) = (run("x", "a", 1), run("y", "b", 2), run("x", "c", 3));
        for run in [&c, &b, &a] {
            queue.apply(&mut feed, &Apply(run.clone()));
        }
        assert_eq!(ahead(&queue, &a), None);
        assert_eq!(ahead(&queue, &b), Some((2, "x/a".into())), "of another namespace of the group");
        assert_eq!(ahead(&queue, &c), Some((3, "x/a".into())));
        queue.apply(&mut feed, &Apply(has(a.clone())));
        assert_eq!(woken(&mut receiver), ["y/b", "x/c"], "each has come a place nearer");
        assert_eq!(ahead(&queue, &b), Some((1, "x/a".into())), "it has the lease");
        queue.apply(&mut feed, &Delete(has(a)));
        assert_eq!(woken(&mut receiver), ["y/b", "x/c"]);
        assert_eq!((ahead(&queue, &b), ahead(&queue, &c)), (None, Some((2, "y/b".into()))));
        let mut ended = b.clone();
        ended.metadata.annotations = Some([(crds::names::CANCEL.to_owned(), "x".to_owned())].into());
        queue.apply(&mut feed, &Apply(ended));
        assert_eq!(woken(&mut receiver), ["x/c"], "one that is cancelled waits no more");
        assert_eq!(ahead(&queue, &c), None);
    }

    #[test]
    fn apply_wakes_waiting_plans_of_its_state() {
        let (sender, mut receiver) = unbounded();
        let queue = queue();
        let mut feed = queue.feed(None, sender);
        let planned = |name: &str| {
            let mut run = run("x", name, 1);
            run.spec.approval.mode = ApprovalMode::Manual;
            let created_at = Some(whole_seconds(testing::t0()));
            let plan = crds::PlanStatus { state_key: Some("s".into()), created_at, ..crds::PlanStatus::default() };
            run.status = Some(TerraformRunStatus {
                phase: Some(crds::Phase::AwaitingApproval),
                plan: Some(plan),
                ..TerraformRunStatus::default()
            });
            run
        };
        let (a, mut b) = (planned("a"), planned("b"));
        for run in [&a, &b] {
            queue.apply(&mut feed, &Apply(run.clone()));
        }
        assert_eq!((woken(&mut receiver), queue.applied_since(&a)), (vec![], None));
        let at = testing::t0().checked_add(jiff::SignedDuration::from_secs(9)).unwrap();
        let (pod_uid, nonce) = (testing::POD.into(), testing::NONCE.into());
        let status = b.status.as_mut().unwrap();
        status.claim = Some(crds::Claim { checksum: "sha256:1".into(), attempt: 1, pod_uid, nonce, at: whole_seconds(at) });
        (status.phase, status.result) = (Some(crds::Phase::Succeeded), Some(crds::RunResult::Applied));
        queue.apply(&mut feed, &Apply(b));
        assert_eq!(woken(&mut receiver), ["x/a"]);
        assert_eq!(queue.applied_since(&a), Some(Applied { run: "x/b".into(), at }));
    }

    #[test]
    fn run_named_by_the_lease_goes_first_until_it_leaves() {
        let (sender, mut receiver) = unbounded();
        let queue = queue();
        let mut feed = queue.feed(None, sender);
        // `late` took the Lease. Its approval was withdrawn before the Lease was recorded, and set again after `early` was approved.
        let (early, late) = (run("x", "early", 1), run("y", "late", 2));
        let key = requested_lease(&late, false, true).unwrap().key;
        let lease = queue.shared.lease_name("y", &key);
        for run in [&early, &late] {
            queue.apply(&mut feed, &Apply(run.clone()));
        }
        assert_eq!(ahead(&queue, &late), Some((2, "x/early".into())));
        queue.names(&lease, "y/late");
        assert_eq!(woken(&mut receiver), ["y/late"]);
        assert_eq!((ahead(&queue, &late), ahead(&queue, &early)), (None, None), "the Lease decides, and it is asked again");
        queue.apply(&mut feed, &Apply(has(late.clone())));
        assert_eq!(woken(&mut receiver), ["x/early"]);
        assert_eq!(ahead(&queue, &early), Some((1, "y/late".into())));
        queue.apply(&mut feed, &Apply(late.clone()));
        assert_eq!(ahead(&queue, &late), Some((2, "x/early".into())), "what the Lease named then is over");
        queue.names(&lease, "y/late");
        queue.apply(&mut feed, &Apply(has(early)));
        assert_eq!(ahead(&queue, &late), Some((1, "x/early".into())), "whom a run's own status names has it");
        queue.apply(&mut feed, &Delete(late.clone()));
        queue.names(&lease, "y/late");
        assert!(queue.lock().named.is_empty(), "nobody of that name waits");
    }

    #[test]
    fn relisting_drops_deleted_runs_and_wakes_waiting_ones() {
        let (sender, mut receiver) = unbounded();
        let (other_sender, mut other) = unbounded();
        let queue = queue();
        let (mut feed, mut second) = (queue.feed(Some("x".into()), sender), queue.feed(Some("y".into()), other_sender));
        let (a, b) = (has(run("x", "a", 1)), run("y", "b", 2));
        queue.apply(&mut feed, &Apply(a));
        queue.apply(&mut second, &Apply(b.clone()));
        for (feed, shown) in [(&mut second, Some(b.clone())), (&mut feed, None)] {
            queue.apply(feed, &Init);
            if let Some(run) = shown {
                queue.apply(feed, &InitApply(run));
            }
            queue.apply(feed, &InitDone);
        }
        assert_eq!((woken(&mut receiver), woken(&mut other)), (vec![], vec!["y/b".to_owned()]), "by the watch that has the run");
        assert_eq!(ahead(&queue, &b), None);
        queue.apply(&mut second, &Delete(b));
        let inner = queue.lock();
        assert!(inner.runs.is_empty() && inner.line.is_empty() && inner.applies.is_empty());
    }

    #[test]
    fn namespaces_without_sharing_are_independent() {
        let (sender, mut receiver) = unbounded();
        let queue = queue();
        let mut feed = queue.feed(None, sender);
        let (a, other, b) = (run("x", "a", 1), run("z", "other", 2), run("y", "b", 3));
        for run in [&has(a.clone()), &other, &b] {
            queue.apply(&mut feed, &Apply(run.clone()));
        }
        assert_eq!(ahead(&queue, &other), None, "one state, and neither its holder nor its line is seen from there");
        assert_eq!(ahead(&queue, &b), Some((1, "x/a".into())), "nor is that one in the line of the group");
        queue.apply(&mut feed, &Apply(has(other)));
        assert_eq!(woken(&mut receiver), Vec::<String>::new());
        queue.apply(&mut feed, &Delete(has(a)));
        assert_eq!((woken(&mut receiver), ahead(&queue, &b)), (vec!["y/b".to_owned()], None));
    }

    #[test]
    fn no_run_proceeds_before_every_watch_has_listed() {
        use futures::FutureExt;
        let queue = queue();
        assert!(queue.ready().now_or_never().is_some(), "without a watch");
        let (mut feed, mut second) = (queue.feed(Some("x".into()), unbounded().0), queue.feed(Some("y".into()), unbounded().0));
        queue.apply(&mut feed, &Init);
        queue.apply(&mut feed, &InitDone);
        assert!(queue.ready().now_or_never().is_none(), "a holder in y is not known yet");
        queue.apply(&mut second, &Init);
        queue.apply(&mut second, &InitApply(has(run("y", "b", 2))));
        queue.apply(&mut second, &InitDone);
        assert!(queue.ready().now_or_never().is_some());
        assert_eq!(ahead(&queue, &run("x", "a", 1)), Some((1, "y/b".into())), "though its Lease was called otherwise");
        queue.apply(&mut second, &Init);
        assert!(queue.ready().now_or_never().is_some(), "what is listed anew is known meanwhile");
    }
}
