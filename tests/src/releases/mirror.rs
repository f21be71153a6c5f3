//! A web server over a directory of releases.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, header};

use super::content::{Content, Manner};
use super::trouble::{Trouble, Troubles};
use super::{Release, lists};
use crate::cluster::pki::{Identity, Pki};
use crate::servers::auth::Access;
use crate::servers::listener::Listener;
use crate::servers::tls;

/// One request that reached the mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Method.
    pub method: String,
    /// Path, without the query.
    pub path: String,
    /// The query, if there was one.
    pub query: Option<String>,
    /// The part that was asked for: `Range`.
    pub range: Option<String>,
    /// Status of the answer; none while there is none.
    pub status: Option<u16>,
    /// Bytes of the body that were handed to the connection so far.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Shared {
    access: Access,
    troubles: Troubles,
    served: Vec<Served>,
}

#[derive(Clone, Debug)]
struct App {
    root: Arc<PathBuf>,
    shared: Arc<Mutex<Shared>>,
}

/// A running mirror; dropping it closes it.
#[derive(Debug)]
pub struct Mirror {
    app: App,
    listener: Listener,
    authority: Option<String>,
}

impl Mirror {
    /// Serves a directory by HTTP on `bind` (port 0 takes any free one). What is added to the directory is there at once.
    pub async fn start(bind: SocketAddr, root: &Path) -> Result<Self> {
        let app = App { root: Arc::new(root.to_owned()), shared: Arc::default() };
        let listener = Listener::start(bind, router(&app)).await?;
        Ok(Self { app, listener, authority: None })
    }

    /// Serves it by HTTPS, with a certificate of an authority of its own for its address and these names besides.
    pub async fn start_tls(bind: SocketAddr, root: &Path, names: &[&str]) -> Result<Self> {
        let directory = tempfile::tempdir().context("no directory for certificates")?;
        let pki = Pki::bare(directory.path(), "pawl-test-releases")?;
        let address = bind.ip().to_string();
        let hosts = [&[address.as_str()], names].concat();
        let pair = pki.issue(Identity { file: "mirror", user: "mirror", group: "pawl", hosts: &hosts })?;
        let app = App { root: Arc::new(root.to_owned()), shared: Arc::default() };
        let listener = Listener::start_with(bind, router(&app), Some(tls::config(&pair)?)).await?;
        Ok(Self { app, listener, authority: Some(pki.authority()) })
    }

    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// What `TOFUENV_REMOTE`, `TFENV_REMOTE` and `TG_REMOTE` have to be.
    pub fn base(&self) -> String {
        let scheme = if self.authority.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.addr())
    }

    /// The authority of its certificate in PEM, when it has one.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// Says who may read from now on.
    pub fn set_access(&self, access: Access) {
        self.app.shared().access = access;
    }

    /// Makes requests below a path go wrong, until [`Self::heal`]. Of several such paths the longest counts.
    pub fn trouble(&self, prefix: &str, trouble: Trouble) {
        self.app.shared().troubles.set(prefix, trouble, None);
    }

    /// Makes so many requests below a path go wrong, and those after them not.
    pub fn trouble_times(&self, prefix: &str, times: usize, trouble: Trouble) {
        self.app.shared().troubles.set(prefix, trouble, Some(times));
    }

    /// Makes requests below a path go well again.
    pub fn heal(&self, prefix: &str) {
        self.app.shared().troubles.clear(prefix);
    }

    /// Every request, in order.
    pub fn served(&self) -> Vec<Served> {
        self.app.shared().served.clone()
    }

    /// How many requests there were for a path, which begins with `/`.
    pub fn requests(&self, path: &str) -> usize {
        self.app.shared().served.iter().filter(|served| served.path == path).count()
    }

    /// How many requests there were for the archive of a release, those that failed or went on after a cut included.
    pub fn downloads(&self, release: &Release) -> usize {
        self.requests(&format!("/{}", release.path()))
    }

    /// Closes the socket, so that connections are refused.
    pub async fn refuse(&self) {
        self.listener.refuse().await;
    }

    /// Opens the socket again after [`Self::refuse`].
    pub async fn accept(&self) -> Result<()> {
        self.listener.accept().await
    }
}

fn router(app: &App) -> Router {
    Router::new().fallback(serve).with_state(app.clone())
}

