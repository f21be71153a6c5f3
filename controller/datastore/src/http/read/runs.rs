//! Plans and logs of a run.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::mpsc;

use crds::datastore::{HEADER_LOG_LENGTH, LOG_PHASES, ObjectKind, Problem, UNAVAILABLE};
use serving::problem::{not_found, problem};

use crate::{
    http::answer::content,
    names::{LogKey, RunKey},
    service::Service,
};

use super::{follow::Follow, route::LogQuery};

/// Time that the response's headers wait for the first bytes. Until then a problem can still become an error response.
pub(crate) const FIRST: Duration = Duration::from_millis(300);

/// A plan, or a state that could not be saved, of the given attempt or the newest that has one.
///
/// # Errors
/// `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn object(
    service: &Service,
    namespace: &str,
    run: &str,
    kind: ObjectKind,
    attempt: Option<u32>,
) -> Result<Response, Problem> {
    let view = service.lookup.live(namespace, run).await?;
    let key = RunKey::new(namespace, &view.uid)?;
    let candidates = match attempt {
        Some(attempt) => attempt..=attempt,
        None => 1..=view.newest(),
    };
    for attempt in candidates.rev() {
        if let Some(object) = service.objects.get(&key, attempt, kind).await? {
            let mut response = content(service, &object.stored, object.content).await?;
            let of = match kind {
                ObjectKind::PlanJson | ObjectKind::ErroredState => "application/json",
                ObjectKind::Plan | ObjectKind::Bundle | ObjectKind::Result => {
                    "text/plain; charset=utf-8"
                }
                ObjectKind::Changes => "application/x-ndjson",
            };
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, HeaderValue::from_static(of));
            return Ok(response);
        }
    }
    let what = match kind {
        ObjectKind::ErroredState => "state that could not be saved",
        ObjectKind::Changes => "list of changes",
        _ => "plan",
    };
    Err(not_found(format!("no {what} of run {run} is stored")))
}

/// Logs as one text. The response of one log that is not followed tells the length of the whole log, so that a reader may take parts of it.
///
/// # Errors
/// `NotFound`, `Unavailable`; `Corrupt` and `KeyMissing` when the start cannot be read.
pub async fn log(
    service: &Arc<Service>,
    namespace: &str,
    run: &str,
    query: &LogQuery,
) -> Result<Response, Problem> {
    let view = service.lookup.live(namespace, run).await?;
    if query.attempt.is_some_and(|attempt| attempt > view.newest()) {
        return Err(not_found(format!("run {run} has no such attempt")));
    }
    let permit = service.follows.clone().try_acquire_owned();
    let permit =
        permit.map_err(|_| problem(UNAVAILABLE, "too many logs are read at a time; try again"))?;
    let key = RunKey::new(namespace, &view.uid)?;
    let length = match (query.attempt, query.phase) {
        (Some(attempt), Some(phase)) if !query.follow => {
            let run = key.clone();
            let of = LogKey {
                run,
                attempt,
                phase,
            };
            Some(service.logs.index(&of).await?.length)
        }
        _ => None,
    };
    let (out, mut pieces) = mpsc::channel::<Result<Bytes, Problem>>(1);
    let follow = Follow {
        service: service.clone(),
        key,
        run: run.to_owned(),
        follow: query.follow,
        tail: query.tail,
        offset: query.offset,
        // With all attempts in one text, each log has a header line.
        headers: query.phase.is_none() && query.attempt.is_none(),
        phases: query
            .phase
            .map_or_else(|| LOG_PHASES.to_vec(), |phase| vec![phase]),
        out,
    };
    let (first, last) = match (query.attempt, query.phase) {
        (Some(attempt), _) => (attempt, Some(attempt)),
        (None, Some(_)) => (view.newest().max(1), Some(view.newest().max(1))),
        (None, None) => (1, None),
    };
    tokio::spawn(async move {
        follow.run(first, last).await;
        drop(permit);
    });
    let first = match tokio::time::timeout(FIRST, pieces.recv()).await {
        Ok(Some(Err(problem))) => return Err(problem),
        Ok(Some(Ok(piece))) => Some(Ok(piece)),
        Ok(None) | Err(_) => None,
    };
    let rest = futures::stream::poll_fn(move |context| pieces.poll_recv(context));
    let metrics = service.metrics.clone();
    let all = futures::stream::iter(first)
        .chain(rest)
        .inspect(move |piece| match piece {
            Ok(piece) => metrics.sent(piece.len()),
            Err(problem) => tracing::error!(reason = problem.reason, "{}", problem.message),
        });
    let mut response = Response::new(Body::from_stream(all));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    if let Some(length) = length {
        let headers = response.headers_mut();
        headers.insert(HEADER_LOG_LENGTH, length.into());
    }
    Ok(response)
}
