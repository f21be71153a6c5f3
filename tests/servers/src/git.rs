//! A Git server: smart HTTP by `git http-backend`, with access per repository and faults on request.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode, header};

use super::auth::Access;
use super::cgi;
use super::large::Contents;
use super::listener::Listener;
use super::repo::Repo;
use super::tls;
use harness::cluster::pki::{Identity, Pki};

/// The server's behaviour instead of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failure {
    /// Normal answers.
    #[default]
    None,
    /// It accepts the request and never answers.
    Hang,
    /// It answers with this status, for example 500 or 429.
    Status(u16),
}

#[derive(Debug, Default)]
struct Shared {
    access: BTreeMap<String, Access>,
    failures: BTreeMap<String, Failure>,
    /// Number of requests, by repository.
    requests: BTreeMap<String, usize>,
    /// Git LFS contents of all repositories.
    contents: Contents,
    /// Tokens by installation of a GitHub App.
    installations: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct App {
    root: PathBuf,
    scheme: &'static str,
    shared: Arc<Mutex<Shared>>,
}

/// A running Git server; drop closes it.
#[derive(Debug)]
pub struct GitServer {
    app: App,
    listener: Listener,
    authority: Option<String>,
}

impl GitServer {
    /// Serves the bare repositories below `root` on `bind` (port 0 selects a free port).
    pub async fn start(bind: SocketAddr, root: &Path) -> anyhow::Result<Self> {
        Self::start_with(bind, root, None).await
    }

    /// Serves them by HTTPS, with a certificate of its own authority.
    pub async fn start_tls(bind: SocketAddr, root: &Path) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("no directory for certificates")?;
        let pki = Pki::bare(directory.path(), "pawl-test-git")?;
        Self::start_with(bind, root, Some(pki)).await
    }

    async fn start_with(bind: SocketAddr, root: &Path, pki: Option<Pki>) -> anyhow::Result<Self> {
        std::fs::create_dir_all(root)
            .with_context(|| format!("failed to create `{}`", root.display()))?;
        let scheme = if pki.is_some() { "https" } else { "http" };
        let app = App {
            root: root.to_owned(),
            scheme,
            shared: Arc::default(),
        };
        let router = Router::new().fallback(serve).with_state(app.clone());
        let address = bind.ip().to_string();
        let identity = Identity {
            file: "git",
            user: "git",
            group: "pawl",
            hosts: &[address.as_str()],
        };
        let tls = pki
            .as_ref()
            .map(|pki| tls::config(&pki.issue(identity)?))
            .transpose()?;
        let authority = pki.map(|pki| pki.authority());
        Ok(Self {
            app,
            listener: Listener::start(bind, router, tls).await?,
            authority,
        })
    }

    /// The authority of its certificate in PEM, if any.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// Adds LFS contents. Who may read a repository with a pointer to them may read them.
    pub fn add_large(&self, contents: &[u8]) {
        self.app.shared().contents.add(contents);
    }

    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    pub fn url(&self, repo: &str) -> String {
        format!("{}://{}/{repo}.git", self.app.scheme, self.addr())
    }

    /// Creates an empty public repository.
    pub fn create(&self, repo: &str) -> anyhow::Result<Repo> {
        Repo::create(&self.app.root.join(format!("{repo}.git")))
    }

    /// Sets the access to a repository.
    pub fn set_access(&self, repo: &str, access: Access) {
        self.app.shared().access.insert(repo.to_owned(), access);
    }

    /// Adds an installation to the simulated GitHub API at this address: a request with a JWT of the App gets this token.
    pub fn installed(&self, installation: &str, token: &str) {
        self.app
            .shared()
            .installations
            .insert(installation.to_owned(), token.to_owned());
    }

    /// Makes one repository fail, or work again with [`Failure::None`].
    pub fn fail(&self, repo: &str, failure: Failure) {
        self.app.shared().failures.insert(repo.to_owned(), failure);
    }

    pub fn requests(&self, repo: &str) -> usize {
        self.app
            .shared()
            .requests
            .get(repo)
            .copied()
            .unwrap_or_default()
    }
}

impl App {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GitHub API's answer to an App's token request.
    fn token(&self, request: &Request) -> Option<Response<Body>> {
        let installation = request
            .uri()
            .path()
            .strip_prefix("/api/v3/app/installations/")?
            .strip_suffix("/access_tokens")?;
        let sent = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let token = self
            .shared()
            .installations
            .get(installation)
            .cloned()
            .filter(|_| sent.starts_with("Bearer ey"));
        let Some(token) = token else {
            return Some(plain(401, "no such installation"));
        };
        let answer = serde_json::json!({"token": token, "expires_at": "2100-01-01T00:00:00Z"});
        Some(plain(201, &answer.to_string()))
    }

    async fn answer(&self, repo: &str, request: Request) -> Response<Body> {
        let (access, failure) = {
            let shared = self.shared();
            (
                shared.access.get(repo).cloned().unwrap_or_default(),
                shared.failures.get(repo).copied().unwrap_or_default(),
            )
        };
        match failure {
            Failure::None => {}
            Failure::Hang => std::future::pending().await,
            Failure::Status(code) => return plain(code, "failed because a test asked for it"),
        }
        if !access.admits(request.headers()) {
            let mut response = plain(401, "unauthorized");
            response.headers_mut().insert(
                header::WWW_AUTHENTICATE,
                header::HeaderValue::from_static(access.challenge()),
            );
            return response;
        }
        let (head, body) = request.into_parts();
        let body = match axum::body::to_bytes(body, 256 << 20).await {
            Ok(body) => body,
            Err(error) => return plain(400, &error.to_string()),
        };
        let host = head
            .headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or_default();
        let base = format!("{}://{host}/{repo}.git", self.scheme);
        if let Some(answer) = self.shared().contents.answer(&base, head.uri.path(), &body) {
            return answer;
        }
        match cgi::git_http_backend(&self.root, &head.method, &head.uri, &head.headers, &body).await
        {
            Ok(response) => response,
            Err(error) => plain(500, &format!("{error:#}")),
        }
    }
}

async fn serve(State(app): State<App>, request: Request) -> Response<Body> {
    if let Some(answer) = app.token(&request) {
        return answer;
    }
    let path = request.uri().path();
    let repo = path
        .split_once(".git")
        .map_or(path, |(repo, _)| repo)
        .trim_matches('/')
        .to_owned();
    *app.shared().requests.entry(repo.clone()).or_default() += 1;
    app.answer(&repo, request).await
}

fn plain(code: u16, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{text}\n")));
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}
