//! Serves a managed state to the tool on the pod's loopback, as an `http` backend.
//!
//! The tool has no token of its own, since it reads credentials once, and a projected token expires after an hour. The agent adds
//! its current token, and retries while the datastore is unavailable. A write is stored on disk until it is acknowledged.
//!
//! Every process of the pod can connect. The server accepts only the tool's own process, as identified by `/proc`.

use std::{
    fmt::Write as _,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, RawQuery, Request, State},
    http::{Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::any,
};
use crds::{
    StateLock,
    datastore::{
        CORRUPT, FORMER_NAMESPACE, KEY_MISSING, LOCKED, MAX_SMALL, MAX_STATE, Problem, STATE_PORT,
        StateId, hex_digest,
    },
    text::clip,
};
use futures::StreamExt as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{fs::File, io::AsyncWriteExt as _, net::TcpListener, task::AbortHandle};

use super::{Client, RequestError, client::put_state, retry_for};
use crate::{
    guard,
    process::{Children, Log, is_of_tool},
};

/// Time limit for retries of a read or a lock. The tool itself has no timeout here.
const READ_PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for retries of a write. After it, the tool writes the state to the pod's own disk.
const WRITE_PATIENCE: Duration = Duration::from_secs(600);

/// Attempts to find the peer's process in `/proc` before a request is rejected. Processes and sockets may appear between two reads.
const LOOKS: u32 = 3;
/// Pause between two attempts.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The server. It stops when this value is dropped.
#[derive(Debug)]
pub struct StateServer {
    task: AbortHandle,
    told: Arc<Told>,
}

/// The datastore's answers that the tools do not report.
#[derive(Debug, Default)]
struct Told {
    /// The lock's holder, as last reported.
    holder: Mutex<Value>,
    /// Why the datastore refuses the state.
    refusal: Mutex<Option<Problem>>,
}

impl StateServer {
    /// The holder of the lock with this ID, from the datastore's refusal. The tools report only the ID.
    pub fn holder(&self, id: &str) -> Option<StateLock> {
        let info = guard(&self.told.holder).clone();
        let text =
            |name: &str| Some(clip(info[name].as_str()?, 256)).filter(|text| !text.is_empty());
        (info["ID"].as_str() == Some(id)).then_some(())?;
        Some(StateLock {
            id: clip(id, 128),
            who: text("Who")?,
            operation: text("Operation"),
            created: text("Created"),
        })
    }

    /// Why the datastore refuses the state. The tools do not report it.
    pub fn refusal(&self) -> Option<Problem> {
        guard(&self.told.refusal).clone()
    }
}

impl Drop for StateServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts requests of the tool only.
struct PeerCheck {
    children: Children,
    here: SocketAddr,
    log: Log,
    /// A refusal was logged. Only the first is, since a refused process can retry without limit.
    told: AtomicBool,
}

impl PeerCheck {
    async fn lets_in(&self, peer: SocketAddr) -> bool {
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            let (children, here) = (self.children.clone(), self.here);
            if tokio::task::spawn_blocking(move || is_of_tool(&children, peer, here))
                .await
                .unwrap_or(false)
            {
                return true;
            }
        }
        false
    }

    /// Puts the check before the routes. It checks each request, not each connection, since a connection may be passed to another
    /// process.
    fn before(self, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(
            Arc::new(self),
            only_the_tool,
        ))
    }
}

async fn only_the_tool(
    State(check): State<Arc<PeerCheck>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    if check.lets_in(peer).await {
        return next.run(request).await;
    }
    if !check.told.swap(true, Ordering::Relaxed) {
        check.log.line("pawl: a process that is not the tool's own asked for the managed state and was refused").await;
    }
    StatusCode::FORBIDDEN.into_response()
}

struct Context {
    client: Client,
    dir: PathBuf,
    writes: AtomicU64,
    told: Arc<Told>,
}

impl Context {
    /// Remembers a refusal that concerns the state itself, not this request.
    fn note(&self, error: &RequestError) {
        if let RequestError::Refused(problem) = error
            && [FORMER_NAMESPACE, KEY_MISSING, CORRUPT].contains(&problem.reason.as_str())
        {
            *guard(&self.told.refusal) = Some(problem.clone());
        }
    }
}

/// The backend configuration for a state, in Terraform's JSON syntax.
pub fn backend(namespace: &str, id: &StateId) -> Value {
    let place = format!("{namespace}/{}/{}", id.stack, segment(&id.workspace));
    let state = format!("http://127.0.0.1:{STATE_PORT}/state/{place}");
    let lock = format!("http://127.0.0.1:{STATE_PORT}/lock/{place}");
    json!({"terraform": {"backend": {"http": {
        "address": state, "update_method": "PUT",
        "lock_address": lock, "lock_method": "PUT",
        "unlock_address": lock, "unlock_method": "DELETE",
        // The agent retries itself, with its own time limits.
        "retry_max": 0,
    }}}})
}

