//! The queue of objects to reconcile, and its loop: one reconcile per object at a time, with bounded concurrency.
//!
//! Objects that a person waits for come first, the others in wake-up order. The runtime's own queue (kube-runtime 5.0,
//! `scheduler::Scheduler::pending`) takes due objects in hash order: under load some objects wait until the load is
//! over.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::Hash,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt, stream::FuturesUnordered};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use watching::Key;

use super::{cached::Store, watch::stopped};

/// One of this many reconciles comes from the later queue, so that it is not starved.
const LATER_EACH: u32 = 4;

/// The priority of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Later,
    First,
}

impl Rank {
    const fn of(comes_first: bool) -> Self {
        if comes_first {
            Self::First
        } else {
            Self::Later
        }
    }
}

/// Time, and insertion order for equal times.
type Due = (Instant, u64);

#[derive(Default)]
struct Entry {
    waits: Option<Rank>,
    /// A reconcile is running. A wake-up during it queues another one.
    busy: bool,
    due: Option<Due>,
}

/// Objects to reconcile, now or at a time. Others are not stored.
struct WorkQueue<K> {
    entries: HashMap<K, Entry>,
    first: VecDeque<K>,
    /// An object promoted to `first` also remains here and is skipped.
    later: VecDeque<K>,
    due: BTreeMap<Due, (K, Rank)>,
    put: u64,
    taken: u32,
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    fn new() -> Self {
        Self {
            entries: HashMap::new(),
            first: VecDeque::new(),
            later: VecDeque::new(),
            due: BTreeMap::new(),
            put: 0,
            taken: 0,
        }
    }

    /// Queues an object.
    fn wake(&mut self, key: K, rank: Rank) {
        let entry = self.entries.entry(key.clone()).or_default();
        if let Some(due) = entry.due.take() {
            self.due.remove(&due);
        }
        if entry.waits >= Some(rank) {
            return;
        }
        entry.waits = Some(rank);
        if !entry.busy {
            self.line(rank).push_back(key);
        }
    }

    fn line(&mut self, rank: Rank) -> &mut VecDeque<K> {
        match rank {
            Rank::First => &mut self.first,
            Rank::Later => &mut self.later,
        }
    }

    /// The next object to reconcile now, if any.
    fn take(&mut self, now: Instant) -> Option<K> {
        while let Some(due) = self.due.first_entry().filter(|due| due.key().0 <= now) {
            let (key, rank) = due.remove();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.due = None;
            }
            self.wake(key, rank);
        }
        self.taken = self.taken.wrapping_add(1);
        let ranks = if self.taken.is_multiple_of(LATER_EACH) {
            [Rank::Later, Rank::First]
        } else {
            [Rank::First, Rank::Later]
        };
        for rank in ranks {
            while let Some(key) = self.line(rank).pop_front() {
                if let Some(entry) = self
                    .entries
                    .get_mut(&key)
                    .filter(|entry| !entry.busy && entry.waits == Some(rank))
                {
                    (entry.waits, entry.busy) = (None, true);
                    return Some(key);
                }
            }
        }
        None
    }

    /// Ends a reconcile; queues the next at `again`, unless a wake-up comes first.
    fn done(&mut self, key: K, again: Option<Instant>, rank: Rank) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.busy = false;
        if let Some(rank) = entry.waits {
            self.line(rank).push_back(key);
        } else if let Some(at) = again {
            self.put += 1;
            entry.due = Some((at, self.put));
            self.due.insert((at, self.put), (key, rank));
        } else {
            self.entries.remove(&key);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }
}

