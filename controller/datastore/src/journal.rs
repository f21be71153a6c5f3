//! Journals: stored like logs, compared with managed states for the controller, and read by recovery runs.

use std::{
    io::{self, Read},
    sync::Arc,
};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::{Buf as _, Bytes};
use futures::StreamExt as _;
use tokio::sync::mpsc;

use crds::{
    Journal,
    apply_log::{Comparison, Replay, StateFacts, state, uncompared},
    datastore::{FORBIDDEN, JOURNAL, NOT_ENDED, Problem},
};
use serving::problem::{not_found, problem, unavailable};

use crate::{
    blob::store::ByteStream,
    cluster::RunView,
    names::{LogKey, RunKey, StateKey},
    objects::{Named, log::Index},
    service::Service,
};

/// The summary for a claimed attempt without a journal.
const NOTHING: &str = "no journal is stored: the apply ended before the tool printed anything, or while the datastore was unreachable";

/// The journal of an attempt, compared with the run's managed state. A state outside the datastore, or one that cannot
/// be decrypted, is not compared.
///
/// # Errors
/// `Unavailable`, `Corrupt`, `KeyMissing`, all for the journal itself.
pub async fn compared(service: &Service, run: &RunKey, attempt: u32) -> Result<Journal, Problem> {
    let key = LogKey {
        run: run.clone(),
        attempt,
        phase: JOURNAL,
    };
    let index = service.logs.index(&key).await?;
    if index.length == 0 {
        return Ok(Journal {
            summary: NOTHING.to_owned(),
            ..Journal::default()
        });
    }
    let replay = replay(service, &key, &index).await?;
    if !replay.head().is_some_and(|head| head.managed) {
        return Ok(uncompared(
            &replay,
            "the state is stored elsewhere; a recovery run reads it",
        ));
    }
    match managed_state(service, run).await {
        Ok(facts) => Ok(Comparison::of(&replay, &facts).status()),
        Err(problem) if problem.reason == crds::datastore::UNAVAILABLE => Err(problem),
        Err(problem) => Ok(uncompared(&replay, &problem.message)),
    }
}

async fn replay(service: &Service, key: &LogKey, index: &Index) -> Result<Replay, Problem> {
    let mut replay = Replay::default();
    let mut pieces = service.logs.read(key, index, 0);
    while let Some(piece) = pieces.next().await {
        replay.feed(&piece?);
    }
    replay.finish();
    Ok(replay)
}

/// Reads the run with this UID live and returns it with the key of its managed state.
///
/// # Errors
/// `NotFound`, `Unavailable`.
pub async fn state_of(
    service: &Service,
    run: &RunKey,
) -> Result<(Arc<RunView>, StateKey), Problem> {
    let gone = || not_found("the run is gone");
    let (named, _) = service
        .sealed
        .read::<Named>(&run.name_record())
        .await?
        .ok_or_else(gone)?;
    let view = service.lookup.find(run.namespace(), &named.name).await?;
    let view = view.filter(|view| view.uid == run.uid()).ok_or_else(gone)?;
    let key = StateKey::new(run.namespace(), view.state.clone())?;
    Ok((view, key))
}

/// The objects in the run's managed state.
async fn managed_state(service: &Service, run: &RunKey) -> Result<StateFacts, Problem> {
    let (_, key) = state_of(service, run).await?;
    match service.states.get(&key, None).await? {
        None => Ok(StateFacts::default()),
        Some((_, content)) => read_state(content, state::read).await,
    }
}

/// Parses a state while it streams, because it may be large and little of it is needed.
///
/// # Errors
/// Those of the stream; `NotFound` when the content is not a readable state.
pub async fn read_state<T: Send + 'static>(
    mut content: ByteStream,
    read: fn(Pieces) -> Result<T, state::StateError>,
) -> Result<T, Problem> {
    let (pieces, waiting) = mpsc::channel(2);
    let reading = tokio::task::spawn_blocking(move || {
        read(Pieces {
            waiting,
            piece: Bytes::new(),
        })
    });
    let mut failed = None;
    while let Some(piece) = content.next().await {
        match piece {
            Ok(piece) => {
                // The parser has stopped; it returns its error below.
                if pieces.send(Ok(piece)).await.is_err() {
                    break;
                }
            }
            Err(problem) => {
                // Pass the error on. Otherwise a document that ends exactly here would look complete.
                let _ = pieces
                    .send(Err(io::Error::other(problem.message.clone())))
                    .await;
                failed = Some(problem);
                break;
            }
        }
    }
    drop(pieces);
    let read = reading
        .await
        .map_err(|error| unavailable("the reader of the state", &error))?;
    match failed {
        Some(problem) => Err(problem),
        None => read.map_err(|error| not_found(error.to_string())),
    }
}

/// Chunks of a stream for a reading thread.
pub struct Pieces {
    waiting: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.waiting.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

/// The journal of the run in `run`'s own spec. Requests contain no run name, so a pod cannot ask for another journal.
///
/// # Errors
/// `Forbidden` when the spec has none; `NotFound` when the run or its journal does not exist; `NotEnded`;
/// `Unavailable`.
pub async fn of_recovered(service: &Service, run: &RunView) -> Result<Response, Problem> {
    let name = run
        .recovers
        .as_deref()
        .ok_or_else(|| problem(FORBIDDEN, "this run recovers from none"))?;
    let from = service.lookup.live(&run.namespace, name).await?;
    if !from.terminal {
        return Err(problem(NOT_ENDED, format!("run {name} has not ended")));
    }
    let claim = from
        .claim
        .as_ref()
        .ok_or_else(|| not_found(format!("run {name} applied nothing")))?;
    let key = LogKey {
        run: RunKey::new(&from.namespace, &from.uid)?,
        attempt: claim.attempt,
        phase: JOURNAL,
    };
    let index = service.logs.index(&key).await?;
    if index.length == 0 {
        return Err(not_found(format!("no journal of run {name} is stored")));
    }
    let mut response = Response::new(Body::from_stream(service.logs.read(&key, &index, 0)));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    Ok(response)
}