/// A name as one path segment. A name of dots only would be taken for a directory, so it is percent-encoded.
fn segment(name: &str) -> String {
    if name.chars().all(|c| c == '.') {
        return name.bytes().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "%{byte:02X}");
            text
        });
    }
    name.to_owned()
}

/// Starts the server for the tool among `children`. States to write are buffered below `dir`.
///
/// # Errors
/// The port is in use, or the directory cannot be created.
pub async fn serve(
    client: Client,
    dir: &Path,
    children: Children,
    log: Log,
) -> io::Result<StateServer> {
    tokio::fs::create_dir_all(dir).await?;
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, STATE_PORT))).await?;
    let told = Arc::<Told>::default();
    let (dir, writes) = (dir.to_owned(), AtomicU64::new(0));
    let context = Arc::new(Context {
        client,
        dir,
        writes,
        told: told.clone(),
    });
    let routes = Router::new()
        .route("/state/{*place}", any(state))
        .route("/lock/{*place}", any(lock))
        .with_state(context);
    let check = PeerCheck {
        children,
        here: listener.local_addr()?,
        log,
        told: AtomicBool::new(false),
    };
    let service = check
        .before(routes)
        .into_make_service_with_connect_info::<SocketAddr>();
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, service).await {
            tracing::error!(%error, "the way to the managed state ended");
        }
    });
    Ok(StateServer {
        task: task.abort_handle(),
        told,
    })
}

async fn state(
    State(context): State<Arc<Context>>,
    RawQuery(query): RawQuery,
    method: Method,
    body: Body,
) -> Response {
    match method {
        Method::GET => match retry_for(READ_PATIENCE, || context.client.state()).await {
            Ok(found) => {
                *guard(&context.told.refusal) = None;
                found.map_or_else(
                    || StatusCode::NO_CONTENT.into_response(),
                    |found| Body::from_stream(found.bytes_stream()).into_response(),
                )
            }
            Err(error) => {
                context.note(&error);
                said(&error)
            }
        },
        Method::PUT => {
            let id = query
                .as_deref()
                .unwrap_or_default()
                .split('&')
                .find_map(|pair| pair.strip_prefix("ID="))
                .unwrap_or_default();
            let number = context.writes.fetch_add(1, Ordering::Relaxed);
            let path = context.dir.join(format!("{number}.tfstate"));
            let kept = keep(body, &path).await;
            let answer = match kept {
                Ok(digest) => match retry_for(WRITE_PATIENCE, || {
                    put_state(&context.client, id, &path, &digest)
                })
                .await
                {
                    Ok(()) => StatusCode::OK.into_response(),
                    Err(error) => said(&error),
                },
                Err(error) => (StatusCode::INSUFFICIENT_STORAGE, error.to_string()).into_response(),
            };
            let _ = tokio::fs::remove_file(&path).await;
            answer
        }
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// Writes a body to disk. Returns its digest.
async fn keep(body: Body, path: &Path) -> io::Result<String> {
    let mut options = tokio::fs::OpenOptions::new();
    let mut file: File = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .await?;
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(io::Error::other)?;
        size += chunk.len() as u64;
        if size > MAX_STATE {
            return Err(io::Error::other(format!(
                "a state of more than {} MiB is not kept",
                MAX_STATE >> 20
            )));
        }
        hasher.update(&chunk);
        file.write_all(&chunk).await?;
    }
    file.flush().await?;
    Ok(hex_digest(&hasher.finalize()))
}

async fn lock(State(context): State<Arc<Context>>, method: Method, body: Body) -> Response {
    let Ok(info) =
        axum::body::to_bytes(body, usize::try_from(MAX_SMALL).unwrap_or(usize::MAX)).await
    else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let done = match method {
        Method::PUT => retry_for(READ_PATIENCE, || context.client.lock(info.clone())).await,
        Method::DELETE => {
            let id = lock_id(&info);
            retry_for(WRITE_PATIENCE, || context.client.unlock(&id)).await
        }
        _ => return StatusCode::METHOD_NOT_ALLOWED.into_response(),
    };
    match done {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error) => {
            if let RequestError::Refused(Problem {
                holder: Some(holder),
                ..
            }) = &error
            {
                (**holder).clone_into(&mut guard(&context.told.holder));
            }
            context.note(&error);
            said(&error)
        }
    }
}

