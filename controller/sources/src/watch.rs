//! Watches repositories and layers, and wakes the workers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crds::{TerraformLayer, TerraformRepository, datastore::causes};
use datastore_client::RequestError;
use futures::{TryStreamExt as _, future::join};
use kube::{Api, core::DeserializeGuard, runtime::watcher::Config};
use tokio::{sync::Notify, task::AbortHandle};
use watching::{Index, Indexes, first, follow, scoped};

use crate::{
    follow::Key,
    gc,
    store::Snapshots,
    wanted,
    worker::{self, Shared},
};

pub struct Workers<B> {
    shared: Arc<Shared<B>>,
    all: Mutex<BTreeMap<Key, Worker>>,
}

struct Worker {
    wake: Arc<Notify>,
    task: AbortHandle,
}

impl<B: Snapshots + 'static> Index<TerraformRepository> for Workers<B> {
    fn apply(&self, key: &watching::Key, repository: &TerraformRepository) {
        if self.shared.follow().repository(repository.clone()) {
            self.wake(&own(key));
        }
    }

    /// Stops the worker and deletes its data.
    fn delete(&self, key: &watching::Key) {
        let key = own(key);
        let uid = self.shared.follow().without_repository(&key);
        let mut all = self.all();
        if let Some(worker) = all.remove(&key) {
            worker.task.abort();
        }
        self.shared.metrics.follows(all.len());
        if let Some(uid) = uid {
            tokio::spawn(gc::all_of(self.shared.clone(), key.0, uid));
        }
    }
}

impl<B: Snapshots + 'static> Index<TerraformLayer> for Workers<B> {
    fn apply(&self, _: &watching::Key, layer: &TerraformLayer) {
        let concerned = self.shared.follow().layer(layer);
        for key in &concerned {
            self.wake(key);
        }
    }

    fn delete(&self, key: &watching::Key) {
        let concerned = self.shared.follow().without_layer(&own(key));
        if let Some(key) = concerned {
            self.wake(&key);
        }
    }
}

fn own((namespace, name): &watching::Name) -> Key {
    (namespace.to_string(), name.to_string())
}

impl<B: Snapshots + 'static> Workers<B> {
    pub fn new(shared: Arc<Shared<B>>) -> Self {
        Self {
            shared,
            all: Mutex::default(),
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Worker>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches repositories and layers in a namespace, or in all, forever.
    pub async fn watch(self: Arc<Self>, scope: Option<String>) {
        let (client, scope) = (&self.shared.client, scope.as_deref());
        let repositories: Api<DeserializeGuard<TerraformRepository>> = scoped(client, scope);
        let layers: Api<DeserializeGuard<TerraformLayer>> = scoped(client, scope);
        let of_repositories: Indexes<TerraformRepository> = vec![self.clone(), self.filled()];
        let of_layers: Indexes<TerraformLayer> = vec![self.clone(), self.filled()];
        let repositories = follow(
            "repositories",
            repositories,
            Config::default(),
            of_repositories,
        );
        join(
            repositories,
            follow("layers", layers, Config::default(), of_layers),
        )
        .await;
    }

    /// Takes note of a cache that has filled.
    fn filled<K>(&self) -> Arc<dyn Index<K>> {
        let metrics = self.shared.metrics.clone();
        first(move || metrics.readiness.filled())
    }

    /// Wakes a repository's worker; starts one if there is none.
    fn wake(&self, key: &Key) {
        if self.shared.follow().uid(key).is_none() {
            return;
        }
        let mut all = self.all();
        // One that was woken while its repository was deleted has ended.
        if let Some(worker) = all.get(key).filter(|worker| !worker.task.is_finished()) {
            return worker.wake.notify_one();
        }
        let wake = Arc::new(Notify::new());
        let task = tokio::spawn(worker::run(key.clone(), self.shared.clone(), wake.clone()))
            .abort_handle();
        all.insert(key.clone(), Worker { wake, task });
        self.shared.metrics.follows(all.len());
    }

    /// Follows the wanted revisions forever, and wakes the workers of their repositories.
    pub async fn wanted(self: Arc<Self>) {
        loop {
            if let Err(error) = self.hear().await {
                tracing::debug!(
                    error = causes(&error),
                    "the wanted revisions are not available"
                );
            }
            tokio::time::sleep(wanted::PAUSE).await;
        }
    }

    async fn hear(&self) -> Result<(), RequestError> {
        let mut lists = self.shared.syncer.snapshots.wanted().await?;
        while let Some(list) = lists.try_next().await? {
            let due = self.shared.wanted().told(list, self.shared.clock.now());
            for uid in due {
                let key = self.shared.follow().key_of(&uid).cloned();
                if let Some(key) = key {
                    self.wake(&key);
                }
            }
        }
        Ok(())
    }
}
