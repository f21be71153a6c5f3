//! Requests of the controller: results and claims of any run, and the deletion of a run's data.

use axum::{
    http::{StatusCode, request::Parts},
    response::Response,
};

use crds::datastore::{FORBIDDEN, ObjectKind, Problem};
use serving::problem::{self, not_found, problem};

use crate::{
    journal,
    names::RunKey,
    objects::{self, claim},
    service::Service,
};

use super::{
    answer::{content, empty},
    route::UidAsk,
    sources,
};

/// Handles one.
///
/// # Errors
/// Every response that is not a success.
pub async fn answer(
    service: &Service,
    run: &RunKey,
    ask: &UidAsk,
    parts: &Parts,
) -> Result<Response, Problem> {
    let identity = service.callers.identify(&parts.headers).await?;
    if identity.user != service.controller {
        return Err(problem(FORBIDDEN, "only the controller may do this"));
    }
    match ask {
        &UidAsk::Result(attempt) => {
            let object = service
                .objects
                .get(run, attempt, ObjectKind::Result)
                .await?;
            let object = object.ok_or_else(|| objects::none(attempt, ObjectKind::Result))?;
            content(service, &object.stored, object.content).await
        }
        &UidAsk::Journal(attempt) => Ok(problem::json(
            StatusCode::OK,
            &journal::compared(service, run, attempt).await?,
        )),
        &UidAsk::Log(attempt) => Ok(problem::json(
            StatusCode::OK,
            &service.logs.stand(run, attempt).await?,
        )),
        UidAsk::Source(name) => {
            let view = service.lookup.find(run.namespace(), name).await?;
            let view = view
                .filter(|view| view.uid == run.uid())
                .ok_or_else(|| not_found("the run is gone"))?;
            sources::is_stored(service, &view).await?;
            Ok(empty(StatusCode::OK))
        }
        UidAsk::Claim => {
            let record = claim::get(&service.sealed, run)
                .await?
                .ok_or_else(|| not_found("no claim is recorded"))?;
            Ok(problem::json(StatusCode::OK, &record.claim))
        }
        UidAsk::ReleaseLock => {
            let (view, key) = journal::state_of(service, run).await?;
            // Only the controller knows that the process has ended. With an open attempt, a process could take the lock again.
            if view.is_open() {
                return Err(problem(FORBIDDEN, "the run's attempt is open"));
            }
            service.states.release(&key, &view.uid).await?;
            Ok(empty(StatusCode::OK))
        }
        UidAsk::DeleteBundles => {
            service.objects.delete_bundles(run).await?;
            Ok(empty(StatusCode::OK))
        }
        UidAsk::Delete => {
            service.delete_objects(run).await?;
            tracing::info!(
                namespace = run.namespace(),
                uid = run.uid(),
                "the objects of a run were deleted"
            );
            Ok(empty(StatusCode::OK))
        }
    }
}
