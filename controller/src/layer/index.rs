//! Layers, repositories and runs as the watches show them. Sends no requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use watching::{Index, Key, Listings, name_of};

use crds::{TerraformLayer, TerraformRepository};

use super::{
    cached_run::LayerRun,
    run_summary::RunSummary,
    store::{Store, small},
};
use crate::{cluster::watch::Wakers, metrics::Metrics, settings::Settings};

pub struct Layers {
    inner: Mutex<Store>,
    /// The watches that a reconcile of a layer waits for.
    pub listings: Listings,
    /// Receivers of the layers to reconcile.
    pub wakers: Arc<Wakers>,
    metrics: Arc<Metrics>,
}

impl Index<TerraformLayer> for Layers {
    fn apply(&self, key: &Key, layer: &TerraformLayer) {
        let state = layer.status.as_ref().and_then(|status| status.state);
        let mut inner = self.lock();
        let old = inner.put(key, layer, state);
        inner.states(key);
        self.metrics.layer_moved(old, state);
    }

    fn delete(&self, key: &Key) {
        let old = self.lock().remove(key);
        self.metrics.layer_moved(old, None);
    }
}

/// Wakes the layers of a repository if the relevant part changed.
impl Index<TerraformRepository> for Layers {
    fn apply(&self, key: &Key, repository: &TerraformRepository) {
        let mut inner = self.lock();
        let small = Arc::new(small(repository));
        if inner
            .repositories
            .insert(key.clone(), small.clone())
            .as_ref()
            != Some(&small)
        {
            inner.changed(key);
        }
    }

    fn delete(&self, key: &Key) {
        let mut inner = self.lock();
        inner.repositories.remove(key);
        inner.changed(key);
    }
}

impl Layers {
    pub fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        let wakers = Arc::<Wakers>::default();
        Self {
            inner: Mutex::new(Store::new(settings, wakers.clone())),
            listings: Listings::default(),
            wakers,
            metrics,
        }
    }

    /// Wakes the layers of a namespace.
    pub fn wake(&self, namespace: &str) {
        let inner = self.lock();
        inner
            .layers
            .keys()
            .filter(|key| *key.0 == *namespace)
            .for_each(|key| inner.wake(key));
    }

    /// A watch shows a run of a layer.
    pub fn apply_run(&self, key: &Key, run: LayerRun) {
        self.lock().put_run(key, &run.layer, run.kept);
    }

    /// A run was deleted.
    pub fn delete_run(&self, key: &Key) {
        self.lock().remove_run(key);
    }

    /// The layer's repository, and its runs, oldest first.
    pub fn of(
        &self,
        layer: &TerraformLayer,
    ) -> (Option<Arc<TerraformRepository>>, Vec<RunSummary>) {
        let inner = self.lock();
        let (namespace, name) = layer.repository_key();
        let runs = inner.runs_of(&layer.uid().unwrap_or_default());
        (
            inner
                .repositories
                .get(&(namespace.into(), name.into()))
                .cloned(),
            runs,
        )
    }

    /// Namespace and name of the oldest layer with the same state, if that is another layer.
    pub fn owner(&self, layer: &TerraformLayer) -> Option<(String, String)> {
        let inner = self.lock();
        let entry = inner.layers.get(&name_of(layer))?;
        let (rank, first) = entry
            .states
            .iter()
            .filter_map(|state| inner.owners.get(state)?.first())
            .min()?;
        (*rank < entry.rank).then(|| (first.0.to_string(), first.1.to_string()))
    }

    /// Computes the states of all layers when every watch has listed.
    fn lock(&self) -> MutexGuard<'_, Store> {
        // Each event leaves it complete, so a poisoned lock does no harm.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.settled && self.listings.is_ready() {
            inner.settle();
        }
        inner
    }
}

/// Removes what the cache does not need.
pub fn trim(layer: &mut TerraformLayer) {
    let meta = &mut layer.metadata;
    meta.managed_fields = None;
    meta.labels = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| key.starts_with("pawl.run/"));
    }
}
