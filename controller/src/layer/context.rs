//! The state of the layer reconciler: its clients, and what this process remembers of each layer.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crds::{TerraformLayer, version};

use super::{index::Layers, observed::Refused};
use crate::{
    cluster::{Cluster, memory::Memory},
    events::Events,
};

/// How long after its creation a run may be missing from the cache before it is created again under the same name.
const CREATION_LAG: SignedDuration = SignedDuration::from_secs(5);

pub struct Context {
    pub cluster: Arc<Cluster>,
    /// Filled by the watches.
    pub layers: Arc<Layers>,
    pub events: Events,
    /// Start of this process.
    pub started: Timestamp,
    pub(super) memory: Memory<Notes>,
}

/// Facts about a layer that the watches do not show yet. Losing it costs a request, never a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Notes {
    /// resourceVersion of our last write; 0 once the watch has shown it.
    pub(super) version: u64,
    /// The run created last and its time, until the cache shows it.
    pub(super) made: Option<(String, Timestamp)>,
    /// The run refused last, and how often.
    pub(super) refused: Option<(Refused, u32)>,
    /// Consecutive errors.
    pub(super) errors: u32,
}

impl Notes {
    /// The created run that the cache does not show yet, and whether its creation is more recent than [`CREATION_LAG`].
    pub(super) fn awaits(
        &self,
        shown: impl Fn(&str) -> bool,
        now: Timestamp,
    ) -> Option<(&str, bool)> {
        let (run, at) = self.made.as_ref().filter(|(run, _)| !shown(run))?;
        Some((
            run,
            at.checked_add(CREATION_LAG).is_ok_and(|until| now < until),
        ))
    }
}

impl Context {
    pub fn new(cluster: Arc<Cluster>, layers: Arc<Layers>, events: Events) -> Self {
        let started = cluster.now();
        Self {
            cluster,
            layers,
            events,
            started,
            memory: Memory::default(),
        }
    }

    /// The watch shows the layer. Once it shows our last write, the notes need not guard against a stale cache.
    pub(super) fn shown(&self, layer: &TerraformLayer) {
        let uid = layer.uid().unwrap_or_default();
        let shown = version(&layer.metadata);
        self.memory.update(&uid, |notes| {
            if notes.version <= shown {
                notes.version = 0;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::t0;

    #[test]
    fn stale_cache_creates_no_second_run() {
        // Burrito 11.6: a pod that the cache did not show yet was created again.
        let notes = Notes {
            made: Some(("net-a".into(), t0())),
            ..Notes::default()
        };
        let after = |seconds| t0() + SignedDuration::from_secs(seconds);
        assert_eq!(notes.awaits(|_| false, after(4)), Some(("net-a", true)));
        assert_eq!(
            notes.awaits(|run| run == "net-a", after(4)),
            None,
            "it is shown"
        );
        assert_eq!(
            notes.awaits(|_| false, after(6)),
            Some(("net-a", false)),
            "its watch is silent, or it was deleted: it is asked for"
        );
        assert_eq!(Notes::default().awaits(|_| false, t0()), None);
    }
}
