//! What the watches have shown of layers, repositories and runs: filled by them, asked for no request.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::channel::mpsc::UnboundedSender;
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher::Event},
};

use crds::{LayerState, RunTemplate, TerraformLayer, TerraformRepository, TerraformRun};

use super::{seen_run::SeenRun, template::expected_state};
use crate::{
    cluster::index::{Feed, Feeds, Index},
    metrics::Metrics,
    settings::{Settings, sharing::SharedStates},
};

/// Namespace and name.
pub(super) type Key = (String, String);
/// UID of the layer, seconds since its run was created, and that run's name: a layer's runs, older ones first.
type RunKey = (Box<str>, i64, Box<str>);
/// Older layers first.
type Rank = (i64, Box<str>);
type Layer = ObjectRef<TerraformLayer>;

/// Layers, repositories and runs.
pub struct Layers {
    inner: Mutex<Inner>,
    feeds: Feeds,
    metrics: Arc<Metrics>,
}

struct Inner {
    layers: Index<Key, Entry>,
    by_uid: HashMap<Box<str>, Key>,
    repositories: Index<Key, Arc<TerraformRepository>>,
    of_repository: BTreeMap<Key, BTreeSet<Key>>,
    runs: Index<RunKey, SeenRun>,
    /// By the name of the Lease on a state: the layers that have it.
    owners: BTreeMap<Box<str>, BTreeMap<Rank, Key>>,
    wakers: Vec<(Option<String>, UnboundedSender<Layer>)>,
    shared: SharedStates,
    has_datastore: bool,
}

/// What is kept of a layer: of which state it is follows from that.
#[derive(Default)]
struct Entry {
    rank: Rank,
    repository: Key,
    path: String,
    template: RunTemplate,
    /// Names of the Leases on its state: the one that is expected, and the one that its last plan was of.
    states: BTreeSet<Box<str>>,
    state: Option<LayerState>,
}

