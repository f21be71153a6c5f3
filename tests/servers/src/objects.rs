//! Texts at URLs: objects of the provider `object`, which tests can change by hand.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::get,
};

use super::listener::Listener;

type Texts = Arc<Mutex<BTreeMap<String, String>>>;

/// An in-memory server of texts: `GET`, `PUT` and `DELETE /objects/NAME`.
#[derive(Debug)]
pub struct ObjectServer {
    texts: Texts,
    listener: Listener,
}

impl ObjectServer {
    /// Serves on `bind`; port 0 selects a free port.
    pub async fn start(bind: SocketAddr) -> anyhow::Result<Self> {
        let texts = Texts::default();
        let router = Router::new()
            .route("/objects/{*name}", get(read).put(write).delete(remove))
            .with_state(texts.clone());
        Ok(Self {
            texts,
            listener: Listener::start(bind, router, None).await?,
        })
    }

    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    pub fn url(&self, name: &str) -> String {
        format!("http://{}/objects/{name}", self.addr())
    }

    /// The text of a name, if any.
    pub fn get(&self, name: &str) -> Option<String> {
        held(&self.texts).get(name).cloned()
    }

    /// Changes a text by hand.
    pub fn put(&self, name: &str, text: &str) {
        held(&self.texts).insert(name.to_owned(), text.to_owned());
    }
}

fn held(texts: &Texts) -> std::sync::MutexGuard<'_, BTreeMap<String, String>> {
    texts.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read(State(texts): State<Texts>, Path(name): Path<String>) -> Result<String, StatusCode> {
    held(&texts)
        .get(&name)
        .cloned()
        .ok_or(StatusCode::NOT_FOUND)
}

async fn write(State(texts): State<Texts>, Path(name): Path<String>, text: String) -> StatusCode {
    held(&texts).insert(name, text);
    StatusCode::NO_CONTENT
}

async fn remove(State(texts): State<Texts>, Path(name): Path<String>) -> StatusCode {
    if held(&texts).remove(&name).is_some() {
        StatusCode::NO_CONTENT
    } else {
        StatusCode::NOT_FOUND
    }
}
