//! Counts open attempts and reserved slots, and holds the queue. Consistent between any two events.

use std::collections::BTreeSet;

use crds::{TerraformRun, version};
use futures::channel::mpsc::UnboundedSender;
use kube::{ResourceExt, runtime::reflector::ObjectRef};

use super::{
    admission::{Bounds, Full, Line, Open, Place, Scope, admitted, ask},
    entry::{Entry, Until},
};
use crate::cluster::index::{Index, Seen};

/// A run by name and namespace.
pub type Run = ObjectRef<TerraformRun>;
/// Namespace and name.
pub type Repository = (Box<str>, Box<str>);

/// Slots and the queue, from the watches and from this process's own writes.
#[derive(Default)]
pub(super) struct Allocations {
    /// By UID; only runs that have not ended.
    pub(super) runs: Index<Box<str>, Entry>,
    /// The runs that wait.
    pub(super) line: Line,
    /// Number of attempts that are open or about to be opened.
    pub(super) open: Open,
    /// UIDs of held runs whose pods may end.
    pub(super) held: BTreeSet<Box<str>>,
    pub(super) bounds: Bounds,
    /// `spec.maxConcurrentRuns` of repositories, by watch.
    pub(super) repositories: Index<Repository, u32>,
    /// Receivers of the runs to reconcile, of one namespace or of all.
    pub(super) wakers: Vec<(Option<String>, UnboundedSender<Run>)>,
}

impl Allocations {
    /// Takes a run from a watch.
    pub(super) fn put(&mut self, seen: Seen, run: &TerraformRun) {
        let uid: Box<str> = run.uid().unwrap_or_default().into();
        let version = version(&run.metadata);
        let before = self.runs.remove(&*uid);
        if let Some(before) = &before {
            self.forget(&uid, before);
        }
        let Some(mut entry) = Entry::of(run) else {
            if before.is_some_and(|before| before.counts().next().is_some() || before.waits.is_some()) {
                self.serve();
            }
            return;
        };
        if let Some(before) = &before {
            entry.follows(before);
        }
        entry.kept = before.as_ref().and_then(|before| before.kept).filter(|kept| match kept.until {
            Until::Look => true,
            Until::Heard(_) => entry.open != Some(kept.class),
            Until::Seen(written) => version < written,
        });
        let freed = before.as_ref().is_some_and(|before| before.counts().any(|class| !entry.counts().any(|now| now == class)));
        let left = entry.waits.is_none() && before.is_some_and(|before| before.waits.is_some());
        self.count(&uid, &entry);
        let turn = entry.waits.as_ref().is_some_and(|place| self.ask(place, &entry.scopes).is_ok());
        if turn {
            self.send(&entry.namespace, &entry.name);
        }
        self.runs.put(seen, uid, entry);
        if freed || left {
            self.serve();
        }
    }

    pub(super) fn remove(&mut self, uid: &str) {
        if let Some(gone) = self.runs.remove(uid) {
            self.forget(uid, &gone);
            self.serve();
        }
    }

    /// Replaces an entry, without a change of the watch that showed it.
    pub(super) fn change(&mut self, uid: &str, entry: Entry) {
        if let Some(before) = self.runs.get(uid).cloned() {
            self.forget(uid, &before);
            self.count(uid, &entry);
            if let Some(there) = self.runs.get_mut(uid) {
                *there = entry;
            }
        }
    }

    fn count(&mut self, uid: &str, entry: &Entry) {
        for class in entry.counts() {
            self.open.add(class, &entry.scopes);
        }
        if let Some(place) = &entry.waits {
            self.line.insert(place.clone(), entry.scopes.clone());
        }
        if entry.held {
            self.held.insert(uid.into());
        }
    }

    /// Subtracts an entry from the counts and the queue.
    pub(super) fn forget(&mut self, uid: &str, entry: &Entry) {
        for class in entry.counts() {
            self.open.remove(class, &entry.scopes);
        }
        if let Some(place) = &entry.waits {
            self.line.remove(place);
        }
        self.held.remove(uid);
    }

    /// Whether the run at a place of the queue may take a slot.
    ///
    /// # Errors
    /// The bound that is full, and the number of runs ahead.
    pub(super) fn ask(&self, place: &Place, scopes: &[Scope]) -> Result<(), Full> {
        ask(place, scopes, &self.line, &self.open, &self.bounds)
    }

    /// Changes until when the slot of a run is reserved.
    pub(super) fn keeps(&mut self, uid: &str, change: impl FnOnce(Until) -> Until) {
        if let Some(kept) = self.runs.get_mut(uid).and_then(|entry| entry.kept.as_mut()) {
            kept.until = change(kept.until);
        }
    }

    /// Namespace and name of the held runs that occupy slots of a full bound.
    pub(super) fn holds(&self, full: &Full) -> Vec<(Box<str>, Box<str>)> {
        let held = self.held.iter().filter_map(|uid| self.runs.get(uid));
        let of = held.filter(|entry| entry.open == Some(full.class) && entry.scopes.contains(&full.scope));
        of.map(|entry| (entry.namespace.clone(), entry.name.clone())).collect()
    }

    /// Wakes the runs that may take a slot now.
    pub(super) fn serve(&self) {
        for place in admitted(self.line.iter(), &self.open, &self.bounds) {
            self.send(&place.namespace, &place.name);
        }
    }

    /// Wakes a run.
    pub(super) fn send(&self, namespace: &str, name: &str) {
        for (_, waker) in self.wakers.iter().filter(|(scope, _)| scope.as_deref().is_none_or(|scope| scope == namespace)) {
            // The receiver is gone when the controller stops.
            let _ = waker.unbounded_send(ObjectRef::new(name).within(namespace));
        }
    }
}
