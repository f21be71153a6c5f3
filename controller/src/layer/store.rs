//! Layers, repositories and runs as the watches show them, and the states of each layer.
//!
//! Made for many layers: a layer's key is one shared allocation, and rarely used fields take no space when empty.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde_json::Map;
use sha2::{Digest, Sha256};
use watching::{Key, Name};

use crds::{
    LayerState, RefFailure, RefStatus, RunTemplate, TerraformLayer, TerraformRepository,
    TerraformRepositoryStatus,
};

use super::{cached_run::CachedLayerRun, run_summary::RunSummary, template::expected_state};
use crate::{
    cluster::watch::Wakers,
    settings::{Settings, sharing::SharedStates},
};

/// The first half of a SHA-256 digest.
type Hash = [u8; 16];
/// Creation time in seconds and UID; older layers sort first.
type Rank = (i64, Arc<str>);

pub(super) struct Store {
    pub(super) layers: BTreeMap<Key, Entry>,
    by_uid: HashMap<Hash, Key>,
    pub(super) repositories: BTreeMap<Key, Arc<TerraformRepository>>,
    of_repository: BTreeMap<Key, BTreeSet<Key>>,
    /// Each with the hash of its layer's UID.
    pub(super) runs: BTreeMap<Key, (Hash, CachedLayerRun)>,
    of_layer: BTreeSet<(Hash, Key)>,
    /// By the name of the Lease on a state: its layers, oldest first. Almost always one.
    pub(super) owners: BTreeMap<Arc<str>, Vec<(Rank, Key)>>,
    wakers: Arc<Wakers>,
    shared: SharedStates,
    has_datastore: bool,
    /// Every watch has listed once. Until then no states are computed, because each listed run would change them and no decision reads them
    /// yet.
    pub(super) settled: bool,
}

/// The cached part of a layer: enough to compute its states.
pub(super) struct Entry {
    pub(super) rank: Rank,
    repository: Key,
    path: Box<str>,
    template: Option<Box<RunTemplate>>,
    /// Names of the Leases on its states: the expected one, and the one of its last plan.
    pub(super) states: Box<[Arc<str>]>,
    pub(super) state: Option<LayerState>,
}

impl Store {
    pub(super) fn new(settings: &Settings, wakers: Arc<Wakers>) -> Self {
        Self {
            layers: BTreeMap::new(),
            by_uid: HashMap::new(),
            repositories: BTreeMap::new(),
            of_repository: BTreeMap::new(),
            runs: BTreeMap::new(),
            of_layer: BTreeSet::new(),
            owners: BTreeMap::new(),
            wakers,
            shared: settings.shared_states.clone(),
            has_datastore: settings.has_datastore(),
            settled: false,
        }
    }

