//! The queue of each state, its holder, and its last apply. Filled by the watches; makes no requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use crds::TerraformRun;
use jiff::Timestamp;
use watching::{Index, Key, name_of};

use super::{
    lease_request::{LeaseRequest, requested_lease},
    stale_plans::{Applied, Applies},
};
use crate::{
    cluster::watch::Wakers,
    settings::{Settings, sharing::SharedStates},
};

/// A run in the queue of its state: name of the Lease, request time, and the run.
type Place = (Arc<str>, Timestamp, Key);

/// The queues of all requested states.
pub struct Queue {
    inner: Mutex<Inner>,
    wakers: Arc<Wakers>,
    shared: SharedStates,
    has_datastore: bool,
}

#[derive(Default)]
struct Inner {
    /// Only runs that wait or have a lease.
    runs: BTreeMap<Key, Entry>,
    line: BTreeSet<Place>,
    /// Waiting runs that their Lease was found to name, by Lease.
    named: BTreeMap<Arc<str>, Key>,
    applies: Applies,
}

struct Entry {
    /// Its place, while it waits.
    waits: Option<Place>,
    /// The current name of the Lease that the run has recorded. The run may have recorded it when the Lease had another name.
    has: Option<Arc<str>>,
}

/// The runs before a run in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Position in the queue, from 1.
    pub place: usize,
    /// `NAMESPACE/NAME` of the run that has the lease, or gets it next.
    pub first: String,
}

impl Index<TerraformRun> for Queue {
    fn apply(&self, key: &Key, run: &TerraformRun) {
        let named = |state: &str| self.lease(&key.0, state);
        let has = run
            .status
            .as_ref()
            .and_then(|status| status.lease.as_ref())
            .map(|lease| named(&lease.state_key));
        let want = requested_lease(run, false, self.has_datastore)
            .map(|want| (named(&want.key), want.since));
        let mut inner = self.lock();
        let mut woken = inner.put(key, want, has);
        woken.extend(inner.applies.put(key, run, named));
        drop(inner);
        self.wakers.send_all(&woken);
    }

    fn delete(&self, key: &Key) {
        let mut inner = self.lock();
        let moved = inner.put(key, None, None);
        inner.applies.remove(key);
        drop(inner);
        self.wakers.send_all(&moved);
    }
}

impl Queue {
    pub fn new(settings: &Settings, wakers: Arc<Wakers>) -> Self {
        let (shared, has_datastore) = (settings.shared_states.clone(), settings.has_datastore());
        Self {
            inner: Mutex::default(),
            wakers,
            shared,
            has_datastore,
        }
    }

    /// The runs before a run that requests a lease; `None` when it may try to take it.
    pub fn ahead(&self, run: &TerraformRun, want: &LeaseRequest) -> Option<Ahead> {
        let (inner, own) = (self.lock(), Key::new(name_of(run)));
        let lease = self.lease(&own.0, &want.key);
        let holder = inner
            .runs
            .iter()
            .find(|(of, entry)| **of != own && entry.has.as_ref() == Some(&lease));
        if holder.is_none() && inner.named.get(&lease) == Some(&own) {
            return None;
        }
        let own: Place = (lease.clone(), want.since, own);
        let before: Vec<_> = inner
            .in_line(&lease)
            .take_while(|place| **place < own)
            .collect();
        let (namespace, name) = &**holder
            .map(|(of, _)| of)
            .or_else(|| before.first().map(|(.., first)| first))?;
        Some(Ahead {
            place: before.len() + 1,
            first: format!("{namespace}/{name}"),
        })
    }

    /// Records that a Lease names `holder`, `NAMESPACE/NAME`, which is entitled to it. If the holder is in the queue,
    /// it is next regardless of its position: no other run gets the Lease before it. It loses its position when its
    /// approval is withdrawn after it took the Lease, and set again.
    pub fn names(&self, lease: &str, holder: &str) {
        let Some((namespace, name)) = holder.split_once('/') else {
            return;
        };
        let mut inner = self.lock();
        let waits = inner
            .in_line(lease)
            .map(|(.., run)| run)
            .find(|run| (&*run.0, &*run.1) == (namespace, name))
            .cloned();
        if let Some(run) = waits {
            inner.named.insert(lease.into(), run);
            self.wakers.send(namespace, name);
        }
    }

    /// The last apply by another run to the state of a waiting plan, if it came after the plan.
    pub fn applied_since(&self, run: &TerraformRun) -> Option<Applied> {
        let name = name_of(run);
        self.lock()
            .applies
            .since(&name, run, |state| self.lease(&name.0, state))
    }

