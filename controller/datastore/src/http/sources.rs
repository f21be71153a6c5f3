//! Snapshots of repositories: written by `controller sources`, read by the pods of runs that reference one of their
//! revisions.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{StatusCode, request::Parts},
    response::Response,
};
use tokio::time::Instant;

use crds::datastore::{
    FORBIDDEN, HEADER_DIGEST, MAX_SOURCE, ObjectKind, Problem, REPOSITORY_NOT_ALLOWED,
    SOURCE_NOT_READY,
};
use serving::problem::{self, invalid, not_found, problem, unavailable};

use crate::{cluster::RunView, names::RepositoryKey, service::Service};

use super::{
    answer::{content, empty},
    body::Incoming,
    headers::digest,
    route::SnapshotAsk,
};

/// Interval at which the list is sent again, so that each side detects a dead connection.
const AGAIN: Duration = Duration::from_secs(10);
/// Maximum duration of a stream without a new authentication.
const LONGEST: Duration = Duration::from_secs(3600);

/// Handles a request of `controller sources`.
///
/// # Errors
/// Every response that is not a success.
pub async fn answer(
    service: &Service,
    of: &RepositoryKey,
    ask: &SnapshotAsk,
    parts: &Parts,
    body: Body,
) -> Result<Response, Problem> {
    of_sources(service, parts).await?;
    match ask {
        SnapshotAsk::Put(revision) => {
            let digest = digest(&parts.headers)?
                .ok_or_else(|| invalid(format!("the header {HEADER_DIGEST} is missing")))?;
            let _permit = service.transfer(ObjectKind::Bundle).await?;
            let mut body = Incoming::new(body, MAX_SOURCE, &service.metrics);
            let done = service
                .snapshots
                .put(of, revision, digest, body.stream())
                .await;
            if done.is_err() {
                body.drain().await;
            }
            let done = done?;
            service.wanted.stored(&of.wanted(revision));
            Ok(problem::json(StatusCode::OK, &done))
        }
        SnapshotAsk::Digest(revision) => {
            let stored = service.snapshots.stored(of, revision).await?;
            let stored =
                stored.ok_or_else(|| not_found(format!("there is no snapshot of {revision}")))?;
            Ok(problem::json(StatusCode::OK, &stored))
        }
        SnapshotAsk::List => Ok(problem::json(
            StatusCode::OK,
            &service.snapshots.list(of).await?,
        )),
        SnapshotAsk::Delete(revision) => {
            service.snapshots.delete(of, revision).await?;
            Ok(empty(StatusCode::OK))
        }
    }
}

/// Streams the revisions that runs wait for: one list per line, sent immediately after each new request. So an idle stream costs neither a
/// read of the list nor a review of the token. The stream ends when the token expires.
///
/// # Errors
/// Every response that is not a success.
pub async fn wanted(service: &Arc<Service>, parts: &Parts) -> Result<Response, Problem> {
    of_sources(service, parts).await?;
    let until = Instant::now() + service.callers.life(&parts.headers).min(LONGEST);
    let state = (service.clone(), service.wanted.changes(), true);
    let lines = futures::stream::unfold(state, move |(service, mut changes, first)| async move {
        let mut stopped = service.stopped.clone();
        if !first {
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep(AGAIN) => {}
                () = tokio::time::sleep_until(until) => return None,
                _ = stopped.wait_for(|stopped| *stopped) => return None,
            }
        }
        changes.borrow_and_update();
        let mut line = serde_json::to_vec(&service.wanted.list()).unwrap_or_default();
        line.push(b'\n');
        Some((
            Ok::<_, Infallible>(Bytes::from(line)),
            (service, changes, false),
        ))
    });
    Ok(Response::new(Body::from_stream(lines)))
}

async fn of_sources(service: &Service, parts: &Parts) -> Result<(), Problem> {
    let identity = service.callers.identify(&parts.headers).await?;
    if service.sources.as_ref() == Some(&identity.user) {
        return Ok(());
    }
    Err(problem(FORBIDDEN, "only `controller sources` may do this"))
}

/// The snapshot of the revision in a run's own spec, if the repository currently allows the run's namespace. The
/// response does not reveal whether another namespace's repository exists unless it allows the caller.
///
/// # Errors
/// `RepositoryNotAllowed`, `SourceNotReady`, `Invalid`, `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn of_run(service: &Service, run: &RunView) -> Result<Response, Problem> {
    let (key, revision) = revision_of(service, run).await?;
    let object = service.snapshots.get(&key, revision).await?;
    let object = object.ok_or_else(|| not_ready(service, run, &key, revision))?;
    content(service, &object.stored, object.content).await
}

/// Whether that snapshot is stored, without its content. Otherwise it is wanted from now on.
///
/// # Errors
/// As [`of_run`].
pub async fn is_stored(service: &Service, run: &RunView) -> Result<(), Problem> {
    let (key, revision) = revision_of(service, run).await?;
    let stored = service.snapshots.stored(&key, revision).await?;
    stored
        .map(drop)
        .ok_or_else(|| not_ready(service, run, &key, revision))
}

fn not_ready(service: &Service, run: &RunView, key: &RepositoryKey, revision: &str) -> Problem {
    service.wanted.asked(key.wanted(revision));
    let name = run.source.as_ref().map_or("", |source| &source.name);
    problem(
        SOURCE_NOT_READY,
        format!("revision {revision} of TerraformRepository {name} is not stored yet"),
    )
}

async fn revision_of<'a>(
    service: &Service,
    run: &'a RunView,
) -> Result<(RepositoryKey, &'a str), Problem> {
    let source = run
        .source
        .as_ref()
        .ok_or_else(|| invalid("the run has no source.repository"))?;
    let (name, revision) = (&source.name, &source.revision);
    let namespace = source.namespace.as_ref().unwrap_or(&run.namespace);
    let is_own = *namespace == run.namespace;
    let repository = service.cluster.repository(namespace, name).await;
    // A lacking right in that namespace is no answer about the repository either.
    let repository = repository.map_err(|error| unavailable("the API server", &error))?;
    let Some(repository) = repository.filter(|repository| repository.admits(&run.namespace)) else {
        return Err(if is_own {
            problem(
                SOURCE_NOT_READY,
                format!("there is no TerraformRepository {name} in namespace {namespace}"),
            )
        } else {
            let text = format!(
                "no TerraformRepository {name} of namespace {namespace} names {} in allowedNamespaces",
                run.namespace
            );
            problem(REPOSITORY_NOT_ALLOWED, text)
        });
    };
    let key = RepositoryKey::new(
        namespace,
        repository.metadata.uid.as_deref().unwrap_or_default(),
    )?;
    Ok((key, revision))
}
