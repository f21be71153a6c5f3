//! Tests the whole service in process, on a folder, with a fake API server.

mod access;
mod damage;
mod handover;
mod identity;
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
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    body::Body,
    http::{HeaderMap, Request},
    response::Response,
};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use tempfile::TempDir;
use tokio::sync::watch;
use tower::ServiceExt as _;

use crds::datastore::{HEADER_DIGEST, HEADER_NONCE, Problem, attempt_path};
use serving::{auth::Identity, connections::CommonName};

use crate::{
    cluster::{FrontProxyConfig, RunView},
    service::Service,
    testing::{FakeCluster, NONCE, claim, digest, noise, open, pod, view, write_key},
};

pub(super) const CONTROLLER: &str = "system:serviceaccount:pawl:pawl-controller";

pub(super) const SOURCES: &str = "system:serviceaccount:pawl:pawl-sources";

/// A service with its folder and keys. The tokens `pod-1`, `pod-2`, … belong to the pods of the run `team/net`,
/// `controller` to the controller. Attempt 1 of the run is open.
pub(super) struct Lab {
    pub(super) folder: TempDir,
    pub(super) keys: TempDir,
    pub(super) cluster: Arc<FakeCluster>,
    pub(super) service: Arc<Service>,
    /// Kept alive, so that the service does not stop.
    stop: watch::Sender<bool>,
}

impl Lab {
    pub(super) fn new() -> Self {
        let (folder, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_key(keys.path(), "k1", 1);
        let cluster = Arc::new(FakeCluster::default());
        let run = view(1, true);
        for attempt in 1..=3 {
            let user = format!("system:serviceaccount:team:net-{attempt}");
            cluster.token(
                &format!("pod-{attempt}"),
                Identity {
                    user,
                    pod: Some(pod(&run, attempt)),
                    ..Identity::default()
                },
            );
        }
        cluster.token(
            "sources",
            Identity {
                user: SOURCES.into(),
                ..Identity::default()
            },
        );
        cluster.token(
            "controller",
            Identity {
                user: CONTROLLER.into(),
                ..Identity::default()
            },
        );
        cluster.set(run);
        let (service, stop) = service(folder.path(), keys.path(), &cluster);
        Self {
            folder,
            keys,
            cluster,
            service,
            stop,
        }
    }

    /// Like [`Self::new`], with a claim of attempt 1.
    pub(super) fn claimed() -> Self {
        let lab = Self::new();
        lab.cluster.set(RunView {
            claim: Some(claim(1)),
            ..view(1, true)
        });
        lab
    }

    /// Replaces the service by another process on the same folder.
    pub(super) fn restart(&mut self) {
        (self.service, self.stop) = service(self.folder.path(), self.keys.path(), &self.cluster);
    }

    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = answer(&self.service, request.body(body.into()).unwrap(), None).await;
        Answer::of(response).await
    }

    /// Sends a request for an attempt of `team/net` with the pod's token, as an agent does.
    pub(super) async fn of_pod(
        &self,
        token: &str,
        method: &str,
        attempt: u32,
        rest: &str,
        body: &[u8],
    ) -> Answer {
        let path = format!("{}/{rest}", attempt_path("team", "net", attempt));
        let (bearer, digest) = (format!("Bearer {token}"), digest(body));
        let mut headers = vec![("authorization", bearer.as_str()), (HEADER_NONCE, NONCE)];
        if method == "PUT" {
            headers.push((HEADER_DIGEST, &digest));
        }
        self.send(method, &path, &headers, body.to_vec()).await
    }

    /// Sends requests of the pod `token` for its attempt, the last character of the token, in order: method and path,
    /// body, and the expected [`Answer::brief`].
    pub(super) async fn asks(&self, token: &str, requests: &[(&str, &[u8], &str)]) {
        let attempt = token
            .rsplit('-')
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(1);
        for (n, (request, body, expected)) in requests.iter().enumerate() {
            let (method, rest) = request.split_once(' ').unwrap();
            let answer = self.of_pod(token, method, attempt, rest, body).await;
            assert_eq!(
                answer.brief(),
                *expected,
                "request {n} of {token}, {request}: {answer:?}"
            );
        }
    }

