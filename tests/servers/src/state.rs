//! A server for Terraform's `http` backend below `/state/`. It stores every version, and records every lock, write and unlock in a ledger.
//! `POST /ledger` appends entries of tools, because a tool in a pod cannot write to a file of the host; it returns an [`Ack`](ledger::Ack)
//! once the entry is stored.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri};
use serde_json::{Value, json};

use super::listener::Listener;
use ledger::{BY_HAND, Entry, Ledger, what};

pub use ledger::LockInfo;

/// Limit of a state, in bytes.
const STATE_BYTES: usize = 64 << 20;

/// A running state server; drop closes it.
#[derive(Debug)]
pub struct StateServer {
    app: App,
    listener: Listener,
}

#[derive(Clone, Debug, Default)]
struct App {
    /// By path.
    states: Arc<Mutex<BTreeMap<String, Stored>>>,
    ledger: Ledger,
}

#[derive(Debug, Default)]
struct Stored {
    versions: Vec<String>,
    lock: Option<LockInfo>,
    /// Number of further writes to answer with 500 without writing.
    failing_writes: usize,
}

impl StateServer {
    /// Listens on `bind` (port 0 selects a free port); the ledger is in memory.
    pub async fn start(bind: SocketAddr) -> anyhow::Result<Self> {
        let app = App::default();
        let router = Router::new()
            .fallback(serve)
            .layer(DefaultBodyLimit::max(STATE_BYTES))
            .with_state(app.clone());
        Ok(Self {
            app,
            listener: Listener::start(bind, router, None).await?,
        })
    }

    /// The URL of a state, for all methods.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/state/{path}", self.listener.addr())
    }

    /// The URL for ledger entries of tools.
    pub fn ledger_url(&self) -> String {
        format!("http://{}/ledger", self.listener.addr())
    }

    /// The configuration of an `http` backend for a state, with locking.
    pub fn backend_config(&self, path: &str) -> Value {
        let url = self.url(path);
        json!({"address": url, "lock_address": url, "unlock_address": url, "lock_method": "LOCK", "unlock_method": "UNLOCK"})
    }

    /// Every version of a state, oldest first.
    pub fn versions(&self, path: &str) -> Vec<Value> {
        self.app.with(path, |state| {
            state
                .versions
                .iter()
                .map(|text| serde_json::from_str(text).unwrap_or_default())
                .collect()
        })
    }

    /// The newest state; `None` if it was never written.
    pub fn current(&self, path: &str) -> Option<Value> {
        self.versions(path).pop()
    }

    /// The newest version of each state below a path, unchanged.
    pub fn all(&self, below: &str) -> Vec<String> {
        let states = self
            .app
            .states
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        states
            .iter()
            .filter(|(path, _)| path.starts_with(below))
            .filter_map(|(_, state)| state.versions.last().cloned())
            .collect()
    }

    /// Writes the version before the newest one again, as a person does who restores a copy.
    pub fn restore(&self, path: &str) {
        self.app.with(path, |state| {
            let before = state.versions.iter().rev().nth(1).cloned();
            state.versions.extend(before);
        });
    }

    pub fn lock(&self, path: &str) -> Option<LockInfo> {
        self.app.with(path, |state| state.lock.clone())
    }

    /// Takes the lock of a state as someone else; false if it is held.
    pub fn hold_lock(&self, path: &str, info: LockInfo) -> bool {
        self.app.lock(path, info).0 == StatusCode::OK
    }

    /// Releases a lock of any holder, like `force-unlock`; false if none was held.
    pub fn force_unlock(&self, path: &str) -> bool {
        let by_hand = |held: LockInfo| LockInfo {
            id: held.id,
            who: BY_HAND.to_owned(),
            ..LockInfo::default()
        };
        self.lock(path)
            .is_some_and(|held| self.app.unlock(path, &by_hand(held)).0 == StatusCode::OK)
    }

    /// Makes the next `times` writes of a state fail without an effect.
    pub fn fail_writes(&self, path: &str, times: usize) {
        self.app.with(path, |state| state.failing_writes = times);
    }

    /// Records that a pod has ended, of a test whose states are below that path.
    pub fn note_gone(&self, path: &str, pod: &str) {
        self.app
            .note(BY_HAND, what::MARK, json!({"path": path, "gone": pod}));
    }

    /// All entries so far: of states, and of tools.
    pub fn ledger(&self) -> Vec<Entry> {
        self.app.ledger.entries()
    }
}

