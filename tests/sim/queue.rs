//! A process's work queue, with the rules of the real runtime and one object at a time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use controller::cluster::cached::Store;
use futures::{channel::mpsc::UnboundedReceiver, future::BoxFuture};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use watching::Key;

use crate::world::Process;

/// The cached objects to reconcile.
pub(crate) struct Queue<K> {
    store: Arc<Store<K>>,
    due: Mutex<BTreeMap<Key, Instant>>,
    woken: Notify,
}

impl<K: Serialize + DeserializeOwned> Queue<K> {
    pub(crate) fn new(store: Arc<Store<K>>) -> Arc<Self> {
        Arc::new(Self {
            store,
            due: Mutex::default(),
            woken: Notify::new(),
        })
    }

    /// Schedules a reconcile at `at`, unless one is due earlier.
    fn soon(&self, key: Key, at: Instant) {
        let mut due = self.due.lock().unwrap();
        let first = due.entry(key).or_insert(at);
        *first = (*first).min(at);
        drop(due);
        self.woken.notify_one();
    }

    /// Schedules a reconcile of each object that was woken.
    pub(crate) fn take(&self, woken: &mut UnboundedReceiver<Key>) {
        while let Ok(key) = woken.try_recv() {
            self.soon(key, Instant::now());
        }
    }

    /// Reconciles due objects as long as the process lives.
    pub(crate) async fn work(
        &self,
        process: &Process,
        look: impl Fn(Arc<K>) -> BoxFuture<'static, Option<Duration>>,
    ) {
        loop {
            process.live().await;
            let next = {
                let mut due = self.due.lock().unwrap();
                let first = due
                    .iter()
                    .min_by_key(|(_, at)| **at)
                    .map(|(key, at)| (key.clone(), *at));
                match first {
                    Some((key, at)) if at <= Instant::now() => {
                        due.remove(&key);
                        Ok(self.store.get(&key).map(|object| (key, object)))
                    }
                    Some((_, at)) => Err(Some(at)),
                    None => Err(None),
                }
            };
            match next {
                Ok(None) => {}
                Ok(Some((key, object))) => {
                    if let Some(after) = look(object).await {
                        self.soon(key, Instant::now() + after);
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
