//! A server for Terraform's `http` backend: `GET`, `POST`, `DELETE`, `LOCK` and `UNLOCK` below `/state/`, every version kept,
//! every lock, write and unlock in a ledger. `POST /ledger` appends lines of others, since a tool in a pod cannot write to
//! a file of the host; the answer, [`Ack`](ledger::Ack), is sent once the line is kept.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode, Uri};
use serde_json::{Value, json};

use super::listener::Listener;
pub use super::state_store::Version;
use super::state_store::{Outcome, Store};
use ledger::{BY_HAND, Entry, Ledger};

pub use ledger::LockInfo;

const STATE_BYTES: usize = 64 << 20;

/// A running state server; dropping it closes it.
#[derive(Debug)]
pub struct StateServer {
    app: App,
    listener: Listener,
}

#[derive(Clone, Debug)]
struct App {
    store: Arc<Mutex<Store>>,
    ledger: Ledger,
}

impl StateServer {
    /// Listens on `bind` (port 0 takes any free one); the ledger is in memory.
    pub async fn start(bind: SocketAddr) -> anyhow::Result<Self> {
        let ledger = Ledger::default();
        let store = Store { states: std::collections::BTreeMap::default(), ledger: ledger.clone() };
        let app = App { store: Arc::new(Mutex::new(store)), ledger };
        let router = Router::new().fallback(serve).with_state(app.clone());
        Ok(Self { app, listener: Listener::start(bind, router, None).await? })
    }

    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// The URL of a state, for all five methods.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/state/{path}", self.addr())
    }

    /// Where tools post their ledger lines.
    pub fn ledger_url(&self) -> String {
        format!("http://{}/ledger", self.addr())
    }

    /// The configuration of an `http` backend for a state, with locking.
    pub fn backend_config(&self, path: &str) -> Value {
        let url = self.url(path);
        json!({"address": url, "lock_address": url, "unlock_address": url, "lock_method": "LOCK", "unlock_method": "UNLOCK"})
    }

    /// Every version of a state, oldest first.
    pub fn versions(&self, path: &str) -> Vec<Version> {
        self.app.store().of(path).versions.clone()
    }

    /// The newest state; none if it was never written or is deleted.
    pub fn current(&self, path: &str) -> Option<Value> {
        self.versions(path).last().filter(|version| version.body.is_some()).map(Version::json)
    }

    /// The newest of each state below a path, as it was written.
    pub fn all(&self, below: &str) -> Vec<String> {
        let store = self.app.store();
        let newest =
            store.states.iter().filter(|(path, _)| path.starts_with(below)).filter_map(|(_, state)| state.versions.last());
        newest.map(|version| version.json().to_string()).collect()
    }

    pub fn lock(&self, path: &str) -> Option<LockInfo> {
        self.app.store().of(path).lock.clone()
    }

    /// Takes the lock of a state as someone else would; false if it is held.
    pub fn hold_lock(&self, path: &str, info: LockInfo) -> bool {
        self.app.store().take_lock(path, info) == Outcome::Done
    }

    /// Releases a lock whoever holds it, as a person does with `force-unlock`; false if none was held.
    pub fn force_unlock(&self, path: &str) -> bool {
        let mut store = self.app.store();
        let Some(held) = store.of(path).lock.clone() else { return false };
        store.release(path, &LockInfo { id: held.id, who: BY_HAND.to_owned(), ..LockInfo::default() }) == Outcome::Done
    }

    /// Writes a state under whatever lock is held, as someone else would.
    pub fn write(&self, path: &str, state: &Value) {
        let mut store = self.app.store();
        let held = store.of(path).lock.as_ref().map(|lock| lock.id.clone());
        store.write(path, held.as_deref(), Some(state.to_string().into_bytes()));
    }

    /// Makes so many writes of a state fail from now on, without writing.
    pub fn fail_writes(&self, path: &str, times: usize) {
        self.app.store().of(path).failing_writes = times;
    }

    /// Notes that the pod of that name has ended, of a test whose states are below that path.
    pub fn note_gone(&self, path: &str, pod: &str) {
        self.app.ledger.append(Entry::new(BY_HAND, ledger::what::MARK, json!({"path": path, "gone": pod})));
    }

    /// Everything in the ledger so far: what happened to states, and what tools posted.
    pub fn ledger(&self) -> Vec<Entry> {
        self.app.ledger.entries()
    }
}

impl App {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn state(&self, path: &str, request: Request) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = match axum::body::to_bytes(body, STATE_BYTES).await {
            Ok(body) => body,
            Err(error) => return plain(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let outcome = match head.method.as_str() {
            "GET" => self.store().read(path),
            "POST" | "PUT" => self.store().write(path, lock_id(&head.uri).as_deref(), Some(body.to_vec())),
            "DELETE" => self.store().write(path, None, None),
            method @ ("LOCK" | "UNLOCK") => match serde_json::from_slice::<LockInfo>(&body) {
                Ok(info) if !info.id.is_empty() && method == "LOCK" => self.store().take_lock(path, info),
                Ok(info) if !info.id.is_empty() => self.store().release(path, &info),
                Err(_) if body.is_empty() && method == "UNLOCK" => self.store().release(path, &LockInfo::default()),
                _ => return plain(StatusCode::BAD_REQUEST, "a lock needs its ID"),
            },
            _ => return plain(StatusCode::METHOD_NOT_ALLOWED, "GET, POST, DELETE, LOCK or UNLOCK"),
        };
        answer(outcome)
    }

    async fn ledger(&self, request: Request) -> Response<Body> {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap_or_default();
        let Ok(entry) = serde_json::from_slice::<Entry>(&body) else {
            return plain(StatusCode::BAD_REQUEST, "not an entry");
        };
        Response::new(Body::from(json!(self.ledger.append(entry)).to_string()))
    }
}

async fn serve(State(app): State<App>, request: Request) -> Response<Body> {
    let path = request.uri().path().to_owned();
    match path.strip_prefix("/state/") {
        Some(path) if !path.is_empty() => app.state(path, request).await,
        _ if path == "/ledger" => app.ledger(request).await,
        _ => plain(StatusCode::NOT_FOUND, "no such thing here"),
    }
}

/// The lock's id in `?ID=…`. Ids are UUIDs, so nothing in them is escaped.
fn lock_id(uri: &Uri) -> Option<String> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("ID=")).map(str::to_owned)
}

fn answer(outcome: Outcome) -> Response<Body> {
    match outcome {
        Outcome::Done => plain(StatusCode::OK, ""),
        Outcome::State(body) => Response::new(Body::from(body)),
        Outcome::NoState => plain(StatusCode::NOT_FOUND, ""),
        Outcome::HeldBy(held) => plain(StatusCode::LOCKED, &json!(held).to_string()),
        Outcome::WrongLock(held) => match *held {
            Some(held) => plain(StatusCode::LOCKED, &json!(held).to_string()),
            None => plain(StatusCode::CONFLICT, "the state is not locked"),
        },
        Outcome::Fault => plain(StatusCode::INTERNAL_SERVER_ERROR, "failed because a test asked for it"),
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(text.to_owned()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests;