type Answer = (StatusCode, String);

impl App {
    fn with<T>(&self, path: &str, act: impl FnOnce(&mut Stored) -> T) -> T {
        act(self
            .states
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(path.to_owned())
            .or_default())
    }

    fn note(&self, who: &str, event: &str, detail: Value) {
        // Only the host, so that entries of a pod's lock and of its tool have the same name.
        let host = who.rsplit_once('@').map_or(who, |(_, host)| host);
        self.ledger.append(Entry::new(host, event, detail));
    }

    fn read(&self, path: &str) -> Answer {
        let newest = self.with(path, |state| state.versions.last().cloned());
        newest.map_or((StatusCode::NOT_FOUND, String::new()), |state| {
            (StatusCode::OK, state)
        })
    }

    fn write(&self, path: &str, id: Option<&str>, body: String) -> Answer {
        self.with(path, |state| {
            if state.failing_writes > 0 {
                state.failing_writes -= 1;
                return (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "failed because a test asked for it".to_owned(),
                );
            }
            let held = state.lock.as_ref();
            let (who, is_holder) = (
                held.map_or("", |lock| &lock.who),
                held.map(|lock| lock.id.as_str()) == id,
            );
            self.note(
                who,
                if is_holder {
                    what::WRITE
                } else {
                    what::WRITE_REFUSED
                },
                json!({"path": path, "id": id}),
            );
            if !is_holder {
                return refused(held);
            }
            state.versions.push(body);
            (StatusCode::OK, String::new())
        })
    }

    fn lock(&self, path: &str, info: LockInfo) -> Answer {
        self.with(path, |state| {
            // A client that did not get the reply retries with the same id.
            let is_free = state.lock.as_ref().is_none_or(|held| held.id == info.id);
            self.note(
                &info.who,
                if is_free {
                    what::LOCK
                } else {
                    what::LOCK_REFUSED
                },
                detail(path, &info),
            );
            if !is_free {
                return refused(state.lock.as_ref());
            }
            state.lock = Some(info);
            (StatusCode::OK, String::new())
        })
    }

    /// Releases the lock for its id. A request without id is Terraform's `force-unlock`; OpenTofu's sends only the id.
    fn unlock(&self, path: &str, info: &LockInfo) -> Answer {
        self.with(path, |state| match &state.lock {
            Some(held) if held.id == info.id || info.id.is_empty() => {
                self.note(&info.who, what::UNLOCK, detail(path, held));
                state.lock = None;
                (StatusCode::OK, String::new())
            }
            held => {
                self.note(&info.who, what::UNLOCK_REFUSED, detail(path, info));
                refused(held.as_ref())
            }
        })
    }
}

fn detail(path: &str, lock: &LockInfo) -> Value {
    json!({"path": path, "id": lock.id, "operation": lock.operation, "holder": lock.who})
}

fn refused(held: Option<&LockInfo>) -> Answer {
    held.map_or(
        (StatusCode::CONFLICT, "the state is not locked".to_owned()),
        |held| (StatusCode::LOCKED, json!(held).to_string()),
    )
}

