//! Watches repositories and layers, and wakes the workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crds::{TerraformLayer, TerraformRepository, datastore::causes};
use datastore_client::RequestError;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Resource,
    core::DeserializeGuard,
    runtime::{WatchStreamExt as _, watcher, watcher::Event},
};
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, task::AbortHandle};

use crate::{
    follow::{Key, Kind},
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
    uid: String,
    wake: Arc<Notify>,
    task: AbortHandle,
}

impl<B: Snapshots + 'static> Workers<B> {
    pub fn new(shared: Arc<Shared<B>>) -> Self {
        Self { shared, all: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Worker>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a repository's worker; starts one if there is none.
    fn wake(&self, key: &Key) {
        let Some(uid) = self.shared.follow().uid(key) else { return };
        let mut all = self.all();
        if let Some(worker) = all.get(key) {
            if worker.uid == uid {
                return worker.wake.notify_one();
            }
            // The repository was recreated: drop its predecessor's worker and memory.
            worker.task.abort();
        }
        let wake = Arc::new(Notify::new());
        let task = tokio::spawn(worker::run(key.clone(), self.shared.clone(), wake.clone())).abort_handle();
        all.insert(key.clone(), Worker { uid, wake, task });
        self.shared.metrics.follows(all.len());
    }

    /// Stops a deleted repository's worker and deletes its data.
    fn gone(&self, key: &Key) {
        let uid = self.shared.follow().without_repository(key);
        let mut all = self.all();
        if let Some(worker) = all.remove(key) {
            worker.task.abort();
        }
        self.shared.metrics.follows(all.len());
        if let Some(uid) = uid {
            tokio::spawn(gc::all_of(self.shared.clone(), key.0.clone(), uid));
        }
    }

    /// Watches repositories in a namespace, or in all, forever.
    pub async fn repositories(self: Arc<Self>, scope: Option<String>) {
        let seen = |event: Seen<TerraformRepository>| match event {
            Seen::One(repository) => {
                let key = key(&repository);
                if self.shared.follow().repository(repository) {
                    self.wake(&key);
                }
            }
            Seen::Gone(key) => self.gone(&key),
        };
        self.watch(Kind::Repository, scope, seen).await;
    }

    /// Watches layers in a namespace, or in all, forever.
    pub async fn layers(self: Arc<Self>, scope: Option<String>) {
        let seen = |event: Seen<TerraformLayer>| match event {
            Seen::One(layer) => {
                let concerned = self.shared.follow().layer(&layer);
                for key in &concerned {
                    self.wake(key);
                }
            }
            Seen::Gone(key) => {
                let concerned = self.shared.follow().without_layer(&key);
                if let Some(key) = concerned {
                    self.wake(&key);
                }
            }
        };
        self.watch(Kind::Layer, scope, seen).await;
    }

    /// Follows the wanted revisions forever, and wakes the workers of their repositories.
    pub async fn wanted(self: Arc<Self>) {
        loop {
            if let Err(error) = self.hear().await {
                tracing::debug!(error = causes(&error), "the wanted revisions are not available");
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

    async fn watch<K>(&self, kind: Kind, scope: Option<String>, mut seen: impl FnMut(Seen<K>))
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let client = self.shared.client.clone();
        let api: Api<DeserializeGuard<K>> = match &scope {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let mut events = watcher(api, watcher::Config::default()).backoff(backoff()).boxed();
        let (mut listed, mut first) = (BTreeSet::new(), true);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(guard)) => {
                    listed.insert(key(&guard));
                    if let Some(object) = understood(guard) {
                        seen(Seen::One(object));
                    }
                }
                Ok(Event::Apply(guard)) => {
                    if let Some(object) = understood(guard) {
                        seen(Seen::One(object));
                    }
                }
                Ok(Event::Delete(guard)) => seen(Seen::Gone(key(&guard))),
                Ok(Event::InitDone) => {
                    let gone = self.shared.follow().others(kind, scope.as_deref(), &listed);
                    for key in gone {
                        seen(Seen::Gone(key));
                    }
                    listed.clear();
                    if std::mem::take(&mut first) {
                        self.shared.metrics.readiness.filled();
                    }
                }
                Err(error) => tracing::warn!(what = K::plural(&()).as_ref(), %error, "a watch failed; it restarts"),
            }
        }
    }
}

enum Seen<K> {
    One(K),
    Gone(Key),
}

fn key(object: &impl kube::ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The parsed object; `None` for an object of a newer version that cannot be parsed.
fn understood<K>(guard: DeserializeGuard<K>) -> Option<K>
where
    K: Resource<DynamicType = ()>,
{
    guard
        .0
        .inspect_err(|error| tracing::error!(kind = K::kind(&()).as_ref(), name = error.metadata.name, %error, "not understood"))
        .ok()
}

/// Backoff of a failing watch: a process that starts before its rights are granted must not wait for a minute.
fn backoff() -> watcher::ExponentialBackoff {
    backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(Duration::from_secs(5))
        .without_max_times()
        .with_jitter()
        .into()
}
