//! Compact rows of layers, runs and repositories, in memory, filled by watches of the console's own account.

pub mod changes;
pub mod layer;
pub mod repository;
pub mod run;
pub mod table;
#[cfg(test)]
pub(crate) mod tests;

pub use changes::{Kind, Sequence};
pub use layer::{LayerRow, LayerRowState};
pub use repository::{RepositoryRow, RepositoryRowState};
pub use run::{Done, RunRow, Wait};
pub use table::{Held, Row};

use std::{
    fmt::Debug,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use axum::http::StatusCode;
use kube::{
    Api, Client, Resource,
    core::{DeserializeGuard, NamespaceResourceScope},
    runtime::watcher::Config,
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use watching::{Index, Indexes, Key, Listings, Name, follow, scoped};

use crds::{TerraformLayer, TerraformRepository, TerraformRun};

use crate::problem::Problem;
use changes::Changes;
use table::Table;

/// All rows. One lock for all: a page and its sequence are of one moment.
#[derive(Default)]
pub struct Rows {
    state: RwLock<State>,
    /// The watches whose first listing is awaited.
    pub listings: Listings,
    /// Notified of each change.
    changed: watch::Sender<()>,
}

#[derive(Default)]
pub struct State {
    pub layers: Table<LayerRow>,
    pub runs: Table<RunRow>,
    pub repositories: Table<RepositoryRow>,
    pub changes: Changes,
}

impl Rows {
    /// The rows of this moment.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rows of this moment, if they are complete.
    ///
    /// # Errors
    /// A first listing has not ended.
    pub fn complete(&self) -> Result<RwLockReadGuard<'_, State>, Problem> {
        if self.listings.is_ready() {
            return Ok(self.read());
        }
        Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Starting",
            "the console lists layers, runs and repositories; try again in a few seconds",
        ))
    }

    /// Is notified of changes.
    pub fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Watches layers, runs and repositories of one namespace, or of all, forever. The watch of repositories feeds these indexes too.
    pub fn watch(
        self: &Arc<Self>,
        client: &Client,
        scope: Option<&str>,
        repositories: Indexes<TerraformRepository>,
    ) {
        self.follow::<TerraformLayer>("layers", client, scope, Vec::new());
        self.follow::<TerraformRun>("runs", client, scope, Vec::new());
        self.follow("repositories", client, scope, repositories);
    }

    fn follow<K>(
        self: &Arc<Self>,
        what: &'static str,
        client: &Client,
        scope: Option<&str>,
        mut indexes: Indexes<K>,
    ) where
        Self: Index<K>,
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        indexes.extend([self.clone() as Arc<dyn Index<K>>, self.listings.add()]);
        let api: Api<DeserializeGuard<K>> = scoped(client, scope);
        tokio::spawn(follow(what, api, Config::default(), indexes));
    }

    fn write(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let before = state.changes.last();
        change(&mut state);
        let after = state.changes.last();
        drop(state);
        if before != after {
            self.changed.send_replace(());
        }
    }
}

impl State {
    /// The row of a layer with the state of its run.
    pub fn joined(&self, mut row: LayerRow) -> LayerRow {
        let run = row.run.clone().map(|run| (row.namespace.clone(), run));
        row.join(run.and_then(|run| self.runs.get(&run)));
        row
    }

    fn put_layer(&mut self, key: &Key, row: LayerRow) {
        let row = self.joined(row);
        if self.layers.put(key, row) {
            self.changes.add(Kind::Layer, key);
        }
    }

    /// The state of a layer depends on its run.
    fn join(&mut self, namespace: &str, layer: Option<Box<str>>, run: &str) {
        let Some(layer) = layer else { return };
        let name: Name = (namespace.into(), layer);
        let row = self.layers.get(&name);
        if let Some(row) = row.filter(|row| row.run.as_deref() == Some(run)) {
            self.put_layer(&Key::new(name), row.clone());
        }
    }
}

impl Index<TerraformLayer> for Rows {
    fn apply(&self, key: &Key, layer: &TerraformLayer) {
        self.write(|state| state.put_layer(key, LayerRow::of(layer)));
    }

    fn delete(&self, key: &Key) {
        self.write(|state| {
            if state.layers.remove(key) {
                state.changes.add(Kind::Layer, key);
            }
        });
    }
}

impl Index<TerraformRun> for Rows {
    fn apply(&self, key: &Key, run: &TerraformRun) {
        let row = RunRow::of(run);
        self.write(|state| {
            let layer = row.layer.clone();
            if state.runs.put(key, row) {
                state.changes.add(Kind::Run, key);
                state.join(&key.0, layer, &key.1);
            }
        });
    }

    fn delete(&self, key: &Key) {
        self.write(|state| {
            let layer = state.runs.get(key).and_then(|row| row.layer.clone());
            if state.runs.remove(key) {
                state.changes.add(Kind::Run, key);
                state.join(&key.0, layer, &key.1);
            }
        });
    }
}

impl Index<TerraformRepository> for Rows {
    fn apply(&self, key: &Key, repository: &TerraformRepository) {
        self.write(|state| {
            if state.repositories.put(key, RepositoryRow::of(repository)) {
                state.changes.add(Kind::Repository, key);
            }
        });
    }

    fn delete(&self, key: &Key) {
        self.write(|state| {
            if state.repositories.remove(key) {
                state.changes.add(Kind::Repository, key);
            }
        });
    }
}

impl Row for LayerRow {
    fn texts(&self) -> Vec<&str> {
        let Self {
            namespace, name, ..
        } = self;
        vec![namespace, name, &self.repository, &self.path, &self.git_ref]
    }
}

impl Row for RunRow {
    fn texts(&self) -> Vec<&str> {
        let more = [&self.layer, &self.revision, &self.approved_by];
        let more = more.into_iter().flatten().map(|text| &**text);
        let requesters = self.requested_by.iter().map(|name| &**name);
        let names = [&*self.namespace, &*self.name];
        names.into_iter().chain(more).chain(requesters).collect()
    }
}

impl Row for RepositoryRow {
    fn texts(&self) -> Vec<&str> {
        vec![&self.namespace, &self.name, &self.url]
    }
}
