//! The whole service in this process, on a folder, with an API server that is played.

mod access;
mod damage;
mod journals;
mod keyring;
mod kill;
mod logs;
mod memory;
mod objects;
mod outputs;
mod reading;
mod retention;
mod sources;
mod states;
mod wire;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::{
    body::Body,
    http::{HeaderMap, Request},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::{StreamExt as _, future::BoxFuture, stream::BoxStream};
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::sync::watch;
use tower::ServiceExt as _;

use crds::{
    TerraformRepository,
    datastore::{HEADER_DIGEST, HEADER_NONCE, Problem, attempt_path, hex_digest},
};

use crate::{
    auth::caller::tests::{NONCE, claim, pod, view},
    blob::{sealed::Sealed, store::Store},
    cluster::{
        CallError, Cluster, Entries, FrontProxyConfig, Identity, RunView,
        publish::{Owner, Published},
    },
    crypt::keys::Keys,
    service::{CommonName, Service},
    settings::SecretName,
};

/// The UID of the namespace `team`, until a test makes it again.
pub(super) const NAMESPACE_UID: &str = "55555555-5555";

pub(super) const CONTROLLER: &str = "system:serviceaccount:pawl:pawl-controller";

pub(super) const SOURCES: &str = "system:serviceaccount:pawl:pawl-sources";

/// Objects with outputs by namespace, kind and name: whose they are, and their data.
type Objects = BTreeMap<(String, String, String), (String, BTreeMap<String, String>)>;

/// An API server that says what it was told to say.
#[derive(Default)]
pub(super) struct FakeCluster {
    tokens: Mutex<HashMap<String, Identity>>,
    runs: Mutex<HashMap<(String, String), RunView>>,
    /// UIDs of namespaces that are not [`NAMESPACE_UID`].
    pub(super) namespaces: Mutex<HashMap<String, String>>,
    /// Repositories by namespace and name.
    pub(super) repositories: Mutex<BTreeMap<(String, String), TerraformRepository>>,
    pub(super) secrets: Mutex<HashMap<String, Entries>>,
    /// What the next reading of a Secret still finds.
    pub(super) before: Mutex<HashMap<String, Entries>>,
    /// What was published.
    pub(super) objects: Mutex<Objects>,
    /// The policy on them is not there.
    pub(super) unguarded: AtomicBool,
    pub(super) down: AtomicBool,
    pub(super) reviews: AtomicUsize,
    pub(super) reads: AtomicUsize,
    /// How often all of something were asked for.
    pub(super) lists: AtomicUsize,
}

/// A refusal of the policy on objects with outputs.
fn denied(why: &str) -> CallError {
    let message = format!("ValidatingAdmissionPolicy 'pawl-outputs' with binding 'pawl-outputs' denied request: {why}");
    let status = kube::core::Status { code: 403, message, ..kube::core::Status::default() };
    CallError::Refused { what: "test", status: Box::new(status) }
}

impl FakeCluster {
    fn answer<T>(&self, value: T) -> Result<T, CallError> {
        if self.down.load(Ordering::Relaxed) { Err(CallError::Timeout { what: "test" }) } else { Ok(value) }
    }

    pub(super) fn set(&self, run: RunView) {
        self.runs.lock().unwrap().insert((run.namespace.clone(), run.name.clone()), run);
    }

    pub(super) fn remove(&self, run: &RunView) {
        self.runs.lock().unwrap().remove(&(run.namespace.clone(), run.name.clone()));
    }

    pub(super) fn token(&self, token: &str, identity: Identity) {
        self.tokens.lock().unwrap().insert(token.into(), identity);
    }
}

impl Cluster for FakeCluster {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Identity>, CallError>> {
        self.reviews.fetch_add(1, Ordering::Relaxed);
        let known = self.tokens.lock().unwrap().get(token).cloned();
        Box::pin(async move { self.answer(known) })
    }

    fn run<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<RunView>, CallError>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let run = self.runs.lock().unwrap().get(&(namespace.to_owned(), name.to_owned())).cloned();
        Box::pin(async move { self.answer(run) })
    }