    pub(super) async fn put(&self, rest: &str, body: &[u8]) -> Answer {
        self.of_pod("pod-1", "PUT", 1, rest, body).await
    }

    pub(super) async fn get(&self, rest: &str) -> Answer {
        self.of_pod("pod-1", "GET", 1, rest, b"").await
    }

    pub(super) async fn of_controller(&self, method: &str, rest: &str) -> Answer {
        let path = format!("/v1/namespaces/team/uids/{}{rest}", view(1, true).uid);
        self.send(
            method,
            &path,
            &[("authorization", "Bearer controller")],
            Body::empty(),
        )
        .await
    }

    /// Sends a request that the API server forwards for `ada`.
    pub(super) async fn of_person(&self, method: &str, rest: &str, body: &[u8]) -> Answer {
        let proxy = FrontProxyConfig {
            names: vec!["front-proxy".into()],
            ..FrontProxyConfig::default()
        };
        self.service.front_proxy.send_replace(Some(Arc::new(proxy)));
        let path = format!("/apis/read.pawl.run/v1alpha1/namespaces/team/{rest}");
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("X-Remote-User", "ada");
        let response = answer(
            &self.service,
            request.body(Body::from(body.to_vec())).unwrap(),
            Some("front-proxy"),
        )
        .await;
        Answer::of(response).await
    }

    /// Every file of the store, with relative paths.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(directory).unwrap().flatten() {
                if entry.path().is_dir() {
                    walk(&entry.path(), found);
                } else {
                    found.push(entry.path());
                }
            }
        }
        let mut found = Vec::new();
        walk(self.folder.path(), &mut found);
        found.sort();
        found
    }

    /// The file whose path ends with `part`, or else the one whose path contains it.
    pub(super) fn file(&self, part: &str) -> PathBuf {
        let ends = self
            .files()
            .into_iter()
            .find(|path| path.to_string_lossy().ends_with(part));
        if let Some(path) = ends {
            return path;
        }
        let found: Vec<_> = self
            .files()
            .into_iter()
            .filter(|path| path.to_string_lossy().contains(part))
            .collect();
        assert_eq!(found.len(), 1, "{part}: {found:?}");
        found[0].clone()
    }
}

fn service(
    folder: &Path,
    keys: &Path,
    cluster: &Arc<FakeCluster>,
) -> (Arc<Service>, watch::Sender<bool>) {
    let (stop, stopped) = watch::channel(false);
    let service = Service::new(
        open(folder, keys),
        cluster.clone(),
        CONTROLLER.into(),
        stopped,
    );
    (
        Arc::new(
            service
                .publishing(Some("pawl-outputs".into()))
                .fed_by(Some(SOURCES.into())),
        ),
        stop,
    )
}

/// Sends a request on a connection whose client certificate has this common name.
pub(super) async fn answer(
    service: &Arc<Service>,
    mut request: Request<Body>,
    name: Option<&str>,
) -> Response {
    request
        .extensions_mut()
        .insert(CommonName(name.map(Arc::from)));
    crate::http::router(service.clone())
        .oneshot(request)
        .await
        .unwrap()
}

/// A response, read to its end.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) headers: HeaderMap,
    /// `None` when the connection would have been broken.
    pub(super) body: Option<Bytes>,
}

impl Answer {
    async fn of(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        Self {
            code: parts.status.as_u16(),
            headers: parts.headers,
            body: body
                .collect()
                .await
                .ok()
                .map(http_body_util::Collected::to_bytes),
        }
    }

    pub(super) fn problem(&self) -> Problem {
        serde_json::from_slice(self.body.as_ref().unwrap())
            .unwrap_or_else(|_| panic!("no problem: {self:?}"))
    }

    /// The code, and the reason of a problem: `201`, `403 Forbidden`.
    pub(super) fn brief(&self) -> String {
        let problem = self
            .body
            .as_deref()
            .and_then(|body| serde_json::from_slice::<Problem>(body).ok());
        match problem.filter(|_| self.code >= 400) {
            Some(problem) => format!("{} {}", self.code, problem.reason),
            None => self.code.to_string(),
        }
    }

    pub(super) fn reason(&self) -> String {
        self.problem().reason
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(self.body.as_ref().unwrap())
            .unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(self.body.as_ref().unwrap()).unwrap()
    }
}
