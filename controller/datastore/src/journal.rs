//! Journals: kept as logs are, compared with managed states for the controller, and read by the runs that recover from them.

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

/// What is said of a claimed attempt that left no journal.
const NOTHING: &str = "no journal was kept: the apply was cut off before the tool said anything, or while the datastore was away";

/// An attempt's journal, compared with the run's managed state. A state that is kept elsewhere, or does not open, is not compared.
///
/// # Errors
/// `Unavailable`, `Corrupt`, `KeyMissing` of the journal itself.
pub async fn compared(service: &Service, run: &RunKey, attempt: u32) -> Result<Journal, Problem> {
    let key = LogKey { run: run.clone(), attempt, phase: JOURNAL };
    let index = service.logs.index(&key).await?;
    if index.length == 0 {
        return Ok(Journal { summary: NOTHING.to_owned(), ..Journal::default() });
    }
    let replay = replay(service, &key, &index).await?;
    if !replay.head().is_some_and(|head| head.managed) {
        return Ok(uncompared(&replay, "it is kept elsewhere; a recovery run reads it"));
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

/// The run with that UID, read live, and where its managed state is, if it has one.
///
/// # Errors
/// `NotFound`, `Unavailable`.
pub async fn state_of(service: &Service, run: &RunKey) -> Result<(Arc<RunView>, StateKey), Problem> {
    let gone = || not_found("the run is gone");
    let (named, _) = service.sealed.read::<Named>(&run.name_record()).await?.ok_or_else(gone)?;
    let view = service.lookup.find(run.namespace(), &named.name).await?;
    let view = view.filter(|view| view.uid == run.uid()).ok_or_else(gone)?;
    let key = StateKey::new(run.namespace(), view.state.clone())?;
    Ok((view, key))
}

/// The objects of the managed state of the run with that UID.
async fn managed_state(service: &Service, run: &RunKey) -> Result<StateFacts, Problem> {
    let (_, key) = state_of(service, run).await?;
    match service.states.get(&key, None).await? {
        None => Ok(StateFacts::default()),
        Some((_, content)) => read_state(content, state::read).await,
    }
}

/// Reads a state as it comes: it may be large, and little of it is kept.
///
/// # Errors
/// Those of the content; `NotFound` for one that is no state which can be read.
pub async fn read_state<T: Send + 'static>(
    mut content: ByteStream,
    read: fn(Pieces) -> Result<T, state::StateError>,
) -> Result<T, Problem> {
    let (pieces, waiting) = mpsc::channel(2);
    let reading = tokio::task::spawn_blocking(move || read(Pieces { waiting, piece: Bytes::new() }));
    let mut failed = None;
    while let Some(piece) = content.next().await {
        match piece {
            Ok(piece) => {
                // Whoever stopped reading says why below.
                if pieces.send(Ok(piece)).await.is_err() {
                    break;
                }
            }
            Err(problem) => {
                // A document that only ends here would otherwise look whole.
                let _ = pieces.send(Err(io::Error::other(problem.message.clone()))).await;
                failed = Some(problem);
                break;
            }
        }
    }
    drop(pieces);
    let read = reading.await.map_err(|error| unavailable("the reader of the state", &error))?;
    match failed {
        Some(problem) => Err(problem),
        None => read.map_err(|error| not_found(error.to_string())),
    }
}

/// Pieces of a stream, read by a thread.
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

/// The journal of the run that `run`'s own spec names: no request names another's, so none can ask for it.
///
/// # Errors
/// `Forbidden` when it names none; `NotFound` when there is no such run or nothing of it; `NotEnded`; `Unavailable`.
pub async fn of_recovered(service: &Service, run: &RunView) -> Result<Response, Problem> {
    let name = run.recovers.as_deref().ok_or_else(|| problem(FORBIDDEN, "this run recovers from none"))?;
    let from = service.lookup.live(&run.namespace, name).await?;
    if !from.terminal {
        return Err(problem(NOT_ENDED, format!("run {name} has not ended")));
    }
    let claim = from.claim.as_ref().ok_or_else(|| not_found(format!("run {name} applied nothing")))?;
    let key = LogKey { run: RunKey::new(&from.namespace, &from.uid)?, attempt: claim.attempt, phase: JOURNAL };
    let index = service.logs.index(&key).await?;
    if index.length == 0 {
        return Err(not_found(format!("no journal of run {name} is kept")));
    }
    let mut response = Response::new(Body::from_stream(service.logs.read(&key, &index, 0)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}
