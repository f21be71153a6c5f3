//! Revisions that runs requested and that are not stored yet, for `controller sources`. In memory only: a waiting run
//! asks again.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crds::datastore::WantedRevision;
use tokio::{sync::watch, time::Instant};

/// How long a request is remembered: longer than the interval between two attempts of a run.
const WAITS: Duration = Duration::from_secs(600);
/// Maximum per repository, so that one repository's runs cannot block others.
const OF_ONE: usize = 16;
/// Maximum in total.
const MOST: usize = 1024;

/// The requested revisions, with the time of the last request.
#[derive(Default)]
pub struct Wanted {
    all: Mutex<BTreeMap<WantedRevision, Instant>>,
    changed: watch::Sender<()>,
}

impl Wanted {
    /// Records that a run requested a revision that is not stored. Beyond the bounds the request is dropped; the run
    /// asks again.
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
        WantedRevision {
            namespace: "team".into(),
            uid: uid.into(),
            revision: format!("{revision:040x}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wanted_revision_expires_without_requests() {
        let wanted = Wanted::default();
        wanted.asked(of("a", 1));
        tokio::time::advance(WAITS / 2).await;
        wanted.asked(of("a", 1));
        wanted.asked(of("a", 2));
        tokio::time::advance(WAITS / 2).await;
        assert_eq!(
            wanted.list(),
            [of("a", 1), of("a", 2)],
            "it was asked for again"
        );
        wanted.stored(&of("a", 1));
        assert_eq!(wanted.list(), [of("a", 2)]);
        tokio::time::advance(WAITS / 2).await;
        assert!(wanted.list().is_empty());
    }

    #[tokio::test]
    async fn one_repository_cannot_fill_the_wanted_list() {
        let wanted = Wanted::default();
        for revision in 0..MOST {
            wanted.asked(of("a", revision));
        }
        wanted.asked(of("b", 1));
        let list = wanted.list();
        assert_eq!((list.len(), list.contains(&of("b", 1))), (OF_ONE + 1, true));
    }
}
