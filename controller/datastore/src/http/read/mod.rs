//! The read API for people, through the API server: plans and logs of runs; states, which people can also restore and
//! unlock. The API server authorizes them by RBAC before it forwards the request.

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

use crds::datastore::{Problem, UNAUTHENTICATED};
use serving::{
    connections::CommonName,
    problem::{self, problem},
};

use crate::{auth::front_proxy, http::body::Incoming, service::Service};
use route::Reading;

pub const GROUP: &str = "read.pawl.run";
pub const VERSION: &str = "v1alpha1";

/// Handles a forwarded request and responds in the API server's format.
pub async fn answer(service: &Arc<Service>, reading: &Reading, parts: &Parts, body: Body) -> Response {
    let answered = match reading {
        // Discovery is not secret, and the API server requests it before it authenticates itself.
        Reading::Groups => Ok(problem::json(StatusCode::OK, &discovery::groups())),
        Reading::Group => Ok(problem::json(StatusCode::OK, &discovery::group())),
        Reading::Resources => Ok(problem::json(StatusCode::OK, &discovery::resources())),
        _ => match user(service, parts) {
            Ok(user) => read(service, reading, &user, body).await,
            Err(problem) => Err(problem),
        },
    };
    answered.unwrap_or_else(|problem| problem::failure(&problem))
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
