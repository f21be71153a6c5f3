//! A module registry and a provider mirror, by HTTPS as the tools require, with token access.

use std::{
    collections::BTreeMap,
    io::{Cursor, Write as _},
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
};
use serde_json::{Value, json};
use xtask::gobuild::architecture;
use zip::{ZipWriter, write::SimpleFileOptions};

use super::{auth::Access, listener::Listener, tls};
use harness::cluster::pki::{Identity, Pki};

/// The path of the tools' service discovery.
const DISCOVERY: &str = "/.well-known/terraform.json";

#[derive(Debug, Default)]
struct Shared {
    access: Access,
    files: BTreeMap<String, (HeaderMap, Vec<u8>)>,
    asked: Vec<(String, Option<String>)>,
}

impl Shared {
    fn answer(&mut self, path: &str, headers: &HeaderMap) -> Response<Body> {
        let sent = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        self.asked.push((path.to_owned(), sent.map(str::to_owned)));
        let empty = |status| {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = status;
            response
        };
        if path != DISCOVERY && !self.access.admits(headers) {
            let mut refused = empty(StatusCode::UNAUTHORIZED);
            refused.headers_mut().insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static(self.access.challenge()),
            );
            return refused;
        }
        let Some((headers, body)) = self.files.get(path) else {
            return empty(StatusCode::NOT_FOUND);
        };
        let mut response = Response::new(Body::from(body.clone()));
        response.headers_mut().clone_from(headers);
        if headers.contains_key(header::LOCATION) {
            *response.status_mut() = StatusCode::FOUND;
        } else if body.is_empty() {
            // OpenTofu reads a body for any status that permits one.
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        response
    }
}

type App = Arc<Mutex<Shared>>;

/// A running server; drop closes it.
#[derive(Debug)]
pub struct Registry {
    shared: App,
    listener: Listener,
}

impl Registry {
    /// Serves its files to admitted requests, with a certificate of `pki`.
    pub async fn start(pki: &Pki, access: Access) -> Result<Self> {
        Self::start_on("127.0.0.1", pki, access).await
    }

    /// Like [`Self::start`], on a given address of this machine.
    pub async fn start_on(address: &str, pki: &Pki, access: Access) -> Result<Self> {
        let pair = pki.issue(Identity {
            file: "registry",
            user: "registry",
            group: "pawl",
            hosts: &[address],
        })?;
        let shared = App::new(Mutex::new(Shared {
            access,
            ..Shared::default()
        }));
        let router = Router::new().fallback(serve).with_state(shared.clone());
        let bind = SocketAddr::new(address.parse().context("no address")?, 0);
        Ok(Self {
            shared,
            listener: Listener::start(bind, router, Some(tls::config(&pair)?)).await?,
        })
    }

    /// `ADDRESS:PORT`, as in module sources: the tools treat a name without a dot as no host.
    pub fn host(&self) -> String {
        self.listener.addr().to_string()
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.host())
    }

    pub fn put(&self, path: &str, kind: &'static str, body: Vec<u8>) {
        let headers =
            HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
        self.shared().files.insert(path.to_owned(), (headers, body));
    }

    /// Redirects admitted requests for a path to a URL.
    pub fn redirect(&self, path: &str, to: &str) -> Result<()> {
        let headers = HeaderMap::from_iter([(header::LOCATION, to.parse()?)]);
        self.shared()
            .files
            .insert(path.to_owned(), (headers, Vec::new()));
        Ok(())
    }

    /// Publishes one version of a module, `NAMESPACE/NAME/SYSTEM`, with the archive at a URL.
    pub fn publish(&self, module: &str, version: &str, archive: &str) -> Result<()> {
        let json = |value: serde_json::Value| value.to_string().into_bytes();
        self.put(
            DISCOVERY,
            "application/json",
            json(json!({"modules.v1": "/v1/modules/"})),
        );
        let versions = json!({"modules": [{"versions": [{"version": version}]}]});
        self.put(
            &format!("/v1/modules/{module}/versions"),
            "application/json",
            json(versions),
        );
        let headers = HeaderMap::from_iter([("x-terraform-get".parse()?, archive.parse()?)]);
        self.shared().files.insert(
            format!("/v1/modules/{module}/{version}/download"),
            (headers, Vec::new()),
        );
        Ok(())
    }

    /// Publishes a module of one file, with the archive on another server.
    pub fn publish_code(&self, module: &str, code: &str, archives: &Self) -> Result<()> {
        let path = format!("/{module}.zip");
        archives.put(
            &path,
            "application/zip",
            zipped("main.tf", code.as_bytes())?,
        );
        self.publish(module, "1.0.0", &archives.url(&path))
    }

    /// Mirrors one version of a `hashicorp` provider of registry `host` below `/p/`, with the archive on another server.
    pub fn mirror(
        &self,
        host: &str,
        name: &str,
        (version, program): (&str, &Path),
        archives: &Self,
    ) -> Result<()> {
        let zip = zipped(
            &format!("terraform-provider-{name}_v{version}"),
            &std::fs::read(program)?,
        )?;
        archives.put("/provider.zip", "application/zip", zip);
        let put = |file: &str, value: Value| {
            self.put(
                &format!("/p/{host}/hashicorp/{name}/{file}"),
                "application/json",
                value.to_string().into_bytes(),
            );
        };
        put("index.json", json!({"versions": {version: {}}}));
        let archive = json!({"url": archives.url("/provider.zip")});
        put(
            &format!("{version}.json"),
            json!({"archives": {format!("linux_{}", architecture()): archive}}),
        );
        Ok(())
    }

    /// The path of every request, in order, and its credentials.
    pub fn asked(&self) -> Vec<(String, Option<String>)> {
        self.shared().asked.clone()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(State(app): State<App>, request: Request) -> Response<Body> {
    app.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .answer(request.uri().path(), request.headers())
}

/// A zip archive of one file.
fn zipped(name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file(name, SimpleFileOptions::default().unix_permissions(0o755))?;
    zip.write_all(bytes)?;
    Ok(zip.finish()?.into_inner())
}
