//! The read API for people, through the API server: plans and logs of runs; states, which people can also restore and
//! unlock. The API server authorizes them by RBAC before it forwards the request.

pub mod applies;
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
///
/// # Errors
/// Every response that is not a success.
pub async fn answer(
    service: &Arc<Service>,
    reading: &Reading,
    parts: &Parts,
    body: Body,
) -> Result<Response, Problem> {
    // Discovery is not secret, and the API server requests it before it authenticates itself.
    let public = match reading {
        Reading::Groups => discovery::groups(),
        Reading::Group => discovery::group(),
        Reading::Resources => discovery::resources(),
        _ => return read(service, reading, &user(service, parts)?, body).await,
    };
    Ok(problem::json(StatusCode::OK, &public))
}

fn user(service: &Service, parts: &Parts) -> Result<String, Problem> {
    let refused = || problem(UNAUTHENTICATED, "this is read through the API server only");
    let config = service.front_proxy.borrow().clone().ok_or_else(refused)?;
    let name = parts
        .extensions
        .get::<CommonName>()
        .and_then(|name| name.0.as_deref());
    front_proxy::user(&config, name, &parts.headers).ok_or_else(refused)
}

async fn read(
    service: &Arc<Service>,
    reading: &Reading,
    user: &str,
    body: Body,
) -> Result<Response, Problem> {
    let small = async || {
        Incoming::new(body, crds::datastore::MAX_SMALL, &service.metrics)
            .collect()
            .await
    };
    match reading {
        Reading::Groups | Reading::Group | Reading::Resources => Err(problem::not_found("nothing")),
        Reading::Object {
            namespace,
            run,
            kind,
            attempt,
        } => runs::object(service, namespace, run, *kind, *attempt).await,
        Reading::Log {
            namespace,
            run,
            query,
        } => runs::log(service, namespace, run, query).await,
        Reading::Records { namespace } => applies::list(service, namespace).await,
        Reading::States { namespace } => states::list(service, namespace, states::MOST).await,
        Reading::Versions(key) => states::versions(service, key).await,
        Reading::Outputs(key) => states::outputs(service, key).await,
        Reading::Download { key, version } => states::download(service, key, *version).await,
        Reading::Change {
            change,
            namespace,
            stack,
        } => {
            let change =
                states::Asked::parse(*change, namespace, stack.clone(), user, &small().await?)?;
            change.carry_out(service).await
        }
    }
}
