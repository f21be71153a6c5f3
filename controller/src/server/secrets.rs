//! The Secrets that repositories name, read by their names and known for a moment. None is ever listed or watched.

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

/// How long an answer is good for: whoever sends without end causes a read in so many seconds, and a secret that was changed counts after
/// that.
const KNOWN: Duration = Duration::from_secs(10);
/// The same when there was no answer.
const UNKNOWN: Duration = Duration::from_secs(1);

type Name = (String, String);

/// What the API server said.
struct Read {
    at: Instant,
    keys: Result<Arc<Keys>, Refusal>,
}

impl Read {
    fn is_good(&self) -> bool {
        let lasts = if matches!(self.keys, Err(Refusal::Unavailable)) { UNKNOWN } else { KNOWN };
        self.at.elapsed() < lasts
    }
}

/// One reads at a time; others wait for what it finds.
type Entry = Arc<tokio::sync::Mutex<Option<Read>>>;

/// Secrets by namespace and name.
pub struct Secrets {
    client: Client,
    known: Mutex<BTreeMap<Name, Entry>>,
}

impl Secrets {
    pub fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// What deliveries are proven with, by one Secret.
    ///
    /// # Errors
    /// `NoSecret` when there is none, it is empty, or this account may not read it; `Unavailable` when nobody knows.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Arc<Keys>, Refusal> {
        let entry = self.entry(namespace, name);
        let mut known = entry.lock().await;
        match &*known {
            Some(read) if read.is_good() => read.keys.clone(),
            _ => {
                let keys = self.read(namespace, name).await;
                *known = Some(Read { at: Instant::now(), keys: keys.clone() });
                keys
            }
        }
    }

    fn entry(&self, namespace: &str, name: &str) -> Entry {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // What is not good any more is not kept, but where somebody reads it.
        known.retain(|_, entry| entry.try_lock().map_or(true, |read| read.as_ref().is_some_and(Read::is_good)));
        known.entry((namespace.to_owned(), name.to_owned())).or_default().clone()
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Arc<Keys>, Refusal> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = error::call_opt("read a webhook's Secret", api.get(name)).await;
        match secret {
            Ok(secret) => {
                let keys = secret.and_then(|secret| secret.data).and_then(|entries| Keys::of(&entries));
                keys.map(Arc::new).ok_or(Refusal::NoSecret)
            }
            Err(error) => {
                tracing::warn!(%error, namespace, name, "the Secret of a webhook cannot be read; no delivery is taken");
                Err(if error.kind() == ErrorKind::Forbidden { Refusal::NoSecret } else { Refusal::Unavailable })
            }
        }
    }
}
