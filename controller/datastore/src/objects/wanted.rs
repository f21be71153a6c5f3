//! Revisions that runs asked for and that nobody has stored: for whoever follows repositories. In memory: who waits asks again.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crds::datastore::WantedRevision;
use tokio::{sync::watch, time::Instant};

/// How long after a question its answer is still waited for: longer than between two attempts of a run.
const WAITS: Duration = Duration::from_secs(600);
/// The most revisions of one repository, so that no run keeps those of others from being fetched.
const OF_ONE: usize = 16;
/// The most in all.
const MOST: usize = 1024;

/// What was asked for, and when last.
#[derive(Default)]
pub struct Wanted {
    all: Mutex<BTreeMap<WantedRevision, Instant>>,
    changed: watch::Sender<()>,
}

impl Wanted {
    /// A run asked for a revision that is not stored. Beyond the bounds nothing is remembered; the run asks again.
    pub fn asked(&self, revision: WantedRevision) {
        let mut all = self.waiting();
        let of_one = all.keys().filter(|other| other.uid == revision.uid).count();
        if all.contains_key(&revision) || of_one < OF_ONE && all.len() < MOST {
            all.insert(revision, Instant::now());
            self.changed.send_replace(());
        }
    }

    /// Changes whenever a run asks.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub fn stored(&self, revision: &WantedRevision) {
        self.waiting().remove(revision);
    }

    pub fn list(&self) -> Vec<WantedRevision> {
        self.waiting().keys().cloned().collect()
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<WantedRevision, Instant>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, asked| asked.elapsed() < WAITS);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: &str, revision: usize) -> WantedRevision {
        WantedRevision { namespace: "team".into(), uid: uid.into(), revision: format!("{revision:040x}") }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_for_is_forgotten_when_nobody_asks_any_more() {
        let wanted = Wanted::default();
        wanted.asked(of("a", 1));
        tokio::time::advance(WAITS / 2).await;
        wanted.asked(of("a", 1));
        wanted.asked(of("a", 2));
        tokio::time::advance(WAITS / 2).await;
        assert_eq!(wanted.list(), [of("a", 1), of("a", 2)], "it was asked for again");
        wanted.stored(&of("a", 1));
        assert_eq!(wanted.list(), [of("a", 2)]);
        tokio::time::advance(WAITS / 2).await;
        assert!(wanted.list().is_empty());
    }

    #[tokio::test]
    async fn one_repository_keeps_no_other_from_being_asked_for() {
        let wanted = Wanted::default();
        for revision in 0..MOST {
            wanted.asked(of("a", revision));
        }
        wanted.asked(of("b", 1));
        let list = wanted.list();
        assert_eq!((list.len(), list.contains(&of("b", 1))), (OF_ONE + 1, true));
    }
}
