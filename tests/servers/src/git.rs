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
        std::fs::create_dir_all(root).with_context(|| format!("failed to create `{}`", root.display()))?;
        let scheme = if pki.is_some() { "https" } else { "http" };
        let app = App { root: root.to_owned(), scheme, shared: Arc::default() };
        let router = Router::new().fallback(serve).with_state(app.clone());
        let address = bind.ip().to_string();
        let identity = Identity { file: "git", user: "git", group: "pawl", hosts: &[address.as_str()] };
        let tls = pki.as_ref().map(|pki| tls::config(&pki.issue(identity)?)).transpose()?;
        let authority = pki.map(|pki| pki.authority());
        Ok(Self { app, listener: Listener::start(bind, router, tls).await?, authority })
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
        self.app.shared().installations.insert(installation.to_owned(), token.to_owned());
    }

    /// Makes one repository fail, or work again with [`Failure::None`].
    pub fn fail(&self, repo: &str, failure: Failure) {
        self.app.shared().failures.insert(repo.to_owned(), failure);
    }

    pub fn requests(&self, repo: &str) -> usize {
        self.app.shared().requests.get(repo).copied().unwrap_or_default()
    }
}

impl App {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GitHub API's answer to an App's token request.
    fn token(&self, request: &Request) -> Option<Response<Body>> {
        let installation = request.uri().path().strip_prefix("/api/v3/app/installations/")?.strip_suffix("/access_tokens")?;
        let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let token = self.shared().installations.get(installation).cloned().filter(|_| sent.starts_with("Bearer ey"));
        let Some(token) = token else { return Some(plain(401, "no such installation")) };
        let answer = serde_json::json!({"token": token, "expires_at": "2100-01-01T00:00:00Z"});
        Some(plain(201, &answer.to_string()))
    }

    async fn answer(&self, repo: &str, request: Request) -> Response<Body> {
        let (access, failure) = {
            let shared = self.shared();
            (shared.access.get(repo).cloned().unwrap_or_default(), shared.failures.get(repo).copied().unwrap_or_default())
        };
        match failure {
            Failure::None => {}
            Failure::Hang => std::future::pending().await,
            Failure::Status(code) => return plain(code, "failed because a test asked for it"),
        }
        if !access.admits(request.headers()) {
            let mut response = plain(401, "unauthorized");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static(access.challenge()));
            return response;
        }
        let (head, body) = request.into_parts();
        let body = match axum::body::to_bytes(body, 256 << 20).await {
            Ok(body) => body,
            Err(error) => return plain(400, &error.to_string()),
        };
        let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let base = format!("{}://{host}/{repo}.git", self.scheme);
        if let Some(answer) = self.shared().contents.answer(&base, head.uri.path(), &body) {
            return answer;
        }
        match cgi::git_http_backend(&self.root, &head.method, &head.uri, &head.headers, &body).await {
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
    let repo = path.split_once(".git").map_or(path, |(repo, _)| repo).trim_matches('/').to_owned();
    *app.shared().requests.entry(repo.clone()).or_default() += 1;
    app.answer(&repo, request).await
}

fn plain(code: u16, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{text}\n")));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

#[cfg(test)]
mod tests {
    use std::process::Output;
    use std::time::Duration;

    use super::*;

    const LOOPBACK: &str = "127.0.0.1:0";

    struct Fixture {
        dir: tempfile::TempDir,
        server: GitServer,
        sha: String,
    }

    async fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let server = GitServer::start(LOOPBACK.parse().unwrap(), &dir.path().join("repos")).await.unwrap();
        let repo = server.create("team/stack").unwrap();
        let sha = repo.commit("main", &[("main.tf", "# one\n")]).unwrap();
        Fixture { dir, server, sha }
    }

    impl Fixture {
        async fn git(&self, arguments: &[&str]) -> Output {
            tokio::process::Command::new("git")
                .args(arguments)
                .current_dir(self.dir.path())
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .env("GIT_TERMINAL_PROMPT", "0")
                .env("no_proxy", "*")
                .kill_on_drop(true)
                .output()
                .await
                .unwrap()
        }

        async fn clone_with(&self, header: Option<&str>, into: &str) -> Output {
            let url = self.server.url("team/stack");
            let header = header.map(|header| format!("http.extraHeader=Authorization: {header}"));
            let mut arguments = Vec::new();
            if let Some(header) = &header {
                arguments.extend(["-c", header]);
            }
            arguments.extend(["clone", "--depth=1", &url, into]);
            self.git(&arguments).await
        }
    }

    #[tokio::test]
    async fn clones_and_fetches_by_commit() {
        let at = fixture().await;
        let output = at.clone_with(None, "w").await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::read_to_string(at.dir.path().join("w/main.tf")).unwrap(), "# one\n");
        assert!(at.server.requests("team/stack") >= 2);
        let repo = Repo::create(&at.dir.path().join("bare")).unwrap();
        let git_dir = repo.dir().to_str().unwrap().to_owned();
        let fetch = at.git(&["--git-dir", &git_dir, "fetch", "--depth=1", &at.server.url("team/stack"), &at.sha]).await;
        assert!(fetch.status.success(), "{}", String::from_utf8_lossy(&fetch.stderr));
        assert!(!at.git(&["ls-remote", &at.server.url("team/none")]).await.status.success());
    }

    #[tokio::test]
    async fn only_credentials_open_a_closed_repository() {
        let at = fixture().await;
        at.server.set_access("team/stack", Access::basic("robot", "s3cret"));
        assert!(!at.clone_with(None, "a").await.status.success());
        let good = super::super::auth::basic_header("robot", "s3cret");
        assert!(at.clone_with(Some(&good), "b").await.status.success());
        let in_url = at.server.url("team/stack").replace("http://", "http://robot:s3cret@");
        assert!(at.git(&["ls-remote", &in_url]).await.status.success());
        at.server.set_access("team/stack", Access::Bearer("tok".into()));
        assert!(!at.clone_with(Some(&good), "c").await.status.success());
        assert!(at.clone_with(Some("Bearer tok"), "d").await.status.success());
    }

    #[tokio::test]
    async fn fails_as_it_is_told() {
        let at = fixture().await;
        let url = at.server.url("team/stack");
        at.server.fail("team/stack", Failure::Status(503));
        let output = at.git(&["ls-remote", &url]).await;
        assert!(String::from_utf8_lossy(&output.stderr).contains("503"));
        at.server.fail("team/stack", Failure::Hang);
        let waited = tokio::time::timeout(Duration::from_millis(400), at.git(&["ls-remote", &url])).await;
        assert!(waited.is_err(), "a hanging server answered");
        at.server.fail("team/stack", Failure::None);
        assert!(at.git(&["ls-remote", &url]).await.status.success());
    }
}