async fn serve(State(app): State<App>, request: Request) -> Response<Body> {
    let (head, _) = request.into_parts();
    let (index, trouble) = {
        let mut shared = app.shared();
        shared.served.push(Served {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().map(str::to_owned),
            range: head.headers.get(header::RANGE).and_then(|range| range.to_str().ok()).map(str::to_owned),
            ..Served::default()
        });
        (shared.served.len() - 1, shared.troubles.take(head.uri.path()))
    };
    let answer = app.answer(&head.uri, &head.headers, trouble, index).await;
    let response = answer.unwrap_or_else(|error| plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error:#}")));
    app.shared().served[index].status = Some(response.status().as_u16());
    response
}

impl App {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, uri: &Uri, asked: &HeaderMap, trouble: Option<Trouble>, index: usize) -> Result<Response<Body>> {
        let mut manner = Manner::default();
        let mut replaced = None;
        match trouble {
            Some(Trouble::Status(code, headers)) => return failure(code, &headers),
            Some(Trouble::Hang) => std::future::pending().await,
            Some(Trouble::Redirect(to)) => return redirect(&format!("{to}{uri}")),
            Some(Trouble::Html) => {
                replaced = Some(Content::memory("text/html", "<!DOCTYPE html>\n<title>Please log in</title>\n"));
            }
            Some(Trouble::Replaced(bytes)) => replaced = Some(Content::memory("application/octet-stream", bytes)),
            Some(Trouble::Cut(bytes)) => manner.cut = Some(bytes),
            Some(Trouble::Drip { bytes, every }) => (manner.piece, manner.wait) = (bytes, every),
            None => {}
        }
        let access = self.shared().access.clone();
        if !access.admits(asked) {
            let mut response = plain(StatusCode::UNAUTHORIZED, "unauthorized");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(access.challenge()));
            return Ok(response);
        }
        let content = match replaced {
            Some(content) => content,
            None => match self.find(uri).await? {
                Found::Content(content) => content,
                Found::Directory => return redirect(&format!("{}/", uri.path())),
                Found::Nothing => return Ok(plain(StatusCode::NOT_FOUND, "not found")),
            },
        };
        let app = self.clone();
        content.answer(asked, manner, move |bytes| app.shared().served[index].bytes += bytes as u64).await
    }

    async fn find(&self, uri: &Uri) -> Result<Found> {
        let path = uri.path();
        // No name in a mirror has anything that is written in another way.
        if path.contains(['%', '\\']) || path.split('/').any(|part| part.starts_with('.')) {
            return Ok(Found::Nothing);
        }
        if let Some(repository) = path.strip_prefix("/repos/").and_then(|rest| rest.strip_suffix("/releases")) {
            let page = lists::github(&self.root, repository, number(uri, "page", 1), number(uri, "per_page", 30))?;
            return Ok(Found::Content(Content::memory("application/json", page.to_string())));
        }
        let place = self.root.join(path.trim_start_matches('/'));
        Ok(match tokio::fs::metadata(&place).await {
            Ok(meta) if !meta.is_dir() => Found::Content(Content::file(&place).await?),
            Ok(_) if path.ends_with('/') => Found::Content(Content::memory("text/html", listing(path, &place)?)),
            Ok(_) => Found::Directory,
            Err(_) => Found::Nothing,
        })
    }
}

/// What is at a path.
enum Found {
    Content(Content),
    /// One that was asked for without the `/` at its end.
    Directory,
    Nothing,
}

/// A number of the query.
fn number(uri: &Uri, name: &str, default: usize) -> usize {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse().ok()).unwrap_or(default)
}

/// A page with a link to all that is in a directory.
fn listing(path: &str, directory: &Path) -> Result<String> {
    let mut page =
        format!("<!DOCTYPE html>\n<title>Index of {path}</title>\n<h1>Index of {path}</h1>\n<pre>\n<a href=\"../\">../</a>\n");
    for name in super::names(directory)? {
        let end = if directory.join(&name).is_dir() { "/" } else { "" };
        writeln!(page, "<a href=\"{name}{end}\">{name}{end}</a>")?;
    }
    page.push_str("</pre>\n");
    Ok(page)
}

fn redirect(to: &str) -> Result<Response<Body>> {
    let mut response = plain(StatusCode::FOUND, "elsewhere");
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_str(to).context("an address that is no header")?);
    Ok(response)
}

fn failure(code: u16, headers: &[(String, String)]) -> Result<Response<Body>> {
    let status = StatusCode::from_u16(code).context("a status that is none")?;
    let mut response = plain(status, "failed because a test asked for it");
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).context("a header name that is none")?;
        response.headers_mut().insert(name, HeaderValue::from_str(value).context("a header value that is none")?);
    }
    Ok(response)
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{text}\n")));
    *response.status_mut() = status;
    response
}
