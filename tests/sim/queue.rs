//! What a process has seen of a kind, and what of it is due: the queue of the real runtime, one object at a time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::future::BoxFuture;
use kube::runtime::controller::Action;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::world::Process;

struct Cache<K> {
    objects: BTreeMap<String, Arc<K>>,
    hashes: BTreeMap<String, u64>,
    due: BTreeMap<String, Instant>,
}

/// Objects by name.
pub(crate) struct Queue<K> {
    cache: Mutex<Cache<K>>,
    woken: Notify,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        let cache = Cache { objects: BTreeMap::new(), hashes: BTreeMap::new(), due: BTreeMap::new() };
        Self { cache: Mutex::new(cache), woken: Notify::new() }
    }
}

impl<K> Queue<K> {
    fn lock(&self) -> MutexGuard<'_, Cache<K>> {
        self.cache.lock().unwrap()
    }

    /// It is looked at, now or soon.
    pub(crate) fn soon(&self, name: &str, at: Instant) {
        let mut cache = self.lock();
        let due = cache.due.entry(name.to_owned()).or_insert(at);
        *due = (*due).min(at);
        drop(cache);
        self.woken.notify_one();
    }

    /// All are looked at now.
    pub(crate) fn all_soon(&self) {
        let names: Vec<String> = self.lock().objects.keys().cloned().collect();
        for name in &names {
            self.soon(name, Instant::now());
        }
    }

    /// Takes what was seen; it is looked at when the hash is another.
    pub(crate) fn put(&self, name: &str, hash: u64, object: K) {
        let mut cache = self.lock();
        let is_new = cache.hashes.insert(name.to_owned(), hash) != Some(hash);
        cache.objects.insert(name.to_owned(), Arc::new(object));
        drop(cache);
        if is_new {
            self.soon(name, Instant::now());
        }
    }

    /// It is gone.
    pub(crate) fn remove(&self, name: &str) {
        let mut cache = self.lock();
        cache.objects.remove(name);
        cache.hashes.remove(name);
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<K>> {
        self.lock().objects.get(name).cloned()
    }

    /// Looks at what is due, as long as the process lives.
    pub(crate) async fn work(&self, process: &Process, look: impl Fn(Arc<K>) -> BoxFuture<'static, Action>) {
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
                    if let Some(after) = requeue(&look(object).await) {
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

/// When an action wants another look. Its field is private, its word for it is not.
fn requeue(action: &Action) -> Option<Duration> {
    (*action != Action::await_change()).then(|| parse(&format!("{action:?}"))).flatten()
}

/// `Action { requeue_after: Some(1.5s) }`.
fn parse(text: &str) -> Option<Duration> {
    let inner = text.split("Some(").nth(1)?.split(')').next()?;
    let span = [("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)]
        .into_iter()
        .find_map(|(unit, factor)| Some(inner.strip_suffix(unit)?.parse::<f64>().ok()? * factor));
    span.map(Duration::from_secs_f64)
}
