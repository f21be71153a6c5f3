//! Reads the Secrets that repositories reference with `get` and caches each for 10 s. Never lists or watches Secrets.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::time::Instant;

use super::{keys::Keys, refusal::Refusal};
use crate::error::{self, ErrorKind};

/// Cache time of a result: bounds the reads caused by a flood of deliveries, and the delay of a changed secret.
const KNOWN: Duration = Duration::from_secs(10);
/// Cache time of a failed read.
const UNKNOWN: Duration = Duration::from_secs(1);

type Name = (String, String);

/// The result of a read.
struct Read {
    at: Instant,
    keys: Result<Arc<Keys>, Refusal>,
}

impl Read {
    fn is_good(&self) -> bool {
        let lasts = if matches!(self.keys, Err(Refusal::Unavailable)) {
            UNKNOWN
        } else {
            KNOWN
        };
        self.at.elapsed() < lasts
    }
}

/// Serializes reads of one Secret; concurrent callers share the result.
type Entry = Arc<tokio::sync::Mutex<Option<Read>>>;

/// Cached Secrets by namespace and name.
pub struct Secrets {
    client: Client,
    known: Mutex<BTreeMap<Name, Entry>>,
}

impl Secrets {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            known: Mutex::default(),
        }
    }

    /// The keys in a Secret.
    ///
    /// # Errors
    /// `NoSecret` when it is missing, empty, or not readable for this account; `Unavailable` when the read failed.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Arc<Keys>, Refusal> {
        let entry = self.entry(namespace, name);
        let mut known = entry.lock().await;
        match &*known {
            Some(read) if read.is_good() => read.keys.clone(),
            _ => {
                let keys = self.read(namespace, name).await;
                *known = Some(Read {
                    at: Instant::now(),
                    keys: keys.clone(),
                });
                keys
            }
        }
    }

    fn entry(&self, namespace: &str, name: &str) -> Entry {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops expired entries, except those that are being read.
        known.retain(|_, entry| {
            entry
                .try_lock()
                .map_or(true, |read| read.as_ref().is_some_and(Read::is_good))
        });
        known
            .entry((namespace.to_owned(), name.to_owned()))
            .or_default()
            .clone()
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Arc<Keys>, Refusal> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = error::call_opt("read a webhook's Secret", api.get(name)).await;
        match secret {
            Ok(secret) => {
                let keys = secret
                    .and_then(|secret| secret.data)
                    .and_then(|entries| Keys::of(&entries));
                keys.map(Arc::new).ok_or(Refusal::NoSecret)
            }
            Err(error) => {
                tracing::warn!(%error, namespace, name, "the Secret of a webhook cannot be read; deliveries are rejected");
                Err(if error.kind() == ErrorKind::Forbidden {
                    Refusal::NoSecret
                } else {
                    Refusal::Unavailable
                })
            }
        }
    }
}
