//! A registry of modules and a mirror of providers, by HTTPS as the tools demand it, for whoever has a token.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
};
use serde_json::json;

use super::{auth::Access, listener::Listener, tls};
use crate::cluster::pki::{Identity, Pki};

/// Where the tools look for what a host has.
const DISCOVERY: &str = "/.well-known/terraform.json";

#[derive(Debug, Default)]
struct Shared {
    access: Access,
    files: BTreeMap<String, (HeaderMap, Vec<u8>)>,
    asked: Vec<(String, Option<String>)>,
}

impl Shared {
    fn answer(&mut self, path: &str, headers: &HeaderMap) -> Response<Body> {
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        self.asked.push((path.to_owned(), sent.map(str::to_owned)));
        let empty = |status| {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = status;
            response
        };
        if path != DISCOVERY && !self.access.admits(headers) {
            return empty(StatusCode::UNAUTHORIZED);
        }
        let Some((headers, body)) = self.files.get(path) else { return empty(StatusCode::NOT_FOUND) };
        let mut response = Response::new(Body::from(body.clone()));
        response.headers_mut().clone_from(headers);
        if body.is_empty() {
            // OpenTofu reads a body wherever there may be one.
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        response
    }
}

type App = Arc<Mutex<Shared>>;

/// A running server; dropping it closes it.
#[derive(Debug)]
pub struct Registry {
    shared: App,
    listener: Listener,
}

impl Registry {
    /// Serves what is put there to whoever is let in, with a certificate of `pki`.
    pub async fn start(pki: &Pki, access: Access) -> Result<Self> {
        let pair = pki.issue(Identity { file: "registry", user: "registry", group: "pawl", hosts: &["127.0.0.1"] })?;
        let shared = App::new(Mutex::new(Shared { access, ..Shared::default() }));
        let router = Router::new().fallback(serve).with_state(shared.clone());
        let bind: SocketAddr = "127.0.0.1:0".parse().context("no address")?;
        Ok(Self { shared, listener: Listener::start(bind, router, Some(tls::config(&pair)?)).await? })
    }

    /// `127.0.0.1:PORT`, as sources of modules name it: to the tools a name without a dot is no host.
    pub fn host(&self) -> String {
        self.listener.addr().to_string()
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.host())
    }

    /// Puts a file there.
    pub fn put(&self, path: &str, kind: &'static str, body: Vec<u8>) {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
        self.shared().files.insert(path.to_owned(), (headers, body));
    }

    /// Publishes a module, `NAMESPACE/NAME/SYSTEM`, in one version, whose archive is at a URL.
    pub fn publish(&self, module: &str, version: &str, archive: &str) -> Result<()> {
        let json = |value: serde_json::Value| value.to_string().into_bytes();
        self.put(DISCOVERY, "application/json", json(json!({"modules.v1": "/v1/modules/"})));
        let versions = json!({"modules": [{"versions": [{"version": version}]}]});
        self.put(&format!("/v1/modules/{module}/versions"), "application/json", json(versions));
        let headers = HeaderMap::from_iter([("x-terraform-get".parse()?, archive.parse()?)]);
        self.shared().files.insert(format!("/v1/modules/{module}/{version}/download"), (headers, Vec::new()));
        Ok(())
    }

    /// The path of every request, in order, and the credentials that came with it.
    pub fn asked(&self) -> Vec<(String, Option<String>)> {
        self.shared().asked.clone()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(State(app): State<App>, request: Request) -> Response<Body> {
    app.lock().unwrap_or_else(PoisonError::into_inner).answer(request.uri().path(), request.headers())
}