async fn serve(State(app): State<App>, method: Method, uri: Uri, body: String) -> Answer {
    if uri.path() == "/ledger" {
        return match serde_json::from_str(&body) {
            Ok(entry) => (StatusCode::OK, json!(app.ledger.append(entry)).to_string()),
            Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
        };
    }
    let Some(path) = uri.path().strip_prefix("/state/") else {
        return (StatusCode::NOT_FOUND, String::new());
    };
    // Ids are UUIDs, so they need no escapes.
    let id = uri.query().and_then(|query| query.strip_prefix("ID="));
    let info: LockInfo = serde_json::from_str(&body).unwrap_or_default();
    match method.as_str() {
        "GET" => app.read(path),
        "POST" => app.write(path, id, body),
        "LOCK" if !info.id.is_empty() => app.lock(path, info),
        "UNLOCK" => app.unlock(path, &info),
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            "GET, POST, LOCK with an ID, or UNLOCK".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scripted_tool::http::{Answer, request};

    async fn server() -> StateServer {
        StateServer::start("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap()
    }

    async fn ask(method: &'static str, url: &str, body: Value) -> Answer {
        let (url, body) = (
            url.to_owned(),
            if body.is_null() {
                String::new()
            } else {
                body.to_string()
            },
        );
        tokio::task::spawn_blocking(move || request(method, &url, body.as_bytes()).unwrap())
            .await
            .unwrap()
    }

    fn lock(id: &str) -> Value {
        json!(LockInfo::stranger(id, &format!("user@{id}")))
    }

    #[tokio::test]
    async fn only_the_holder_writes_and_unlocks() {
        let server = server().await;
        let url = server.url("team/a");
        assert_eq!(ask("GET", &url, Value::Null).await.status, 404);
        assert_eq!(ask("LOCK", &url, lock("one")).await.status, 200);
        assert_eq!(
            ask("LOCK", &url, lock("one")).await.status,
            200,
            "retried after a lost reply"
        );
        let refused = ask("LOCK", &url, lock("two")).await;
        assert_eq!(refused.status, 423);
        assert_eq!(
            serde_json::from_slice::<LockInfo>(&refused.body)
                .unwrap()
                .who,
            "user@one"
        );
        assert_eq!(
            ask("POST", &format!("{url}?ID=two"), json!({"serial": 1}))
                .await
                .status,
            423
        );
        assert_eq!(ask("POST", &url, json!({"serial": 1})).await.status, 423);
        assert_eq!(
            ask("POST", &format!("{url}?ID=one"), json!({"serial": 1}))
                .await
                .status,
            200
        );
        assert_eq!(ask("UNLOCK", &url, lock("two")).await.status, 423);
        assert_eq!(server.lock("team/a").unwrap().id, "one");
        assert_eq!(
            ask("LOCK", &url, json!({"Who": "nobody"})).await.status,
            405
        );
        assert_eq!(ask("UNLOCK", &url, lock("one")).await.status, 200);
        assert_eq!(
            ask("POST", &format!("{url}?ID=one"), json!({"serial": 2}))
                .await
                .status,
            409,
            "the lock is gone"
        );
        assert_eq!(ask("GET", &url, Value::Null).await.body, b"{\"serial\":1}");
        assert_eq!(
            (server.versions("team/a").len(), server.current("b")),
            (1, None)
        );
        let told: Vec<String> = server
            .ledger()
            .into_iter()
            .map(|entry| format!("{} {}", entry.who, entry.what))
            .collect();
        let (one, two) = ("one write_refused", "two unlock_refused");
        assert_eq!(
            told,
            [
                "one lock",
                "one lock",
                "two lock_refused",
                one,
                one,
                "one write",
                two,
                "one unlock",
                " write_refused"
            ]
        );
        assert_eq!(ledger::violations(&server.ledger()).len(), 4);
    }

    #[tokio::test]
    async fn forced_unlock_is_done_and_recorded() {
        let server = server().await;
        let url = server.url("a");
        // Terraform's `force-unlock` sends no body, OpenTofu's only the id.
        for body in [Value::Null, json!({"ID": "one"})] {
            assert_eq!(
                ask("LOCK", &url, json!({"ID": "one", "Who": "user@one"}))
                    .await
                    .status,
                200
            );
            assert_eq!(
                server.lock("a").unwrap().created,
                "0001-01-01T00:00:00Z",
                "an empty time cannot be read by the tools"
            );
            assert_eq!(ask("UNLOCK", &url, body).await.status, 200);
            assert_eq!(server.lock("a"), None);
        }
        assert_eq!(ledger::violations(&server.ledger()).len(), 2);
    }
}
