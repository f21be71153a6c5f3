//! A fake API server for tests of this crate, and of others that enable the feature `testing`.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "only tests call it"
)]

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use sha2::{Digest as _, Sha256};

use crds::{
    Adopted, Claim, Operation, TerraformRepository,
    datastore::{Problem, StateId, hex_digest},
    names::attempt_name,
};
use serving::{
    auth::{Identity, PodIdentity, Reviewer},
    call::{CallError, Reply},
};

use crate::{
    blob::{sealed::Sealed, store::Store},
    cluster::{
        Cluster, Entries, FrontProxyConfig, RunView,
        publish::{Owner, Published},
    },
    crypt::keys::Keys,
    settings::SecretName,
};

/// The nonce of every pod's process.
pub const NONCE: &str = "000102030405060708090a0b0c0d0e0f";

/// The run `team/net` with this attempt, which its pod `pod-N` has adopted.
pub fn view(attempt: u32, open: bool) -> RunView {
    let uid = "0b9c1a4e-1f7e-4c07-9d43-2a1f35e3b8aa".to_owned();
    RunView {
        namespace: "team".into(),
        name: "net".into(),
        attempt: Some((attempt, Some(format!("pod-{attempt}")), open)),
        adopted: Some(Adopted {
            attempt,
            pod_uid: format!("pod-{attempt}"),
            nonce: NONCE.into(),
            node_name: None,
            version: None,
        }),
        claim: None,
        operation: Operation::Apply,
        terminal: false,
        state: StateId {
            stack: "net".into(),
            workspace: "default".into(),
        },
        recovers: None,
        outputs: None,
        takes: Vec::new(),
        source: None,
        released: None,
        audit: Box::default(),
        uid,
    }
}

/// The claim of an attempt by its pod.
pub fn claim(attempt: u32) -> Claim {
    Claim {
        checksum: format!("sha256:{}", "0".repeat(64)),
        attempt,
        pod_uid: format!("pod-{attempt}"),
        nonce: NONCE.into(),
        at: Time(Timestamp::from_second(1_800_000_000).unwrap()),
    }
}

/// The pod of an attempt.
pub fn pod(run: &RunView, attempt: u32) -> PodIdentity {
    let name = attempt_name(&run.name, &run.uid, attempt);
    PodIdentity {
        namespace: run.namespace.clone(),
        name,
        uid: format!("pod-{attempt}"),
    }
}

/// Writes a key and makes it the active one.
pub fn write_key(directory: &Path, id: &str, byte: u8) {
    std::fs::write(directory.join(id), BASE64_STANDARD.encode([byte; 32])).unwrap();
    std::fs::write(directory.join("active"), id).unwrap();
}

/// The store in a folder, with the keys of a directory.
pub fn open(folder: &Path, keys: &Path) -> Sealed {
    let store = Store::open(&format!("file://{}", folder.display()), &HashMap::new()).unwrap();
    Sealed::new(store, Arc::new(Keys::open(keys).unwrap()))
}

/// Pseudo-random bytes.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

pub fn digest(bytes: &[u8]) -> String {
    hex_digest(&Sha256::digest(bytes))
}

/// Collects a stream into memory.
///
/// # Errors
/// Those of the stream.
pub async fn collect(
    stream: impl Stream<Item = Result<Bytes, Problem>>,
) -> Result<Vec<u8>, Problem> {
    Ok(stream.try_collect::<Vec<_>>().await?.concat())
}

/// The UID of each namespace, until a test recreates it.
pub const NAMESPACE_UID: &str = "55555555-5555";

/// Objects with outputs by namespace, kind and name: their owner and data.
type Objects = BTreeMap<(String, String, String), (String, BTreeMap<String, String>)>;

/// A run that other threads change.
type Live = Box<dyn Fn() -> RunView + Send>;

/// An API server that answers from these fields.
#[derive(Default)]
pub struct FakeCluster {
    tokens: Mutex<HashMap<String, Identity>>,
    runs: Mutex<HashMap<(String, String), RunView>>,
    /// When set, all reads of runs use this.
    pub live: Mutex<Option<Live>>,
    /// UIDs of recreated namespaces.
    pub namespaces: Mutex<HashMap<String, String>>,
    /// Repositories by namespace and name.
    pub repositories: Mutex<BTreeMap<(String, String), TerraformRepository>>,
    pub secrets: Mutex<HashMap<String, Entries>>,
    /// A stale answer to the next read of a Secret, used once.
    pub before: Mutex<HashMap<String, Entries>>,
    /// Published objects.
    pub objects: Mutex<Objects>,
    /// Admits every object, as if the admission policy were missing.
    pub unguarded: AtomicBool,
    /// Times out every call.
    pub down: AtomicBool,
    /// The reviewed tokens.
    pub reviewed: Mutex<Vec<String>>,
    /// Number of reads of runs.
    pub reads: AtomicUsize,
    /// Number of lists.
    pub lists: AtomicUsize,
}

/// A refusal of the policy on objects with outputs.
fn denied(why: &str) -> CallError {
    let message = format!(
        "ValidatingAdmissionPolicy 'pawl-outputs' with binding 'pawl-outputs' denied request: {why}"
    );
    let status = kube::core::Status {
        code: 403,
        message,
        ..kube::core::Status::default()
    };
    CallError::Refused {
        what: "test",
        status: Box::new(status),
    }
}

