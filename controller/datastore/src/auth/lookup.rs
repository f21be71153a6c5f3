//! Reads runs live; for appends to logs a cached read of at most one second is enough.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crds::datastore::Problem;
use serving::problem::{not_found, unavailable};

use crate::cluster::{Cluster, RunView};

/// Maximum age of a cached run.
const FRESH: Duration = Duration::from_secs(1);
/// Maximum number of cached runs.
const KEPT: usize = 1024;

/// UIDs of namespaces by the UID of a run. A run stays in one namespace.
type Homes = HashMap<String, Arc<str>>;
/// Runs by namespace and name, with the time of the read.
type Seen = HashMap<(String, String), (Instant, Arc<RunView>)>;

pub struct Lookup {
    cluster: Arc<dyn Cluster>,
    seen: Mutex<Seen>,
    homes: Mutex<Homes>,
}

impl Lookup {
    pub fn new(cluster: Arc<dyn Cluster>) -> Self {
        Self {
            cluster,
            seen: Mutex::default(),
            homes: Mutex::default(),
        }
    }

    /// Reads a run live; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn find(&self, namespace: &str, name: &str) -> Result<Option<Arc<RunView>>, Problem> {
        let begun = Instant::now();
        let found = self
            .cluster
            .run(namespace, name)
            .await
            .map_err(|error| unavailable("the API server", &error))?;
        let found = found.map(Arc::new);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace.to_owned(), name.to_owned());
        match &found {
            Some(run) => {
                if seen.len() >= KEPT {
                    seen.retain(|_, (at, _)| at.elapsed() < FRESH);
                }
                if seen.len() < KEPT {
                    seen.insert(key, (begun, run.clone()));
                }
            }
            None => drop(seen.remove(&key)),
        }
        Ok(found)
    }

    /// Reads a run, live.
    ///
    /// # Errors
    /// `Unavailable`, `NotFound`.
    pub async fn live(&self, namespace: &str, name: &str) -> Result<Arc<RunView>, Problem> {
        let found = self.find(namespace, name).await?;
        found.ok_or_else(|| not_found(format!("there is no run {name} in namespace {namespace}")))
    }

    /// The UID of the namespace of a run that was just read.
    ///
    /// # Errors
    /// `Unavailable`, `NotFound`.
    pub async fn namespace(&self, run: &RunView) -> Result<Arc<str>, Problem> {
        if let Some(known) = self
            .homes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&run.uid)
        {
            return Ok(known.clone());
        }
        let uid: Arc<str> = self.namespace_uid(&run.namespace).await?.into();
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        if homes.len() >= KEPT {
            homes.clear();
        }
        homes.insert(run.uid.clone(), uid.clone());
        Ok(uid)
    }

    /// The UID of a namespace, read live.
    ///
    /// # Errors
    /// `Unavailable`, `NotFound`.
    pub async fn namespace_uid(&self, name: &str) -> Result<String, Problem> {
        let found = self
            .cluster
            .namespace(name)
            .await
            .map_err(|error| unavailable("the API server", &error))?;
        found.ok_or_else(|| not_found(format!("there is no namespace {name}")))
    }

    /// A run, at most one second old.
    ///
    /// # Errors
    /// `Unavailable`, `NotFound`.
    pub async fn recent(&self, namespace: &str, name: &str) -> Result<Arc<RunView>, Problem> {
        let key = (namespace.to_owned(), name.to_owned());
        let known = {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.get(&key)
                .filter(|(at, _)| at.elapsed() < FRESH)
                .map(|(_, run)| run.clone())
        };
        match known {
            Some(run) => Ok(run),
            None => self.live(namespace, name).await,
        }
    }
}
