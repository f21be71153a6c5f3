//! What people read, through the API server: plans and logs of runs; states, which they may also restore and unlock. Whether a
//! person may, the API server has decided by RBAC before it passed the request on.

pub mod discovery;
pub mod follow;
pub mod route;
pub mod runs;
pub mod states;

use std::sync::Arc;

use axum::{
    body::Body,
    http::{StatusCode, request::Parts},
    response::Response,
};
use serde_json::json;

use crds::datastore::{
    ALREADY_CLAIMED, ALREADY_EXISTS, FORBIDDEN, INVALID, LOCKED, NOT_FOUND, Problem, REPLACED, TOO_LARGE, UNAUTHENTICATED,
    UNAVAILABLE, WRONG_OFFSET,
};

use crate::{
    auth::front_proxy,
    http::body::Incoming,
    problem::{self, problem},
    service::{CommonName, Service},
};
use route::Reading;

pub const GROUP: &str = "read.pawl.run";
pub const VERSION: &str = "v1alpha1";

/// Answers what the API server passes on, in its own format.
pub async fn answer(service: &Arc<Service>, reading: &Reading, parts: &Parts, body: Body) -> Response {
    let answered = match reading {
        // What there is to read is no secret, and the API server asks before it trusts anything.
        Reading::Groups => Ok(problem::json(StatusCode::OK, &discovery::groups())),
        Reading::Group => Ok(problem::json(StatusCode::OK, &discovery::group())),
        Reading::Resources => Ok(problem::json(StatusCode::OK, &discovery::resources())),
        _ => match user(service, parts) {
            Ok(user) => read(service, reading, &user, body).await,
            Err(problem) => Err(problem),
        },
    };
    answered.unwrap_or_else(|problem| failure(&problem))
}

fn user(service: &Service, parts: &Parts) -> Result<String, Problem> {
    let refused = || problem(UNAUTHENTICATED, "this is read through the API server only");
    let config = service.front_proxy.borrow().clone().ok_or_else(refused)?;
    let name = parts.extensions.get::<CommonName>().and_then(|name| name.0.as_deref());
    front_proxy::user(&config, name, &parts.headers).ok_or_else(refused)
}

async fn read(service: &Arc<Service>, reading: &Reading, user: &str, body: Body) -> Result<Response, Problem> {
    let small = async || Incoming::new(body, crds::datastore::MAX_SMALL, &service.metrics).collect().await;
    match reading {
        Reading::Groups | Reading::Group | Reading::Resources => Err(problem::not_found("nothing")),
        Reading::Object { namespace, run, kind, attempt } => runs::object(service, namespace, run, *kind, *attempt).await,
        Reading::Log { namespace, run, query } => runs::log(service, namespace, run, query).await,
        Reading::States { namespace } => states::list(service, namespace).await,
        Reading::Versions(key) => states::versions(service, key).await,
        Reading::Download { key, version } => states::download(service, key, *version).await,
        Reading::Restore { namespace, stack } => states::restore(service, namespace, stack, user, &small().await?).await,
        Reading::Unlock { namespace, stack } => states::unlock(service, namespace, stack, user, &small().await?).await,
        Reading::HandOver { namespace, stack } => {
            states::hand_over(service, namespace, stack.as_deref(), user, &small().await?).await
        }
    }
}

/// The API server's way of saying what went wrong.
pub fn failure(problem: &Problem) -> Response {
    let reason = match problem.reason.as_str() {
        UNAUTHENTICATED => "Unauthorized",
        FORBIDDEN | REPLACED => "Forbidden",
        NOT_FOUND => "NotFound",
        ALREADY_EXISTS | ALREADY_CLAIMED => "AlreadyExists",
        LOCKED | WRONG_OFFSET => "Conflict",
        INVALID => "BadRequest",
        TOO_LARGE => "RequestEntityTooLarge",
        UNAVAILABLE => "ServiceUnavailable",
        _ => "InternalError",
    };
    // The API server knows no 423.
    let code = if problem.reason == LOCKED { StatusCode::CONFLICT } else { problem::status(&problem.reason) };
    if code == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::error!(reason = problem.reason, "{}", problem.message);
    }
    problem::json(
        code,
        &json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": problem.message, "reason": reason, "code": code.as_u16(),
        }),
    )
}
