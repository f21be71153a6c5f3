//! A process's cache of one kind, and its work queue, with the rules of the real runtime and one object at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::future::BoxFuture;
use kube::{ResourceExt, runtime::watcher::Event};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::world::Process;

struct Cache<K> {
    objects: BTreeMap<String, Arc<K>>,
    hashes: BTreeMap<String, u64>,
    due: BTreeMap<String, Instant>,
    /// Names in the current listing so far.
    listed: BTreeSet<String>,
}

/// Objects by name.
pub(crate) struct Queue<K> {
    cache: Mutex<Cache<K>>,
    woken: Notify,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        let cache = Cache { objects: BTreeMap::new(), hashes: BTreeMap::new(), due: BTreeMap::new(), listed: BTreeSet::new() };
        Self { cache: Mutex::new(cache), woken: Notify::new() }
    }
}

impl<K> Queue<K> {
    fn lock(&self) -> MutexGuard<'_, Cache<K>> {
        self.cache.lock().unwrap()
    }

    /// Schedules a reconcile at `at`, unless one is due earlier.
    pub(crate) fn soon(&self, name: &str, at: Instant) {
        let mut cache = self.lock();
        let due = cache.due.entry(name.to_owned()).or_insert(at);
        *due = (*due).min(at);
        drop(cache);
        self.woken.notify_one();
    }

    /// Applies an event to the cache, like the real runtime. Schedules a reconcile if the object's hash changed.
    pub(crate) fn take(&self, event: Event<K>, hash: impl Fn(&K) -> u64)
    where
        K: ResourceExt,
    {
        let mut cache = self.lock();
        match event {
            Event::Apply(object) | Event::InitApply(object) => {
                let (name, hash) = (object.name_any(), hash(&object));
                let is_new = cache.hashes.insert(name.clone(), hash) != Some(hash);
                cache.listed.insert(name.clone());
                cache.objects.insert(name.clone(), Arc::new(object));
                drop(cache);
                if is_new {
                    self.soon(&name, Instant::now());
                }
            }
            Event::Delete(object) => {
                cache.objects.remove(&object.name_any());
                cache.hashes.remove(&object.name_any());
            }
            Event::Init => cache.listed.clear(),
            Event::InitDone => {
                let listed = std::mem::take(&mut cache.listed);
                cache.objects.retain(|name, _| listed.contains(name));
                cache.hashes.retain(|name, _| listed.contains(name));
            }
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<K>> {
        self.lock().objects.get(name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.lock().objects.values().cloned().collect()
    }

    /// Reconciles due objects as long as the process lives.
    pub(crate) async fn work(&self, process: &Process, look: impl Fn(Arc<K>) -> BoxFuture<'static, Option<Duration>>) {
        loop {
            process.live().await;
            let next = {
                let mut cache = self.lock();
                let first = cache.due.iter().min_by_key(|(_, at)| **at).map(|(name, at)| (name.clone(), *at));
                match first {
                    Some((name, at)) if at <= Instant::now() => {
                        cache.due.remove(&name);
                        Ok(cache.objects.get(&name).cloned().map(|object| (name, object)))
                    }
                    Some((_, at)) => Err(Some(at)),
                    None => Err(None),
                }
            };
            match next {
                Ok(None) => {}
                Ok(Some((name, object))) => {
                    if let Some(after) = look(object).await {
                        self.soon(&name, Instant::now() + after);
                    }
                }
                Err(at) => tokio::select! {
                    biased;
                    () = self.woken.notified() => {}
                    () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {}
                },
            }
        }
    }
}
