//! Layers, repositories and runs as the watches show them. Sends no requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::mpsc::UnboundedSender;
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher::Event},
};

use crds::{TerraformLayer, TerraformRepository};

use super::{
    cached_run::LayerRun,
    run_summary::RunSummary,
    store::{Store, key, run_key, small},
};
use crate::{
    cluster::index::{Feed, Feeds},
    metrics::Metrics,
    settings::Settings,
};

pub struct Layers {
    inner: Mutex<Store>,
    feeds: Feeds,
    metrics: Arc<Metrics>,
}

impl Layers {
    pub fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        let inner = Store::new(settings);
        Self { inner: Mutex::new(inner), feeds: Feeds::default(), metrics }
    }

    /// Adds a watch of one of the three kinds.
    pub fn feed(&self) -> Feed {
        self.feeds.add()
    }

    /// `wake` receives the layers of a namespace, or of all, that have to be reconciled.
    pub fn wakes(&self, scope: Option<String>, wake: UnboundedSender<ObjectRef<TerraformLayer>>) {
        self.lock().wakers.push((scope, wake));
    }

    /// Wakes the layers of a namespace.
    pub fn wake(&self, namespace: &str) {
        let inner = self.lock();
        inner.layers.iter().map(|(key, _)| key).filter(|key| *key.0 == *namespace).for_each(|key| inner.wake(key));
    }

    /// Waits until every watch has listed once: a run that the index does not know would be created twice.
    pub async fn ready(&self) {
        self.feeds.ready().await;
    }

    pub fn layer(&self, feed: &mut Feed, event: &Event<TerraformLayer>) {
        feed.hears(event);
        let mut inner = self.lock();
        match event {
            Event::Apply(layer) | Event::InitApply(layer) => {
                let (key, before) = (key(layer), layer.status.as_ref().and_then(|status| status.state));
                let old = inner.put(feed, layer, before);
                inner.states(&key);
                self.metrics.layer_moved(old, before);
            }
            Event::Delete(layer) => {
                let old = inner.remove(&key(layer));
                self.metrics.layer_moved(old, None);
            }
            Event::Init => {}
            Event::InitDone => {
                for (key, entry) in inner.layers.end_listing(feed.seen()) {
                    inner.forget(&key, &entry);
                    self.metrics.layer_moved(entry.state, None);
                }
                self.listed(feed, &mut inner);
            }
        }
    }

    /// Takes an event of a watch of repositories. Wakes their layers if the relevant part changed.
    pub fn repository(&self, feed: &mut Feed, event: &Event<TerraformRepository>) {
        feed.hears(event);
        let mut inner = self.lock();
        match event {
            Event::Apply(repository) | Event::InitApply(repository) => {
                let key = key(repository);
                let small = Arc::new(small(repository));
                if inner.repositories.put(feed.seen(), key.clone(), small.clone()).as_ref() != Some(&small) {
                    inner.changed(&key);
                }
            }
            Event::Delete(repository) => {
                let key = key(repository);
                inner.repositories.remove(&key);
                inner.changed(&key);
            }
            Event::Init => {}
            Event::InitDone => {
                for (key, _) in inner.repositories.end_listing(feed.seen()) {
                    inner.changed(&key);
                }
                self.listed(feed, &mut inner);
            }
        }
    }

    /// Records an event of the watch of runs. `of` is the event's run, if it belongs to a layer.
    pub fn run<K>(&self, feed: &mut Feed, event: &Event<K>, of: Option<LayerRun>) {
        feed.hears(event);
        let mut inner = self.lock();
        match event {
            Event::Apply(_) | Event::InitApply(_) => {
                let Some(LayerRun { layer, run, kept }) = of else { return };
                let (key, said) = (run_key(&layer, &run), kept.clone());
                if inner.runs.put(feed.seen(), key, kept).is_none_or(|before| !before.says(&said)) {
                    inner.run_changed(&key.0);
                }
            }
            Event::Delete(_) => {
                let Some(LayerRun { layer, run, .. }) = of else { return };
                let key = run_key(&layer, &run);
                inner.runs.remove(&key);
                inner.run_changed(&key.0);
            }
            Event::Init => {}
            Event::InitDone => {
                for ((layer, _), _) in inner.runs.end_listing(feed.seen()) {
                    inner.run_changed(&layer);
                }
                self.listed(feed, &mut inner);
            }
        }
    }

    /// The layer's repository, and its runs, oldest first.
    pub fn of(&self, layer: &TerraformLayer) -> (Option<Arc<TerraformRepository>>, Vec<RunSummary>) {
        let inner = self.lock();
        let uid = layer.uid().unwrap_or_default();
        let (namespace, name) = layer.repository_key();
        (inner.repositories.get(&(namespace.into(), name.into())).cloned(), inner.runs_of(&uid))
    }

    /// Namespace and name of the oldest layer with the same state, if that is another layer.
    pub fn owner(&self, layer: &TerraformLayer) -> Option<(String, String)> {
        let inner = self.lock();
        let entry = inner.layers.get(&key(layer))?;
        let (rank, first) = entry.states.iter().filter_map(|state| inner.owners.get(state)?.first()).min()?;
        (*rank < entry.rank).then(|| (first.0.to_string(), first.1.to_string()))
    }

    /// A watch has listed. After the last one, the states of all layers are computed.
    fn listed(&self, feed: &mut Feed, inner: &mut Store) {
        self.feeds.listed(feed);
        if self.feeds.is_ready() {
            inner.settle();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        // Each event leaves it complete, so a poisoned lock does no harm.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