fn lock_id(info: &Bytes) -> String {
    let info: Value = serde_json::from_slice(info).unwrap_or_default();
    info["ID"].as_str().unwrap_or_default().to_owned()
}

/// The response to the tool. The tool parses 423 with the holder's lock info, and prints other texts.
fn said(error: &RequestError) -> Response {
    match error {
        RequestError::Refused(problem) if problem.reason == LOCKED => match &problem.holder {
            Some(holder) => (
                StatusCode::LOCKED,
                [(header::CONTENT_TYPE, "application/json")],
                holder.to_string(),
            )
                .into_response(),
            None => (StatusCode::CONFLICT, problem.message.clone()).into_response(),
        },
        RequestError::Refused(problem) => {
            (StatusCode::FORBIDDEN, problem.to_string()).into_response()
        }
        error => (StatusCode::SERVICE_UNAVAILABLE, error.why()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        own_lines::tests::Kept,
        process::{self, LogSink, Role, bash},
    };

    impl LogSink for Kept {}

    /// A log and its output.
    fn kept() -> (Log, Arc<Mutex<Vec<u8>>>) {
        let kept = Kept::default();
        (Log::to(kept.clone()), kept.0)
    }

    #[test]
    fn backend_address_contains_the_state() {
        let id = |workspace: &str| StateId {
            stack: "net-abcde".into(),
            workspace: workspace.into(),
        };
        let of = |workspace| {
            backend("team", &id(workspace))["terraform"]["backend"]["http"]["address"].clone()
        };
        assert_eq!(
            of("prod"),
            "http://127.0.0.1:9417/state/team/net-abcde/prod"
        );
        assert_eq!(
            of(".."),
            "http://127.0.0.1:9417/state/team/net-abcde/%2E%2E"
        );
    }

    #[tokio::test]
    async fn other_processes_get_no_state() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let here = listener.local_addr().unwrap();
        let (children, (log, written)) = (Children::default(), kept());
        let check = PeerCheck {
            children: children.clone(),
            here,
            log: log.clone(),
            told: AtomicBool::new(false),
        };
        let routes = Router::new().route("/state/{*place}", any(|| async { "the state" }));
        let service = check
            .before(routes)
            .into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async move { axum::serve(listener, service).await });
        let ask = |path: &str| {
            let port = here.port();
            format!(
                "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET {path} HTTP/1.0\r\n\r\n' >&3; while read -r -u 3 l; do echo \"$l\"; done"
            )
        };
        let run = async |script: String| {
            let mut heard = process::Kept::default();
            children
                .run(&bash(&script, Role::Tool), &mut heard)
                .await
                .unwrap();
            heard
                .0
                .into_iter()
                .map(|(_, line)| line.trim_end().to_owned())
                .collect::<Vec<_>>()
        };
        // The body has no line end, so `read` returns the head only.
        let answer = run(ask("/state/a/b/c")).await;
        assert!(
            answer[0].ends_with("200 OK") && answer.iter().any(|line| line == "content-length: 9"),
            "{answer:?}"
        );
        let mut refusals = Vec::new();
        for path in ["/state/a/b/c", "/lock/a/b/c", "/"] {
            // A child of the tool, such as a program that the tool runs.
            let quoted = ask(path).replace('\'', "'\\''");
            let mut answer = run(format!("bash -c '{quoted}'; true")).await;
            answer.retain(|line| !line.starts_with("date:"));
            assert!(
                answer[0].ends_with("403 Forbidden")
                    && answer.iter().any(|line| line == "content-length: 0"),
                "{answer:?}"
            );
            refusals.push(answer);
        }
        assert!(
            refusals.windows(2).all(|pair| pair[0] == pair[1]),
            "{refusals:?}"
        );
        log.flush(Duration::from_secs(5)).await;
        let said = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        server.abort();
    }

    #[tokio::test]
    async fn holder_is_named_only_for_that_lock() {
        let info = json!({"ID": "a-b", "Who": "pawl@net-2xbdf-a1", "Created": "2026-01-01T00:00:00Z", "Operation": ""});
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        let server = StateServer {
            task,
            told: Arc::new(Told {
                holder: Mutex::new(info),
                ..Told::default()
            }),
        };
        let holder = server.holder("a-b").unwrap();
        assert_eq!(
            (holder.who.as_str(), holder.operation),
            ("pawl@net-2xbdf-a1", None)
        );
        assert_eq!(server.holder("a-c"), None);
    }

    #[test]
    fn lock_is_released_by_its_id() {
        assert_eq!(
            lock_id(&Bytes::from_static(br#"{"ID":"a-b","Who":"x"}"#)),
            "a-b"
        );
        assert_eq!(lock_id(&Bytes::from_static(b"{")), "");
    }
}
