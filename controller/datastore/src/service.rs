//! The shared state of all requests.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crds::datastore::{ObjectKind, Problem, UNAVAILABLE};
use serving::{
    auth::Authenticator,
    problem::{problem, unavailable},
};

use crate::{
    auth::lookup::Lookup,
    blob::{
        keyring,
        sealed::{INLINE, Sealed},
    },
    cluster::{Cluster, FrontProxyConfig},
    metrics::Metrics,
    names::{self, RunKey},
    objects::{Objects, claim, log::Logs, sources::Snapshots, wanted::Wanted},
    outputs::Publisher,
    state::States,
};

/// Maximum concurrent requests, not counting those that follow a log.
const AT_ONCE: usize = 256;
/// Maximum concurrent requests per pod.
const OF_ONE_POD: usize = 8;
/// Maximum concurrent large uploads: each holds two parts in memory.
const TRANSFERS: usize = 12;
/// Maximum concurrent large downloads: each holds a chunk of some MiB in memory.
const DOWNLOADS: usize = 32;

/// The shared state of all requests.
pub struct Service {
    pub sealed: Sealed,
    pub objects: Objects,
    pub snapshots: Snapshots,
    pub wanted: Wanted,
    pub logs: Arc<Logs>,
    pub states: States,
    pub outputs: Arc<Publisher>,
    pub callers: Authenticator,
    pub lookup: Lookup,
    pub cluster: Arc<dyn Cluster>,
    /// The controller's user name.
    pub controller: String,
    /// The user name of `controller sources`; `None` disables its endpoints.
    pub sources: Option<String>,
    /// Configuration of the API server's front proxy; `None` while the read API is off.
    pub front_proxy: watch::Sender<Option<Arc<FrontProxyConfig>>>,
    pub metrics: Arc<Metrics>,
    /// Why no request is served: the keys do not belong to the store.
    pub unfit: watch::Sender<Option<Problem>>,
    /// Becomes true when the process shuts down.
    pub stopped: watch::Receiver<bool>,
    pub(super) follows: Arc<Semaphore>,
    pub(super) requests: Semaphore,
    transfers: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    pods: Arc<Mutex<HashMap<String, usize>>>,
    ready: tokio::sync::Mutex<Option<(tokio::time::Instant, Result<(), Problem>)>>,
    /// Name of the readiness probe's object: one per process, overwritten each time.
    probe: String,
}

/// A pod's request in progress.
pub struct Admitted {
    pods: Arc<Mutex<HashMap<String, usize>>>,
    uid: String,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = pods.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                pods.remove(&self.uid);
            }
        }
    }
}

impl Service {
    pub fn new(
        sealed: Sealed,
        cluster: Arc<dyn Cluster>,
        controller: String,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        Self {
            objects: Objects::new(sealed.clone()),
            snapshots: Snapshots::new(sealed.clone()),
            wanted: Wanted::default(),
            logs: Arc::new(Logs::new(sealed.clone())),
            states: States::new(sealed.clone()),
            outputs: Arc::new(Publisher::new(sealed.clone(), cluster.clone(), None)),
            callers: Authenticator::new(cluster.clone()),
            lookup: Lookup::new(cluster.clone()),
            cluster,
            controller,
            sources: None,
            front_proxy: watch::Sender::new(None),
            metrics: Arc::new(Metrics::new()),
            unfit: watch::Sender::new(None),
            stopped,
            follows: Arc::new(Semaphore::new(AT_ONCE / 2)),
            requests: Semaphore::new(AT_ONCE),
            transfers: Arc::new(Semaphore::new(TRANSFERS)),
            downloads: Arc::new(Semaphore::new(DOWNLOADS)),
            pods: Arc::default(),
            ready: tokio::sync::Mutex::default(),
            probe: names::random(),
            sealed,
        }
    }

    /// Accepts snapshots of repositories from this user.
    #[must_use]
    pub fn fed_by(mut self, sources: Option<String>) -> Self {
        self.sources = sources;
        self
    }

    /// Publishes outputs, confined by the admission policy of this name.
    #[must_use]
    pub fn publishing(mut self, policy: Option<String>) -> Self {
        self.outputs = Arc::new(Publisher::new(
            self.sealed.clone(),
            self.cluster.clone(),
            policy,
        ));
        self
    }

    /// Admits a request of a pod, unless it has too many in progress.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn admit(&self, uid: &str) -> Result<Admitted, Problem> {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let count = pods.entry(uid.to_owned()).or_default();
        if *count >= OF_ONE_POD {
            return Err(busy());
        }
        *count += 1;
        Ok(Admitted {
            pods: self.pods.clone(),
            uid: uid.to_owned(),
        })
    }

    /// Deletes the objects of a run. Its end stays, for auditors.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn delete_objects(&self, run: &RunKey) -> Result<(), Problem> {
        self.logs.forget(run);
        claim::close(&self.sealed, &self.objects, run).await?;
        self.objects.delete_all(run).await
    }

    /// Waits for a place for a large upload; `None` for a small one.
    ///
    /// # Errors
    /// `Unavailable`, when the service shuts down.
    pub async fn transfer(
        &self,
        kind: ObjectKind,
    ) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        if matches!(kind, ObjectKind::Result) {
            return Ok(None);
        }
        self.transfers
            .clone()
            .acquire_owned()
            .await
            .map(Some)
            .map_err(|error| unavailable("the datastore", &error))
    }

    /// Waits for a place for a large download; `None` for a small one.
    ///
    /// # Errors
    /// `Unavailable`, when the service shuts down.
    pub async fn download(&self, size: u64) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        if size <= INLINE as u64 {
            return Ok(None);
        }
        self.downloads
            .clone()
            .acquire_owned()
            .await
            .map(Some)
            .map_err(|error| unavailable("the datastore", &error))
    }

    /// Whether the keys belong to the store and the store is writable. Caches success for 30 s and failure for 2 s.
    ///
    /// # Errors
    /// Why not.
    pub async fn ready(&self) -> Result<(), Problem> {
        const GOOD: std::time::Duration = std::time::Duration::from_secs(30);
        const BAD: std::time::Duration = std::time::Duration::from_secs(2);
        if let Some(unfit) = self.unfit.borrow().clone() {
            return Err(unfit);
        }
        let mut last = self.ready.lock().await;
        match &*last {
            Some((at, result)) if at.elapsed() < if result.is_ok() { GOOD } else { BAD } => {
                result.clone()
            }
            _ => {
                let name = names::below(&names::top("probes"), &self.probe);
                let written = match self.sealed.overwrite_bytes(&name, b"ready").await {
                    // A key that was added after the start has no mark yet.
                    Ok(()) => keyring::mark(&self.sealed).await,
                    Err(problem) => Err(problem),
                };
                *last = Some((tokio::time::Instant::now(), written.clone()));
                written
            }
        }
    }
}

/// The error when there are too many requests.
pub(super) fn busy() -> Problem {
    problem(UNAVAILABLE, "too many requests at a time; try again")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::tests::Lab;

    #[tokio::test]
    async fn probes_are_answered_while_all_places_are_taken() {
        let lab = Lab::new();
        let _all = lab
            .service
            .requests
            .try_acquire_many(u32::try_from(AT_ONCE).unwrap())
            .unwrap();
        assert_eq!(lab.put("objects/plan", b"x").await.code, 503);
        for path in ["/healthz", "/readyz"] {
            assert_eq!(
                lab.send("GET", path, &[], Body::empty()).await.code,
                200,
                "{path}"
            );
        }
    }
}