    /// The name of the Lease on a state.
    fn lease(&self, namespace: &str, state: &str) -> Arc<str> {
        self.shared.lease_name(namespace, state).into()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Stores the lease that a run requests and the one that it has; without either, removes the run. Returns the
    /// runs that moved.
    fn put(
        &mut self,
        key: &Key,
        want: Option<(Arc<str>, Timestamp)>,
        has: Option<Arc<str>>,
    ) -> Vec<Key> {
        let want = want.filter(|(lease, _)| has.as_ref() != Some(lease));
        let waits = want.map(|(lease, since)| (lease, since, key.clone()));
        let mut moved = Vec::new();
        if let Some(before) = self.runs.remove(key) {
            if let Some(place) = before.waits {
                self.line.remove(&place);
                if self.named.get(&place.0) == Some(key) {
                    self.named.remove(&place.0);
                }
                if waits.as_ref() != Some(&place) {
                    moved.push(place.0);
                }
            }
            moved.extend(before.has.filter(|lease| Some(lease) != has.as_ref()));
        }
        if has.is_some() || waits.is_some() {
            self.line.extend(waits.clone());
            self.runs.insert(key.clone(), Entry { waits, has });
        }
        moved
            .iter()
            .flat_map(|lease| self.in_line(lease))
            .map(|(.., run)| run.clone())
            .collect()
    }

    /// The runs that wait for a Lease, in order.
    fn in_line<'a>(&'a self, lease: &'a str) -> impl Iterator<Item = &'a Place> {
        let first: Place = (lease.into(), Timestamp::MIN, Key::default());
        self.line
            .range(first..)
            .take_while(move |(of, ..)| **of == *lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{ApprovalMode, StateLease, TerraformRunStatus, whole_seconds};
    use futures::channel::mpsc::{UnboundedReceiver, unbounded};

    fn run(namespace: &str, name: &str, second: i64) -> TerraformRun {
        let mut run = testing::named(namespace, name, second);
        run.spec.approval.mode = ApprovalMode::Automatic;
        run.spec.backend = serde_json::from_value(
            serde_json::json!({"type": "http", "config": {"address": "http://s/a"}}),
        )
        .unwrap();
        run
    }

    fn has(mut run: TerraformRun) -> TerraformRun {
        let key = requested_lease(&run, false, true).unwrap().key;
        // Recorded under the name of an earlier controller.
        let lease = StateLease {
            name: "pawl-state-x".into(),
            state_key: key,
            at: whole_seconds(testing::t0()),
        };
        run.status = Some(TerraformRunStatus {
            lease: Some(lease),
            ..TerraformRunStatus::default()
        });
        run
    }

    /// A queue of the namespaces `x` and `y`, which share states, and the runs that it wakes.
    fn queue() -> (Queue, UnboundedReceiver<Key>) {
        let shared_states = r#"[["x","y"]]"#.parse().unwrap();
        let settings = Settings {
            shared_states,
            datastore_url: Some("https://d".into()),
            ..Settings::default()
        };
        let ((wake, woken), wakers) = (unbounded(), Arc::new(Wakers::default()));
        wakers.add(None, wake);
        (Queue::new(&settings, wakers), woken)
    }

    fn put(queue: &Queue, run: &TerraformRun) {
        queue.apply(&Key::new(name_of(run)), run);
    }

    fn delete(queue: &Queue, run: &TerraformRun) {
        queue.delete(&Key::new(name_of(run)));
    }

    fn ahead(queue: &Queue, run: &TerraformRun) -> Option<(usize, String)> {
        queue
            .ahead(run, &requested_lease(run, false, true).unwrap())
            .map(|ahead| (ahead.place, ahead.first))
    }

    fn woken(receiver: &mut UnboundedReceiver<Key>) -> Vec<String> {
        std::iter::from_fn(|| receiver.try_recv().ok())
            .map(|run| format!("{}/{}", run.0, run.1))
            .collect()
    }

    #[test]
    fn queue_is_by_creation_and_moves_when_the_lease_is_free() {
        let (queue, mut receiver) = queue();
        let (a, b, c) = (run("x", "a", 1), run("y", "b", 2), run("x", "c", 3));
        for run in [&c, &b, &a] {
            put(&queue, run);
        }
        assert_eq!(ahead(&queue, &a), None);
        assert_eq!(
            ahead(&queue, &b),
            Some((2, "x/a".into())),
            "of another namespace of the group"
        );
        assert_eq!(ahead(&queue, &c), Some((3, "x/a".into())));
        put(&queue, &has(a.clone()));
        assert_eq!(
            woken(&mut receiver),
            ["y/b", "x/c"],
            "each has come a place nearer"
        );
        assert_eq!(
            ahead(&queue, &b),
            Some((1, "x/a".into())),
            "it has the lease"
        );
        delete(&queue, &has(a));
        assert_eq!(woken(&mut receiver), ["y/b", "x/c"]);
        assert_eq!(ahead(&queue, &b), None);
        assert_eq!(ahead(&queue, &c), Some((2, "y/b".into())));
        let mut ended = b.clone();
        ended.metadata.annotations =
            Some([(crds::names::CANCEL.to_owned(), "x".to_owned())].into());
        put(&queue, &ended);
        assert_eq!(
            woken(&mut receiver),
            ["x/c"],
            "one that is cancelled waits no more"
        );
        assert_eq!(ahead(&queue, &c), None);
    }

    #[test]
    fn apply_wakes_waiting_plans_of_its_state() {
        let (queue, mut receiver) = queue();
        let planned = |name: &str| {
            let mut run = run("x", name, 1);
            run.spec.approval.mode = ApprovalMode::Manual;
            let created_at = Some(whole_seconds(testing::t0()));
            let plan = crds::PlanStatus {
                state_key: Some("s".into()),
                created_at,
                ..crds::PlanStatus::default()
            };
            run.status = Some(TerraformRunStatus {
                phase: Some(crds::Phase::AwaitingApproval),
                plan: Some(plan),
                ..TerraformRunStatus::default()
            });
            run
        };
        let (a, mut b) = (planned("a"), planned("b"));
        for run in [&a, &b] {
            put(&queue, run);
        }
        assert!(woken(&mut receiver).is_empty());
        assert_eq!(queue.applied_since(&a), None);
        let at = testing::at(9);
        let (pod_uid, nonce) = (testing::POD.into(), testing::NONCE.into());
        let status = b.status.as_mut().unwrap();
        status.claim = Some(crds::Claim {
            checksum: "sha256:1".into(),
            attempt: 1,
            pod_uid,
            nonce,
            at: whole_seconds(at),
        });
        (status.phase, status.result) =
            (Some(crds::Phase::Succeeded), Some(crds::RunResult::Applied));
        put(&queue, &b);
        assert_eq!(woken(&mut receiver), ["x/a"]);
        assert_eq!(
            queue.applied_since(&a),
            Some(Applied {
                run: "x/b".into(),
                at
            })
        );
    }

    #[test]
    fn run_named_by_the_lease_goes_first_until_it_leaves() {
        let (queue, mut receiver) = queue();
        // `late` took the Lease. Its approval was withdrawn before the record, and set again after `early` was
        // approved.
        let (early, late) = (run("x", "early", 1), run("y", "late", 2));
        let key = requested_lease(&late, false, true).unwrap().key;
        let lease = queue.shared.lease_name("y", &key);
        for run in [&early, &late] {
            put(&queue, run);
        }
        assert_eq!(ahead(&queue, &late), Some((2, "x/early".into())));
        queue.names(&lease, "y/late");
        assert_eq!(woken(&mut receiver), ["y/late"]);
        assert_eq!(
            (ahead(&queue, &late), ahead(&queue, &early)),
            (None, None),
            "the Lease decides, and it is asked again"
        );
        put(&queue, &has(late.clone()));
        assert_eq!(woken(&mut receiver), ["x/early"]);
        assert_eq!(ahead(&queue, &early), Some((1, "y/late".into())));
        put(&queue, &late);
        assert_eq!(
            ahead(&queue, &late),
            Some((2, "x/early".into())),
            "what the Lease named then is over"
        );
        queue.names(&lease, "y/late");
        put(&queue, &has(early));
        assert_eq!(
            ahead(&queue, &late),
            Some((1, "x/early".into())),
            "whom a run's own status names has it"
        );
        delete(&queue, &late);
        queue.names(&lease, "y/late");
        assert!(queue.lock().named.is_empty(), "nobody of that name waits");
    }

    #[test]
    fn deleted_run_is_dropped_and_wakes_waiting_ones() {
        let (queue, mut receiver) = queue();
        let (a, b) = (has(run("x", "a", 1)), run("y", "b", 2));
        for run in [&a, &b] {
            put(&queue, run);
        }
        assert_eq!(
            ahead(&queue, &b),
            Some((1, "x/a".into())),
            "though its Lease was called otherwise"
        );
        delete(&queue, &a);
        assert_eq!(woken(&mut receiver), vec!["y/b".to_owned()]);
        assert_eq!(ahead(&queue, &b), None);
        delete(&queue, &b);
        let inner = queue.lock();
        assert!(inner.runs.is_empty());
        assert!(inner.line.is_empty());
        assert!(inner.applies.is_empty());
    }

    #[test]
    fn namespaces_without_sharing_are_independent() {
        let (queue, mut receiver) = queue();
        let (a, other, b) = (run("x", "a", 1), run("z", "other", 2), run("y", "b", 3));
        for run in [&has(a.clone()), &other, &b] {
            put(&queue, run);
        }
        assert_eq!(
            ahead(&queue, &other),
            None,
            "one state, and neither its holder nor its line is seen from there"
        );
        assert_eq!(
            ahead(&queue, &b),
            Some((1, "x/a".into())),
            "nor is that one in the line of the group"
        );
        put(&queue, &has(other));
        assert_eq!(woken(&mut receiver), Vec::<String>::new());
        delete(&queue, &has(a));
        assert_eq!(woken(&mut receiver), vec!["y/b".to_owned()]);
        assert_eq!(ahead(&queue, &b), None);
    }
}
