//! What the watches have shown of layers, repositories and runs: filled by them, asked for no request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::mpsc::UnboundedSender;
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher::Event},
};

use crds::{TerraformLayer, TerraformRepository, TerraformRun};

use super::{
    kept_run::KeptRun,
    known::{Key, Known, key, run_key, small},
    seen_run::SeenRun,
};
use crate::{
    cluster::index::{Feed, Feeds},
    metrics::Metrics,
    settings::Settings,
};

/// Layers, repositories and runs.
pub struct Layers {
    inner: Mutex<Known>,
    feeds: Feeds,
    metrics: Arc<Metrics>,
}

impl Layers {
    /// Nothing is known yet.
    pub fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        let inner = Known::new(settings);
        Self { inner: Mutex::new(inner), feeds: Feeds::default(), metrics }
    }

    /// One more watch of one of the three kinds.
    pub fn feed(&self) -> Feed {
        self.feeds.add()
    }

    /// `wake` is told of the layers of a namespace, or of all, that are to be looked at.
    pub fn wakes(&self, scope: Option<String>, wake: UnboundedSender<ObjectRef<TerraformLayer>>) {
        self.lock().wakers.push((scope, wake));
    }

    /// Has the layers of a namespace looked at.
    pub fn wake(&self, namespace: &str) {
        let inner = self.lock();
        inner.layers.iter().map(|(key, _)| key).filter(|key| key.0 == namespace).for_each(|key| inner.wake(key));
    }

    /// Waits until every watch has listed once: a run that nobody knows of would be made a second time.
    pub async fn ready(&self) {
        self.feeds.ready().await;
    }

    /// Takes an event of a watch of layers.
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
                self.feeds.listed(feed);
            }
        }
    }

    /// Takes an event of a watch of repositories: what their layers need of them has changed, or not.
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
                self.feeds.listed(feed);
            }
        }
    }

    /// Takes an event of a watch of runs, whole as the API server sent it.
    pub fn run(&self, feed: &mut Feed, event: &Event<TerraformRun>) {
        feed.hears(event);
        let mut inner = self.lock();
        match event {
            Event::Apply(run) | Event::InitApply(run) => {
                let Some((layer, seen)) = SeenRun::of(run) else { return };
                let key = run_key(&layer, &seen);
                let kept = KeptRun::of(seen);
                if inner.runs.put(feed.seen(), key, kept.clone()).as_ref() != Some(&kept) {
                    inner.run_changed(&layer);
                }
            }
            Event::Delete(run) => {
                let Some((layer, seen)) = SeenRun::of(run) else { return };
                inner.runs.remove(&run_key(&layer, &seen));
                inner.run_changed(&layer);
            }
            Event::Init => {}
            Event::InitDone => {
                for ((layer, ..), _) in inner.runs.end_listing(feed.seen()) {
                    inner.run_changed(&layer);
                }
                self.feeds.listed(feed);
            }
        }
    }

    /// The repository of that namespace and name, and the runs of a layer, older ones first.
    pub fn of(&self, layer: &TerraformLayer) -> (Option<Arc<TerraformRepository>>, Vec<SeenRun>) {
        let inner = self.lock();
        let uid = layer.uid().unwrap_or_default();
        (inner.repositories.get(&layer.repository_key()).cloned(), inner.runs_of(&uid))
    }

    /// The oldest layer of the same state, when that is another.
    pub fn owner(&self, layer: &TerraformLayer) -> Option<Key> {
        let inner = self.lock();
        let entry = inner.layers.get(&key(layer))?;
        let first = entry.states.iter().filter_map(|state| inner.owners.get(state)?.first_key_value()).min()?;
        (*first.0 < entry.rank).then(|| first.1.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Whole between any two events.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the cache does without.
pub fn trim(layer: &mut TerraformLayer) {
    let meta = &mut layer.metadata;
    meta.managed_fields = None;
    meta.labels = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| key.starts_with("pawl.run/"));
    }
}
