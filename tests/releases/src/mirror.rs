//! A web server for a directory of releases.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio_util::io::ReaderStream;

use super::Release;
use harness::cluster::pki::{Identity, Pki};
use servers::auth::Access;
use servers::listener::Listener;
use servers::tls;

#[derive(Debug, Default)]
struct Shared {
    access: Access,
    /// Status codes to answer with instead of the file, by path.
    failures: BTreeMap<String, StatusCode>,
    /// The path of every request, in order.
    asked: Vec<String>,
}

#[derive(Clone, Debug)]
struct App {
    root: Arc<PathBuf>,
    shared: Arc<Mutex<Shared>>,
}

/// A running mirror; drop closes it.
#[derive(Debug)]
pub struct Mirror {
    app: App,
    listener: Listener,
    authority: Option<String>,
}

impl Mirror {
    /// Serves a directory by HTTP on `bind` (port 0 selects a free port). New files are served at once.
    pub async fn start(bind: SocketAddr, root: &Path) -> Result<Self> {
        let app = App {
            root: Arc::new(root.to_owned()),
            shared: Arc::default(),
        };
        let listener = Listener::start(bind, router(&app), None).await?;
        Ok(Self {
            app,
            listener,
            authority: None,
        })
    }

    /// Serves it by HTTPS, with a certificate of its own authority for its address and `localhost`.
    pub async fn start_tls(bind: SocketAddr, root: &Path) -> Result<Self> {
        let directory = tempfile::tempdir().context("no directory for certificates")?;
        let pki = Pki::bare(directory.path(), "pawl-test-releases")?;
        let address = bind.ip().to_string();
        let pair = pki.issue(Identity {
            file: "mirror",
            user: "mirror",
            group: "pawl",
            hosts: &[address.as_str(), "localhost"],
        })?;
        let app = App {
            root: Arc::new(root.to_owned()),
            shared: Arc::default(),
        };
        let listener = Listener::start(bind, router(&app), Some(tls::config(&pair)?)).await?;
        Ok(Self {
            app,
            listener,
            authority: Some(pki.authority()),
        })
    }

    /// The value for `TOFUENV_REMOTE`, `TFENV_REMOTE` and `TG_REMOTE`.
    pub fn base(&self) -> String {
        let scheme = if self.authority.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.listener.addr())
    }

    /// The authority of its certificate in PEM, if any.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    pub fn set_access(&self, access: Access) {
        self.app.shared().access = access;
    }

    /// Answers requests for the archive of a release with this status, until [`Self::heal`].
    pub fn fail(&self, release: &Release, status: StatusCode) {
        self.app
            .shared()
            .failures
            .insert(format!("/{}", release.path()), status);
    }

    /// Serves the archive of a release again.
    pub fn heal(&self, release: &Release) {
        self.app
            .shared()
            .failures
            .remove(&format!("/{}", release.path()));
    }

    /// Number of requests for the archive of a release, including failed and resumed ones.
    pub fn downloads(&self, release: &Release) -> usize {
        let path = format!("/{}", release.path());
        self.app
            .shared()
            .asked
            .iter()
            .filter(|asked| **asked == path)
            .count()
    }
}

fn router(app: &App) -> Router {
    Router::new().fallback(serve).with_state(app.clone())
}

async fn serve(State(app): State<App>, request: Request) -> Response {
    let path = request.uri().path();
    let (access, failure) = {
        let mut shared = app.shared();
        shared.asked.push(path.to_owned());
        (shared.access.clone(), shared.failures.get(path).copied())
    };
    if let Some(status) = failure {
        return status.into_response();
    }
    if !access.admits(request.headers()) {
        return (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, access.challenge())],
        )
            .into_response();
    }
    app.file(path)
        .await
        .unwrap_or_else(|_| StatusCode::NOT_FOUND.into_response())
}

impl App {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn file(&self, path: &str) -> std::io::Result<Response> {
        // No name in a mirror needs escapes or begins with a dot.
        if path.contains(['%', '\\']) || path.split('/').any(|part| part.starts_with('.')) {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let file = tokio::fs::File::open(self.root.join(path.trim_start_matches('/'))).await?;
        let meta = file.metadata().await?;
        if !meta.is_file() {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let body = Body::from_stream(ReaderStream::with_capacity(file, 256 << 10));
        Ok(([(header::CONTENT_LENGTH, meta.len().to_string())], body).into_response())
    }
}