    fn uids<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<HashSet<String>, CallError>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let runs = self.runs.lock().unwrap();
        let uids = runs.values().filter(|run| run.namespace == namespace).map(|run| run.uid.clone()).collect();
        Box::pin(async move { self.answer(uids) })
    }

    fn repository<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<TerraformRepository>, CallError>> {
        let found = self.repositories.lock().unwrap().get(&(namespace.to_owned(), name.to_owned())).cloned();
        Box::pin(async move { self.answer(found) })
    }

    fn repositories<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<HashSet<String>, CallError>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let repositories = self.repositories.lock().unwrap();
        let of = repositories.iter().filter(|((of, _), _)| of == namespace);
        let uids = of.filter_map(|(_, repository)| repository.metadata.uid.clone()).collect();
        Box::pin(async move { self.answer(uids) })
    }

    fn front_proxy(&self) -> BoxStream<'static, Option<FrontProxyConfig>> {
        futures::stream::pending().boxed()
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<String>, CallError>> {
        let uid = self.namespaces.lock().unwrap().get(name).cloned().unwrap_or_else(|| NAMESPACE_UID.into());
        Box::pin(async move { self.answer(Some(uid)) })
    }

    fn secret<'a>(&'a self, name: &'a SecretName) -> BoxFuture<'a, Result<Option<Entries>, CallError>> {
        let before = self.before.lock().unwrap().remove(&name.name);
        let found = before.or_else(|| self.secrets.lock().unwrap().get(&name.name).cloned());
        Box::pin(async move {
            // Others read as well before this one writes.
            tokio::task::yield_now().await;
            self.answer(found)
        })
    }

    fn probe<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), CallError>> {
        let answer = if self.unguarded.load(Ordering::Relaxed) { Ok(()) } else { Err(denied("a probe")) };
        Box::pin(async move {
            self.answer(())?;
            answer
        })
    }

    fn publish<'a>(&'a self, owner: Owner<'a>, object: &'a Published) -> BoxFuture<'a, Result<String, CallError>> {
        let mut objects = self.objects.lock().unwrap();
        let key = (owner.namespace.to_owned(), object.kind.as_str().to_owned(), object.name.clone());
        let answer = match objects.get(&key) {
            // As the policy has it: another's, or none of ours.
            Some((of, _)) if of != owner.of => Err(denied("no object with outputs of this stack")),
            _ => self.answer("object-1".to_owned()),
        };
        if answer.is_ok() {
            objects.insert(key, (owner.of.to_owned(), object.data.clone()));
        }
        Box::pin(async move { answer })
    }

    fn withdraw<'a>(&'a self, namespace: &'a str, object: &'a Published) -> BoxFuture<'a, Result<(), CallError>> {
        let answer = self.answer(());
        if answer.is_ok() {
            let key = (namespace.to_owned(), object.kind.as_str().to_owned(), object.name.clone());
            self.objects.lock().unwrap().remove(&key);
        }
        Box::pin(async move { answer })
    }

    fn fill<'a>(
        &'a self,
        name: &'a SecretName,
        read: &'a Entries,
        data: &'a BTreeMap<String, Vec<u8>>,
    ) -> BoxFuture<'a, Result<bool, CallError>> {
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

/// A service with its folder and keys. Tokens `pod-1`, `pod-2`, … are of the pods of the run `team/net`, `controller` is the
/// controller's; the run's attempt 1 is open.
pub(super) struct Lab {
    pub(super) folder: TempDir,
    pub(super) keys: TempDir,
    pub(super) cluster: Arc<FakeCluster>,
    pub(super) service: Arc<Service>,
    /// Held, so that the service is not told to stop.
    stop: watch::Sender<bool>,
}

pub(super) fn write_key(directory: &Path, id: &str, byte: u8) {
    std::fs::write(directory.join(id), BASE64_STANDARD.encode([byte; 32])).unwrap();
    std::fs::write(directory.join("active"), id).unwrap();
}

pub(super) fn open(folder: &Path, keys: &Path) -> Sealed {
    let store = Store::open(&format!("file://{}", folder.display()), &HashMap::new()).unwrap();
    Sealed::new(store, Arc::new(Keys::open(keys).unwrap()))
}

impl Lab {
    pub(super) fn new() -> Self {
        let (folder, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_key(keys.path(), "k1", 1);
        let cluster = Arc::new(FakeCluster::default());
        let run = view(1, true);
        for attempt in 1..=3 {
            let user = format!("system:serviceaccount:team:net-{attempt}");
            cluster.token(&format!("pod-{attempt}"), Identity { user, pod: Some(pod(&run, attempt)) });
        }
        cluster.token("sources", Identity { user: SOURCES.into(), pod: None });
        cluster.token("controller", Identity { user: CONTROLLER.into(), pod: None });
        cluster.set(run);
        let (service, stop) = service(folder.path(), keys.path(), &cluster);
        Self { folder, keys, cluster, service, stop }
    }

    /// The same behind the claim of attempt 1.
    pub(super) fn claimed() -> Self {
        let lab = Self::new();
        lab.cluster.set(RunView { claim: Some(claim(1)), ..view(1, true) });
        lab
    }

    /// Another process on the same folder.
    pub(super) fn restart(&mut self) {
        (self.service, self.stop) = service(self.folder.path(), self.keys.path(), &self.cluster);
    }

    pub(super) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = answer(&self.service, request.body(body.into()).unwrap(), None).await;
        Answer::of(response).await
    }

