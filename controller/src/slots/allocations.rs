//! Counts open attempts and reserved slots, and holds the queue. Consistent between any two events.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crds::{TerraformRun, version};
use watching::Key;

use super::{
    admission::{Bounds, Class, Full, Line, Open, Place, Scope, admitted, ask},
    entry::{Entry, Until},
};
use crate::cluster::watch::Wakers;

/// Slots and the queue, from the watches and from this process's own writes.
#[derive(Default)]
pub(super) struct Allocations {
    /// Only runs that have not ended.
    pub(super) runs: BTreeMap<Key, Entry>,
    /// The runs that wait.
    pub(super) line: Line,
    /// Number of attempts that are open or about to be opened.
    pub(super) open: Open,
    /// Held runs whose pods may end.
    pub(super) held: BTreeSet<Key>,
    /// Runs whose pods find no room, with the scope in which they look for it.
    pub(super) stuck: BTreeMap<Key, Scope>,
    pub(super) bounds: Bounds,
    pub(super) wakers: Arc<Wakers>,
}

impl Allocations {
    /// Takes a run from a watch.
    pub(super) fn put(&mut self, key: &Key, run: &TerraformRun) {
        let version = version(&run.metadata);
        let before = self.runs.remove(key);
        if let Some(before) = &before {
            self.forget(key, before);
        }
        let Some(mut entry) = Entry::of(run) else {
            if before
                .is_some_and(|before| before.counts().next().is_some() || before.waits.is_some())
            {
                self.serve();
            }
            return;
        };
        if let Some(before) = &before {
            entry.follows(before);
        }
        entry.kept = before
            .as_ref()
            .and_then(|before| before.kept)
            .filter(|kept| match kept.until {
                Until::Look => true,
                Until::Heard(_) => entry.open != Some(kept.class),
                Until::Seen(written) => version < written,
            });
        let freed = before.as_ref().is_some_and(|before| {
            before
                .counts()
                .any(|class| !entry.counts().any(|now| now == class))
        });
        let is_stuck =
            entry.stuck.is_some() && before.as_ref().is_none_or(|before| before.stuck.is_none());
        let left = entry.waits.is_none() && before.is_some_and(|before| before.waits.is_some());
        self.count(key, &entry);
        let turn = entry
            .waits
            .as_ref()
            .is_some_and(|place| self.ask(place, &entry.scopes).is_ok());
        if turn {
            self.wakers.send(&key.0, &key.1);
        }
        self.runs.insert(key.clone(), entry);
        if is_stuck {
            for held in self.making_room() {
                self.wakers.send(&held.0, &held.1);
            }
        }
        if freed || left {
            self.serve();
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(gone) = self.runs.remove(key) {
            self.forget(key, &gone);
            self.serve();
        }
    }

    /// Replaces an entry, without a change of the watch that showed it.
    pub(super) fn change(&mut self, key: &Key, entry: Entry) {
        if let Some(before) = self.runs.remove(key) {
            self.forget(key, &before);
            self.count(key, &entry);
            self.runs.insert(key.clone(), entry);
        }
    }

    fn count(&mut self, key: &Key, entry: &Entry) {
        for class in entry.counts() {
            self.open.add(class, entry.rank, &entry.scopes);
        }
        if let Some(place) = &entry.waits {
            self.line.insert(place.clone(), entry.scopes.clone());
        }
        if entry.held {
            self.held.insert(key.clone());
        }
        if let Some(scope) = &entry.stuck {
            self.stuck.insert(key.clone(), scope.clone());
        }
    }

    /// Subtracts an entry from the counts and the queue.
    fn forget(&mut self, key: &Key, entry: &Entry) {
        for class in entry.counts() {
            self.open.remove(class, entry.rank, &entry.scopes);
        }
        if let Some(place) = &entry.waits {
            self.line.remove(place);
        }
        self.held.remove(key);
        self.stuck.remove(key);
    }

    /// Whether the run at a place of the queue may take a slot.
    ///
    /// # Errors
    /// The bound that is full.
    pub(super) fn ask(&self, place: &Place, scopes: &[Scope]) -> Result<(), Full> {
        ask(place, scopes, &self.line, &self.open, &self.bounds)
    }

    /// Changes until when the slot of a run is reserved.
    pub(super) fn keeps(&mut self, key: &Key, change: impl FnOnce(Until) -> Until) {
        if let Some(kept) = self.runs.get_mut(key).and_then(|entry| entry.kept.as_mut()) {
            kept.until = change(kept.until);
        }
    }

    /// The held runs whose pods end to make room for stuck ones: at a time as many as find none. Once they have ended, others follow until
    /// the stuck ones are reported as started.
    fn making_room(&self) -> impl Iterator<Item = &Key> {
        let scopes: BTreeSet<&Scope> = self.stuck.values().collect();
        scopes.into_iter().flat_map(|scope| {
            let stuck = self.stuck.values().filter(|of| *of == scope).count();
            let held = self.held.iter().filter(|held| {
                self.runs
                    .get(*held)
                    .is_some_and(|entry| entry.scopes.contains(scope))
            });
            held.take(stuck)
        })
    }

    /// Whether the pod of a held run ends to make room for a stuck one.
    pub(super) fn makes_room(&self, key: &Key) -> bool {
        self.making_room().any(|held| held == key)
    }

    /// The runs with an open attempt.
    pub(super) fn opened(&self) -> impl Iterator<Item = &Key> {
        let open = self
            .runs
            .iter()
            .filter(|(_, entry)| entry.attempt.is_some());
        open.map(|(key, _)| key)
    }

    /// Number of open attempts and of waiting runs of a class.
    pub(super) fn load(&self, class: Class) -> (u32, usize) {
        let waiting = self.line.keys().filter(|place| place.class == class);
        (self.open.count(class, &Scope::Whole), waiting.count())
    }

    /// Wakes the held runs that occupy slots of a full bound.
    pub(super) fn wake_held(&self, full: &Full) {
        for key in &self.held {
            let entry = self.runs.get(key);
            if entry.is_some_and(|entry| {
                entry.open == Some(full.class) && entry.scopes.contains(&full.scope)
            }) {
                self.wakers.send(&key.0, &key.1);
            }
        }
    }

    /// Wakes the runs that may take a slot now.
    pub(super) fn serve(&self) {
        for place in admitted(self.line.iter(), &self.open, &self.bounds).0 {
            self.wakers.send(&place.namespace, &place.name);
        }
    }
}
