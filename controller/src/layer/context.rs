//! What the reconciler of layers works with, and what this process remembers of them.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crds::{TerraformLayer, version};

use super::{index::Layers, observed::Refused};
use crate::{cluster::Cluster, events::Events};

/// How long after its creation a run may be missing from the cache before it is made again, under the same name.
const CREATION_LAG: SignedDuration = SignedDuration::from_secs(5);

pub struct Context {
    pub cluster: Arc<Cluster>,
    /// What the watches have shown.
    pub layers: Arc<Layers>,
    pub events: Events,
    /// When this process began to work.
    pub started: Timestamp,
    memory: Mutex<HashMap<String, Notes>>,
}

/// What this process remembers of a layer: what the watches do not show yet. Losing it costs a request, never a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Notes {
    /// resourceVersion after the last write of ours.
    pub(super) version: u64,
    /// The run that was made last, and when; until the cache shows it.
    pub(super) made: Option<(String, Timestamp)>,
    /// The run that was refused last, and how often.
    pub(super) refused: Option<(Refused, u32)>,
    /// Errors in a row.
    pub(super) errors: u32,
}

impl Notes {
    /// The run that was made last and that the cache does not show yet; and whether that was a moment ago, so that it is about to.
    pub(super) fn awaits(&self, shown: impl Fn(&str) -> bool, now: Timestamp) -> Option<(&str, bool)> {
        let (run, at) = self.made.as_ref().filter(|(run, _)| !shown(run))?;
        Some((run, at.checked_add(CREATION_LAG).is_ok_and(|until| now < until)))
    }
}

impl Context {
    pub fn new(cluster: Arc<Cluster>, layers: Arc<Layers>, events: Events) -> Self {
        let started = cluster.now();
        Self { cluster, layers, events, started, memory: Mutex::default() }
    }

    pub(super) fn notes(&self, uid: &str) -> Notes {
        self.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Changes what is remembered. Nothing is kept of a layer of which that is nothing.
    pub(super) fn remember<T>(&self, uid: &str, change: impl FnOnce(&mut Notes) -> T) -> T {
        let mut memory = self.lock();
        let notes = memory.entry(uid.to_owned()).or_default();
        let changed = change(notes);
        if *notes == Notes::default() {
            memory.remove(uid);
        }
        changed
    }

    /// The watch shows a layer as it was written: that nobody shall decide on an older one need not be remembered.
    pub(super) fn shown(&self, layer: &TerraformLayer) {
        let uid = layer.uid().unwrap_or_default();
        let shown = version(&layer.metadata);
        self.remember(&uid, |notes| {
            if notes.version <= shown {
                notes.version = 0;
            }
        });
    }

    pub(super) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Notes>> {
        // Notes are whole at every moment, so a panic elsewhere spoils nothing.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Context {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::t0;

    #[test]
    fn a_cache_that_is_late_makes_no_second_run() {
        // Burrito 11.6: a pod that the cache did not show yet was made again.
        let notes = Notes { made: Some(("net-a".into(), t0())), ..Notes::default() };
        let after = |seconds| t0() + SignedDuration::from_secs(seconds);
        assert_eq!(notes.awaits(|_| false, after(4)), Some(("net-a", true)));
        assert_eq!(notes.awaits(|run| run == "net-a", after(4)), None, "it is shown");
        assert_eq!(
            notes.awaits(|_| false, after(6)),
            Some(("net-a", false)),
            "its watch is silent, or it was deleted: it is asked for"
        );
        assert_eq!(Notes::default().awaits(|_| false, t0()), None);
    }
}