    /// Returns the state that the layer was counted with in the metrics.
    pub(super) fn put(
        &mut self,
        key: &Key,
        layer: &TerraformLayer,
        state: Option<LayerState>,
    ) -> Option<LayerState> {
        let (namespace, name) = layer.repository_key();
        let repository: Name = (namespace.into(), name.into());
        let uid = layer.uid().unwrap_or_default();
        let created = layer.creation_timestamp().map_or(0, |at| at.0.as_second());
        let rank = (created, Arc::from(&*uid));
        let old = self.layers.remove(key);
        let same = old
            .as_ref()
            .filter(|old| old.rank == rank && *old.repository == repository);
        // It has another repository now.
        if let (Some(old), None) = (&old, same) {
            self.forget(key, old);
        }
        let states = same.map(|old| old.states.clone()).unwrap_or_default();
        let rank = same.map_or(rank, |old| old.rank.clone());
        self.by_uid.insert(hash(&uid), key.clone());
        let of = self
            .of_repository
            .get_key_value(&repository)
            .map_or_else(|| Key::new(repository), |(of, _)| of.clone());
        self.of_repository
            .entry(of.clone())
            .or_default()
            .insert(key.clone());
        let fields = layer
            .spec
            .template
            .0
            .iter()
            .filter(|(field, _)| matches!(field.as_str(), "stack" | "workspace" | "backend"));
        let fields: Map<_, _> = fields
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect();
        let template = (!fields.is_empty()).then(|| Box::new(RunTemplate(fields)));
        let entry = Entry {
            rank,
            repository: of,
            path: layer.spec.path.as_str().into(),
            template,
            states,
            state,
        };
        self.layers.insert(key.clone(), entry);
        old.and_then(|old| old.state)
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<LayerState> {
        let entry = self.layers.remove(key)?;
        self.forget(key, &entry);
        entry.state
    }

    /// Removes the entries of a layer from every other map.
    fn forget(&mut self, key: &Key, entry: &Entry) {
        self.by_uid.remove(&hash(&entry.rank.1));
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
        let Some(owners) = self.owners.get_mut(state) else {
            return;
        };
        owners.retain(|(of, _)| of != rank);
        let others: Vec<Key> = owners.iter().map(|(_, key)| key.clone()).collect();
        if others.is_empty() {
            self.owners.remove(state);
        }
        for other in &others {
            self.wake(other);
        }
    }

    /// Every watch has listed once: computes the states of all layers.
    pub(super) fn settle(&mut self) {
        if !std::mem::replace(&mut self.settled, true) {
            let layers: Vec<Key> = self.layers.keys().cloned().collect();
            for key in &layers {
                self.states(key);
            }
        }
    }

    /// Computes the states of a layer. If they changed, wakes it and the layers that share the new or the former ones.
    pub(super) fn states(&mut self, key: &Key) {
        let Some((key, entry)) = self.layers.get_key_value(key).filter(|_| self.settled) else {
            return;
        };
        let (key, rank, before) = (key.clone(), entry.rank.clone(), entry.states.clone());
        let repository = self.repositories.get(&entry.repository);
        let none = RunTemplate::default();
        let template = entry.template.as_deref().unwrap_or(&none);
        let expected = repository.and_then(|found| {
            expected_state(&key.0, &entry.path, template, found, self.has_datastore)
        });
        let planned = self
            .runs_of(&rank.1)
            .into_iter()
            .rev()
            .find_map(|run| run.plan?.state_key);
        let states = expected.as_deref().into_iter().chain(planned.as_deref());
        let states: BTreeSet<String> = states
            .map(|state| self.shared.lease_name(&key.0, state))
            .collect();
        if states
            .iter()
            .map(String::as_str)
            .eq(before.iter().map(|state| &**state))
        {
            return;
        }
        let states: Box<[Arc<str>]> = states.iter().map(|state| self.named(state)).collect();
        for gone in before.iter().filter(|state| !states.contains(state)) {
            self.leave(gone, &rank);
        }
        for new in states.iter().filter(|state| !before.contains(state)) {
            let owners = self.owners.entry(new.clone()).or_default();
            let others: Vec<Key> = owners.iter().map(|(_, key)| key.clone()).collect();
            owners.reserve_exact(1);
            owners.insert(
                owners.partition_point(|(of, _)| *of < rank),
                (rank.clone(), key.clone()),
            );
            for other in &others {
                self.wake(other);
            }
        }
        if let Some(entry) = self.layers.get_mut(&key) {
            entry.states = states;
        }
        self.wake(&key);
    }

    /// The shared name of a Lease.
    fn named(&self, state: &str) -> Arc<str> {
        self.owners
            .get_key_value(state)
            .map_or_else(|| state.into(), |(state, _)| state.clone())
    }

    /// A repository changed, so the states and the wanted settings of its layers may have changed.
    pub(super) fn changed(&mut self, repository: &Key) {
        let layers: Vec<Key> = self
            .of_repository
            .get(repository)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        for key in layers {
            self.states(&key);
            self.wake(&key);
        }
    }

    /// Stores a run of a layer. Wakes the layer if the run changed.
    pub(super) fn put_run(&mut self, key: &Key, layer: &str, run: CachedLayerRun) {
        let layer = hash(layer);
        if self
            .runs
            .get(key)
            .is_some_and(|(before, _)| *before != layer)
        {
            self.remove_run(key);
        }
        self.of_layer.insert((layer, key.clone()));
        let said = run.clone();
        if self
            .runs
            .insert(key.clone(), (layer, run))
            .is_none_or(|(_, before)| !before.says(&said))
        {
            self.run_changed(&layer);
        }
    }

    pub(super) fn remove_run(&mut self, key: &Key) {
        if let Some((layer, _)) = self.runs.remove(key) {
            self.of_layer.remove(&(layer, key.clone()));
            self.run_changed(&layer);
        }
    }

    fn run_changed(&mut self, layer: &Hash) {
        let Some(key) = self.by_uid.get(layer).cloned() else {
            return;
        };
        self.states(&key);
        self.wake(&key);
    }

    /// The runs of a layer, oldest first.
    pub(super) fn runs_of(&self, uid: &str) -> Vec<RunSummary> {
        let layer = hash(uid);
        let keys = self
            .of_layer
            .range((layer, Key::default())..)
            .take_while(|(of, _)| *of == layer);
        let mut runs: Vec<_> = keys
            .filter_map(|(_, key)| self.runs.get(key)?.1.run())
            .collect();
        runs.sort_by(|a, b| a.age().cmp(&b.age()));
        runs
    }

    /// Wakes a layer. Does nothing before the first listings end: each listed layer is reconciled anyway.
    pub(super) fn wake(&self, layer: &Key) {
        if self.settled {
            self.wakers.send(&layer.0, &layer.1);
        }
    }
}

fn hash(text: &str) -> Hash {
    let mut half = Hash::default();
    half.copy_from_slice(&Sha256::digest(text.as_bytes())[..16]);
    half
}

/// The part of a repository that its layers read.
pub(super) fn small(repository: &TerraformRepository) -> TerraformRepository {
    let mut small = TerraformRepository::new(&repository.name_any(), repository.spec.clone());
    small.metadata.namespace = repository.namespace();
    small.metadata.uid = repository.uid();
    small.status = repository.status.as_ref().map(|status| {
        let failed = status.conditions.iter().filter(|c| c.status == "False");
        let conditions = failed.map(|c| Condition {
            observed_generation: None,
            ..c.clone()
        });
        let refs = status.refs.iter().map(|known| RefStatus {
            name: known.name.clone(),
            failure: known.failure.clone().map(|failure| RefFailure {
                times: 0,
                ..failure
            }),
            ..RefStatus::default()
        });
        TerraformRepositoryStatus {
            conditions: conditions.collect(),
            next_step: status.next_step.clone(),
            advice: status.advice.clone(),
            refs: refs.collect(),
            ..TerraformRepositoryStatus::default()
        }
    });
    small
}