impl FakeCluster {
    fn answer<T>(&self, value: T) -> Result<T, CallError> {
        if self.down.load(Ordering::Relaxed) {
            Err(CallError::Timeout { what: "test" })
        } else {
            Ok(value)
        }
    }

    /// Creates or changes a run.
    pub fn set(&self, run: RunView) {
        self.runs
            .lock()
            .unwrap()
            .insert((run.namespace.clone(), run.name.clone()), run);
    }

    /// Deletes a run.
    pub fn remove(&self, run: &RunView) {
        self.runs
            .lock()
            .unwrap()
            .remove(&(run.namespace.clone(), run.name.clone()));
    }

    /// Makes a token valid.
    pub fn token(&self, token: &str, identity: Identity) {
        self.tokens.lock().unwrap().insert(token.into(), identity);
    }

    /// Makes a token invalid.
    pub fn expire(&self, token: &str) {
        self.tokens.lock().unwrap().remove(token);
    }
}

impl Reviewer for FakeCluster {
    fn review<'a>(&'a self, token: &'a str) -> Reply<'a, Option<Identity>> {
        self.reviewed.lock().unwrap().push(token.into());
        let known = self.tokens.lock().unwrap().get(token).cloned();
        Box::pin(async move { self.answer(known) })
    }
}

impl Cluster for FakeCluster {
    fn run<'a>(&'a self, namespace: &'a str, name: &'a str) -> Reply<'a, Option<RunView>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let live = self.live.lock().unwrap().as_ref().map(|run| run());
        let run = live.or_else(|| {
            self.runs
                .lock()
                .unwrap()
                .get(&(namespace.to_owned(), name.to_owned()))
                .cloned()
        });
        Box::pin(async move { self.answer(run) })
    }

    fn uids<'a>(&'a self, namespace: &'a str) -> Reply<'a, HashSet<String>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let runs = self.runs.lock().unwrap();
        let uids = runs
            .values()
            .filter(|run| run.namespace == namespace)
            .map(|run| run.uid.clone())
            .collect();
        Box::pin(async move { self.answer(uids) })
    }

    fn repository<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Reply<'a, Option<TerraformRepository>> {
        let found = self
            .repositories
            .lock()
            .unwrap()
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned();
        Box::pin(async move { self.answer(found) })
    }

    fn repositories<'a>(&'a self, namespace: &'a str) -> Reply<'a, HashSet<String>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let repositories = self.repositories.lock().unwrap();
        let of = repositories.iter().filter(|((of, _), _)| of == namespace);
        let uids = of
            .filter_map(|(_, repository)| repository.metadata.uid.clone())
            .collect();
        Box::pin(async move { self.answer(uids) })
    }

    fn front_proxy(&self) -> BoxStream<'static, Option<FrontProxyConfig>> {
        futures::stream::pending().boxed()
    }

    fn namespace<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        let uid = self
            .namespaces
            .lock()
            .unwrap()
            .get(name)
            .cloned()
            .unwrap_or_else(|| NAMESPACE_UID.into());
        Box::pin(async move { self.answer(Some(uid)) })
    }

    fn secret<'a>(&'a self, name: &'a SecretName) -> Reply<'a, Option<Entries>> {
        let before = self.before.lock().unwrap().remove(&name.name);
        let found = before.or_else(|| self.secrets.lock().unwrap().get(&name.name).cloned());
        Box::pin(async move {
            // Lets other readers run before this write.
            tokio::task::yield_now().await;
            self.answer(found)
        })
    }

    fn probe<'a>(&'a self, _: &'a str) -> Reply<'a, ()> {
        let answer = if self.unguarded.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err(denied("a probe"))
        };
        Box::pin(async move {
            self.answer(())?;
            answer
        })
    }

    fn publish<'a>(&'a self, owner: Owner<'a>, object: &'a Published) -> Reply<'a, String> {
        let mut objects = self.objects.lock().unwrap();
        let key = (
            owner.namespace.to_owned(),
            object.kind.as_str().to_owned(),
            object.name.clone(),
        );
        let answer = match objects.get(&key) {
            // Like the policy: rejects objects of others.
            Some((of, _)) if of != owner.of => Err(denied("no object with outputs of this stack")),
            _ => self.answer("object-1".to_owned()),
        };
        if answer.is_ok() {
            objects.insert(key, (owner.of.to_owned(), object.data.clone()));
        }
        Box::pin(async move { answer })
    }

    fn withdraw<'a>(&'a self, namespace: &'a str, object: &'a Published) -> Reply<'a, ()> {
        let answer = self.answer(());
        if answer.is_ok() {
            let key = (
                namespace.to_owned(),
                object.kind.as_str().to_owned(),
                object.name.clone(),
            );
            self.objects.lock().unwrap().remove(&key);
        }
        Box::pin(async move { answer })
    }

    fn fill<'a>(
        &'a self,
        name: &'a SecretName,
        read: &'a Entries,
        data: &'a BTreeMap<String, Vec<u8>>,
    ) -> Reply<'a, bool> {
        Box::pin(async move {
            let mut secrets = self.secrets.lock().unwrap();
            let there = secrets.get_mut(&name.name).unwrap();
            if there.version != read.version {
                return self.answer(false);
            }
            there.data.extend(data.clone());
            there.version.push('+');
            self.answer(true)
        })
    }
}