    /// A request of the pod of that token for an attempt of `team/net`, as an agent sends it.
    pub(super) async fn of_pod(&self, token: &str, method: &str, attempt: u32, rest: &str, body: &[u8]) -> Answer {
        let path = format!("{}/{rest}", attempt_path("team", "net", attempt));
        let (bearer, digest) = (format!("Bearer {token}"), digest(body));
        let mut headers = vec![("authorization", bearer.as_str()), (HEADER_NONCE, NONCE)];
        if method == "PUT" {
            headers.push((HEADER_DIGEST, &digest));
        }
        self.send(method, &path, &headers, body.to_vec()).await
    }

    pub(super) async fn put(&self, rest: &str, body: &[u8]) -> Answer {
        self.of_pod("pod-1", "PUT", 1, rest, body).await
    }

    pub(super) async fn get(&self, rest: &str) -> Answer {
        self.of_pod("pod-1", "GET", 1, rest, b"").await
    }

    pub(super) async fn of_controller(&self, method: &str, rest: &str) -> Answer {
        let path = format!("/v1/namespaces/team/uids/{}{rest}", view(1, true).uid);
        self.send(method, &path, &[("authorization", "Bearer controller")], Body::empty()).await
    }

    /// A request that the API server passes on for `ada`.
    pub(super) async fn of_person(&self, method: &str, rest: &str, body: &[u8]) -> Answer {
        let proxy = FrontProxyConfig { names: vec!["front-proxy".into()], ..FrontProxyConfig::default() };
        self.service.front_proxy.send_replace(Some(Arc::new(proxy)));
        let path = format!("/apis/read.pawl.run/v1alpha1/namespaces/team/{rest}");
        let request = Request::builder().method(method).uri(path).header("X-Remote-User", "ada");
        let response = answer(&self.service, request.body(Body::from(body.to_vec())).unwrap(), Some("front-proxy")).await;
        Answer::of(response).await
    }

    /// Every file of the store, relative to it.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(directory).unwrap().flatten() {
                if entry.path().is_dir() { walk(&entry.path(), found) } else { found.push(entry.path()) }
            }
        }
        let mut found = Vec::new();
        walk(self.folder.path(), &mut found);
        found.sort();
        found
    }

    /// The one file whose path ends so, or the one that holds the part.
    pub(super) fn file(&self, part: &str) -> PathBuf {
        let ends = self.files().into_iter().find(|path| path.to_string_lossy().ends_with(part));
        if let Some(path) = ends {
            return path;
        }
        let found: Vec<_> = self.files().into_iter().filter(|path| path.to_string_lossy().contains(part)).collect();
        assert_eq!(found.len(), 1, "{part}: {found:?}");
        found[0].clone()
    }
}

fn service(folder: &Path, keys: &Path, cluster: &Arc<FakeCluster>) -> (Arc<Service>, watch::Sender<bool>) {
    let (stop, stopped) = watch::channel(false);
    let service = Service::new(open(folder, keys), cluster.clone(), CONTROLLER.into(), stopped);
    (Arc::new(service.publishing(Some("pawl-outputs".into())).fed_by(Some(SOURCES.into()))), stop)
}

/// Sends a request by a connection whose client's certificate has that common name.
pub(super) async fn answer(service: &Arc<Service>, mut request: Request<Body>, name: Option<&str>) -> Response {
    request.extensions_mut().insert(CommonName(name.map(Arc::from)));
    crate::http::router(service.clone()).oneshot(request).await.unwrap()
}

/// An answer, read to its end.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) headers: HeaderMap,
    /// None when the connection would have broken.
    pub(super) body: Option<Bytes>,
}

impl Answer {
    async fn of(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        Self {
            code: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await.ok().map(http_body_util::Collected::to_bytes),
        }
    }

    pub(super) fn problem(&self) -> Problem {
        serde_json::from_slice(self.body.as_ref().unwrap()).unwrap_or_else(|_| panic!("no problem: {self:?}"))
    }

    pub(super) fn reason(&self) -> String {
        self.problem().reason
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(self.body.as_ref().unwrap()).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(self.body.as_ref().unwrap()).unwrap()
    }
}

pub(super) fn digest(bytes: &[u8]) -> String {
    hex_digest(&Sha256::digest(bytes))
}

/// Bytes that look like nothing.
pub(super) fn noise(length: usize, seed: u64) -> Vec<u8> {
    use rand::{RngCore as _, SeedableRng as _};
    let mut bytes = vec![0; length];
    rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