/// Reconciles objects of the store when they are woken and at the times that their reconciles request, until `stop`. Completes running
/// reconciles. A packed object never has priority.
pub(crate) async fn work<K, F>(
    store: Arc<Store<K>>,
    wakes: impl Stream<Item = Key>,
    concurrency: u16,
    stop: watch::Receiver<bool>,
    comes_first: impl Fn(&K) -> bool,
    look: impl Fn(Arc<K>) -> F,
) where
    K: Serialize + DeserializeOwned,
    F: Future<Output = Option<Duration>>,
{
    let rank = |key: &Key| Rank::of(store.is(key, &comes_first));
    let (mut queue, mut looks) = (WorkQueue::<Key>::new(), FuturesUnordered::new());
    let (mut wakes, mut stopped) = (pin!(wakes.fuse()), pin!(stopped(stop)));
    loop {
        while looks.len() < usize::from(concurrency)
            && let Some(key) = queue.take(Instant::now())
        {
            match store.get(&key) {
                Some(object) => {
                    let look = look(object);
                    looks.push(async move { (key, look.await) });
                }
                None => queue.done(key, None, Rank::Later),
            }
        }
        let due = queue
            .next_due()
            .filter(|_| looks.len() < usize::from(concurrency));
        tokio::select! {
            () = &mut stopped => break,
            Some(key) = wakes.next() => {
                let rank = rank(&key);
                queue.wake(key, rank);
            }
            Some((key, again)) = looks.next() => {
                let rank = rank(&key);
                queue.done(key, again.and_then(|again| Instant::now().checked_add(again)), rank);
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
    while looks.next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        static BEGUN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        *BEGUN + Duration::from_secs(seconds)
    }

    fn taken(queue: &mut WorkQueue<&'static str>, seconds: u64) -> Vec<&'static str> {
        let all: Vec<_> = std::iter::from_fn(|| queue.take(at(seconds))).collect();
        for key in &all {
            queue.done(*key, None, Rank::Later);
        }
        all
    }

    #[test]
    fn prioritized_objects_come_first_others_in_order() {
        let mut queue = WorkQueue::new();
        for key in ["a", "b", "c", "a"] {
            queue.wake(key, Rank::Later);
        }
        queue.wake("person", Rank::First);
        queue.wake("c", Rank::First);
        queue.wake("c", Rank::Later);
        assert_eq!(taken(&mut queue, 0), ["person", "c", "a", "b"], "each once");
        assert!(queue.entries.is_empty() && queue.take(at(0)).is_none());
    }

    #[test]
    fn frequent_wakers_do_not_starve_others() {
        let mut queue = WorkQueue::new();
        queue.wake("later", Rank::Later);
        let mut looks = 0;
        let found = (0..LATER_EACH).any(|_| {
            queue.wake("busy", Rank::First);
            looks += 1;
            let key = queue.take(at(0)).unwrap();
            queue.done(key, None, Rank::First);
            key == "later"
        });
        assert!(found, "not within {looks} looks");
    }

    #[test]
    fn wake_during_a_reconcile_runs_it_once_more() {
        let mut queue = WorkQueue::new();
        queue.wake("a", Rank::Later);
        assert_eq!(queue.take(at(0)), Some("a"));
        queue.wake("a", Rank::Later);
        queue.wake("a", Rank::First);
        assert_eq!(queue.take(at(0)), None, "somebody looks at it");
        queue.done("a", Some(at(9)), Rank::Later);
        assert_eq!(
            (queue.take(at(0)), queue.next_due()),
            (Some("a"), None),
            "it was woken: no need for another time"
        );
    }

    #[test]
    fn reconcile_repeats_at_its_time_or_on_an_earlier_wake() {
        let mut queue = WorkQueue::new();
        for (key, again) in [("a", 5), ("b", 3), ("c", 3)] {
            queue.wake(key, Rank::Later);
            assert_eq!(queue.take(at(0)), Some(key));
            queue.done(key, Some(at(again)), Rank::Later);
        }
        assert_eq!((queue.take(at(2)), queue.next_due()), (None, Some(at(3))));
        queue.wake("a", Rank::Later);
        assert_eq!(taken(&mut queue, 3), ["a", "b", "c"]);
        assert_eq!(queue.next_due(), None, "nothing is kept of those that rest");
        assert_eq!(queue.entries.len(), 0, "nothing is kept of those that rest");
        assert_eq!(queue.due.len(), 0, "nothing is kept of those that rest");
    }
}
