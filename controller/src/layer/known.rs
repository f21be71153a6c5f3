//! What is known of layers, repositories and runs, and of which state each layer is.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use futures::channel::mpsc::UnboundedSender;
use kube::{ResourceExt, runtime::reflector::ObjectRef};

use crds::{LayerState, RunTemplate, TerraformLayer, TerraformRepository};

use super::{kept_run::KeptRun, seen_run::SeenRun, template::expected_state};
use crate::{
    cluster::index::{Feed, Index},
    settings::{Settings, sharing::SharedStates},
};

/// Namespace and name.
pub(super) type Key = (String, String);
/// UID of the layer, seconds since its run was created, and that run's name: a layer's runs, older ones first.
type RunKey = (Box<str>, i64, Box<str>);
/// Older layers first.
type Rank = (i64, Box<str>);
type Layer = ObjectRef<TerraformLayer>;

/// What is known.
pub(super) struct Known {
    pub(super) layers: Index<Key, Entry>,
    by_uid: HashMap<Box<str>, Key>,
    pub(super) repositories: Index<Key, Arc<TerraformRepository>>,
    of_repository: BTreeMap<Key, BTreeSet<Key>>,
    pub(super) runs: Index<RunKey, KeptRun>,
    /// By the name of the Lease on a state: the layers that have it.
    pub(super) owners: BTreeMap<Box<str>, BTreeMap<Rank, Key>>,
    pub(super) wakers: Vec<(Option<String>, UnboundedSender<Layer>)>,
    shared: SharedStates,
    has_datastore: bool,
}

/// What is kept of a layer: of which state it is follows from that.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) rank: Rank,
    repository: Key,
    path: String,
    template: RunTemplate,
    /// Names of the Leases on its state: the one that is expected, and the one that its last plan was of.
    pub(super) states: BTreeSet<Box<str>>,
    pub(super) state: Option<LayerState>,
}

impl Known {
    /// Nothing yet.
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            layers: Index::default(),
            by_uid: HashMap::new(),
            repositories: Index::default(),
            of_repository: BTreeMap::new(),
            runs: Index::default(),
            owners: BTreeMap::new(),
            wakers: Vec::new(),
            shared: settings.shared_states.clone(),
            has_datastore: settings.has_datastore(),
        }
    }

    /// Returns the state that the layer was counted with.
    pub(super) fn put(&mut self, feed: &Feed, layer: &TerraformLayer, state: Option<LayerState>) -> Option<LayerState> {
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

    pub(super) fn remove(&mut self, key: &Key) -> Option<LayerState> {
        let entry = self.layers.remove(key)?;
        self.forget(key, &entry);
        entry.state
    }

    /// Takes what is known by a layer that is not there any more.
    pub(super) fn forget(&mut self, key: &Key, entry: &Entry) {
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
        for other in &others {
            self.wake(other);
        }
    }

    /// Finds out of which state a layer is. Whoever has the same, or had, is looked at.
    pub(super) fn states(&mut self, key: &Key) {
        let Some(entry) = self.layers.get(key) else { return };
        let (rank, before) = (entry.rank.clone(), entry.states.clone());
        let repository = self.repositories.get(&entry.repository);
        let expected =
            repository.and_then(|found| expected_state(&key.0, &entry.path, &entry.template, found, self.has_datastore));
        let planned = self.runs_of(&rank.1).into_iter().rev().find_map(|run| run.plan?.state_key);
        let states = expected.as_deref().into_iter().chain(planned.as_deref());
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
            for other in &others {
                self.wake(other);
            }
        }
        if let Some(entry) = self.layers.get_mut(key) {
            entry.states = states;
        }
        self.wake(key);
    }

    /// A repository has changed: so may the states of its layers have, and what is wanted of them.
    pub(super) fn changed(&mut self, repository: &Key) {
        let layers: Vec<Key> = self.of_repository.get(repository).into_iter().flatten().cloned().collect();
        for key in layers {
            self.states(&key);
            self.wake(&key);
        }
    }

    pub(super) fn run_changed(&mut self, layer: &str) {
        let Some(key) = self.by_uid.get(layer).cloned() else { return };
        self.states(&key);
        self.wake(&key);
    }

    /// The runs of a layer, older ones first.
    pub(super) fn runs_of(&self, uid: &str) -> Vec<SeenRun> {
        let from = (Box::from(uid), i64::MIN, Box::default());
        let runs = self.runs.range(from..).take_while(|((layer, ..), _)| **layer == *uid);
        let mut runs: Vec<_> = runs.filter_map(|(_, run)| run.run()).collect();
        runs.sort_by(|a, b| a.age().cmp(&b.age()));
        runs
    }

    pub(super) fn wake(&self, (namespace, name): &Key) {
        let scopes = self.wakers.iter().filter(|(scope, _)| scope.as_ref().is_none_or(|scope| scope == namespace));
        for (_, wake) in scopes {
            // Nobody listens any more when the controller ends.
            let _ = wake.unbounded_send(ObjectRef::new(name).within(namespace));
        }
    }
}

pub(super) fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

pub(super) fn run_key(layer: &str, run: &SeenRun) -> RunKey {
    (layer.into(), run.created.as_second(), run.name.clone())
}

/// What layers need of their repository.
pub(super) fn small(repository: &TerraformRepository) -> TerraformRepository {
    let mut small = TerraformRepository::new(&repository.name_any(), repository.spec.clone());
    small.metadata.namespace = repository.namespace();
    small.metadata.uid = repository.uid();
    small
}