impl Layers {
    /// Nothing is known yet.
    pub fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        let inner = Inner {
            layers: Index::default(),
            by_uid: HashMap::new(),
            repositories: Index::default(),
            of_repository: BTreeMap::new(),
            runs: Index::default(),
            owners: BTreeMap::new(),
            wakers: Vec::new(),
            shared: settings.shared_states.clone(),
            has_datastore: settings.has_datastore(),
        };
        Self { inner: Mutex::new(inner), feeds: Feeds::default(), metrics }
    }

    /// One more watch of one of the three kinds.
    pub fn feed(&self) -> Feed {
        self.feeds.add()
    }

    /// `wake` is told of the layers of a namespace, or of all, that are to be looked at.
    pub fn wakes(&self, scope: Option<String>, wake: UnboundedSender<Layer>) {
        self.lock().wakers.push((scope, wake));
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
                if inner.runs.put(feed.seen(), key, seen.clone()).as_ref() != Some(&seen) {
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
        (inner.repositories.get(&layer.repository_key()).cloned(), inner.runs_of(&uid).cloned().collect())
    }

    /// The oldest layer of the same state, when that is another.
    pub fn owner(&self, layer: &TerraformLayer) -> Option<Key> {
        let inner = self.lock();
        let entry = inner.layers.get(&key(layer))?;
        let first = entry.states.iter().filter_map(|state| inner.owners.get(state)?.first_key_value()).min()?;
        (*first.0 < entry.rank).then(|| first.1.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whole between any two events.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns the state that the layer was counted with.
    fn put(&mut self, feed: &Feed, layer: &TerraformLayer, state: Option<LayerState>) -> Option<LayerState> {
        let (key, repository) = (key(layer), layer.repository_key());
        let uid: Box<str> = layer.uid().unwrap_or_default().into();
        let created = layer.creation_timestamp().map_or(0, |at| at.0.as_second());
        let rank = (created, uid.clone());
        let old = self.layers.remove(&key);
        // Another layer of the name, whose deletion nobody saw.
        if let Some(old) = old.as_ref().filter(|old| old.rank != rank || old.repository != repository) {
            self.forget(&key, old);
        }
        self.by_uid.insert(uid, key.clone());
        self.of_repository.entry(repository.clone()).or_default().insert(key.clone());
        let mut template = layer.spec.template.clone();
        template.0.retain(|field, _| matches!(field.as_str(), "stack" | "workspace" | "backend"));
        let states = old
            .as_ref()
            .filter(|old| old.rank == rank && old.repository == repository)
            .map(|old| old.states.clone())
            .unwrap_or_default();
        let entry = Entry { rank, repository, path: layer.spec.path.clone(), template, states, state };
        self.layers.put(feed.seen(), key, entry);
        old.and_then(|old| old.state)
    }

    fn remove(&mut self, key: &Key) -> Option<LayerState> {
        let entry = self.layers.remove(key)?;
        self.forget(key, &entry);
        entry.state
    }

    /// Takes what is known by a layer that is not there any more.
    fn forget(&mut self, key: &Key, entry: &Entry) {
        self.by_uid.remove(&entry.rank.1);
        if let Some(layers) = self.of_repository.get_mut(&entry.repository) {
            layers.remove(key);
            if layers.is_empty() {
                self.of_repository.remove(&entry.repository);
            }
        }
        for state in &entry.states {
            self.leave(state, &entry.rank);
        }
    }

    fn leave(&mut self, state: &str, rank: &Rank) {
        let Some(owners) = self.owners.get_mut(state) else { return };
        owners.remove(rank);
        let others: Vec<Key> = owners.values().cloned().collect();
        if others.is_empty() {
            self.owners.remove(state);
        }
        others.iter().for_each(|other| self.wake(other));
    }

    /// Finds out of which state a layer is. Whoever has the same, or had, is looked at.
    fn states(&mut self, key: &Key) {
        let Some(entry) = self.layers.get(key) else { return };
        let (rank, before) = (entry.rank.clone(), entry.states.clone());
        let repository = self.repositories.get(&entry.repository);
        let expected =
            repository.and_then(|found| expected_state(&key.0, &entry.path, &entry.template, found, self.has_datastore));
        let planned = self.runs_of(&rank.1).filter_map(|run| run.plan.as_ref()?.state_key.as_deref()).next_back();
        let states = expected.as_deref().into_iter().chain(planned);
        let states: BTreeSet<Box<str>> = states.map(|state| self.shared.lease_name(&key.0, state).into()).collect();
        if states == before {
            return;
        }
        for gone in before.difference(&states) {
            self.leave(gone, &rank);
        }
        for new in states.difference(&before) {
            let others: Vec<Key> = self.owners.get(new).into_iter().flat_map(BTreeMap::values).cloned().collect();
            self.owners.entry(new.clone()).or_default().insert(rank.clone(), key.clone());
            others.iter().for_each(|other| self.wake(other));
        }
        if let Some(entry) = self.layers.get_mut(key) {
            entry.states = states;
        }
        self.wake(key);
    }

    /// A repository has changed: so may the states of its layers have, and what is wanted of them.
    fn changed(&mut self, repository: &Key) {
        let layers: Vec<Key> = self.of_repository.get(repository).into_iter().flatten().cloned().collect();
        for key in layers {
            self.states(&key);
            self.wake(&key);
        }
    }

    fn run_changed(&mut self, layer: &str) {
        let Some(key) = self.by_uid.get(layer).cloned() else { return };
        self.states(&key);
        self.wake(&key);
    }

    fn runs_of(&self, uid: &str) -> impl DoubleEndedIterator<Item = &SeenRun> {
        let from = (Box::from(uid), i64::MIN, Box::default());
        let of = Box::<str>::from(uid);
        self.runs
            .range(from..)
            .take_while(move |((layer, ..), _)| *layer == of)
            .map(|(_, run)| run)
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn wake(&self, (namespace, name): &Key) {
        let scopes = self.wakers.iter().filter(|(scope, _)| scope.as_ref().is_none_or(|scope| scope == namespace));
        for (_, wake) in scopes {
            // Nobody listens any more when the controller ends.
            let _ = wake.unbounded_send(ObjectRef::new(name).within(namespace));
        }
    }
}

fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn run_key(layer: &str, run: &SeenRun) -> RunKey {
    (layer.into(), run.created.as_second(), run.name.clone())
}

/// What layers need of their repository.
fn small(repository: &TerraformRepository) -> TerraformRepository {
    let mut small = TerraformRepository::new(&repository.name_any(), repository.spec.clone());
    small.metadata.namespace = repository.namespace();
    small.metadata.uid = repository.uid();
    small
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
