//! HTTP requests: routing, paths, bodies and handlers.

pub mod answer;
pub mod attempt;
pub mod body;
pub mod controller;
pub mod headers;
pub mod read;
pub mod request_parts;
pub mod route;
pub mod sources;

use std::sync::Arc;

use axum::{Router, extract::Request, response::Response};
use futures::{FutureExt as _, future::BoxFuture};

use crds::datastore::Problem;
use serving::{health, problem};

use crate::service::{Service, busy};

use route::Route;

/// The router of all requests. Each request carries the [`serving::connections::CommonName`] of its connection. Probes
/// are answered even when all places are taken.
pub fn router(service: Arc<Service>) -> Router {
    let probes = health::probes(readiness(service.clone()));
    let requests = route::router(move |route, request| {
        let service = service.clone();
        Box::pin(async move { answer(&service, route, request).await })
    });
    requests.merge(probes)
}

/// Why the service is not ready, for the readiness probe.
pub fn readiness(
    service: Arc<Service>,
) -> impl Fn() -> BoxFuture<'static, Result<(), String>> + Clone + Send + Sync {
    move || {
        let service = service.clone();
        async move { service.ready().await.map_err(|problem| problem.to_string()) }.boxed()
    }
}

async fn answer(
    service: &Arc<Service>,
    route: Result<Route, Problem>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    // `kubectl` shows error messages only from a Status object.
    let by_api_server = parts.uri.path().starts_with("/apis");
    let refuse = |problem: &Problem| {
        if by_api_server {
            problem::failure(problem)
        } else {
            problem::response(problem)
        }
    };
    let route = match route {
        Ok(route) => route,
        Err(problem) => {
            service
                .metrics
                .answered("none", problem::status(&problem.reason));
            return refuse(&problem);
        }
    };
    let kind = route.kind();
    let permit = service.requests.try_acquire();
    let unfit = service
        .unfit
        .borrow()
        .clone()
        .or_else(|| permit.is_err().then(busy));
    let answered = match (unfit, &route) {
        (Some(unfit), _) => Err(unfit),
        (
            None,
            Route::Attempt {
                namespace,
                run,
                attempt,
                ask,
                query,
            },
        ) => {
            let request = attempt::Request {
                namespace,
                run,
                attempt: *attempt,
                ask: *ask,
                query,
            };
            attempt::answer(service, &request, &parts, body).await
        }
        (None, Route::Uid { run, ask }) => controller::answer(service, run, ask, &parts).await,
        (None, Route::Snapshots { of, ask }) => {
            sources::answer(service, of, ask, &parts, body).await
        }
        (None, Route::Wanted) => sources::wanted(service, &parts).await,
        (None, Route::Read(reading)) => read::answer(service, reading, &parts, body).await,
    };
    let response = answered.unwrap_or_else(|problem| refuse(&problem));
    service.metrics.answered(kind, response.status());
    tracing::debug!(
        kind,
        code = response.status().as_u16(),
        path = parts.uri.path(),
        "answered"
    );
    response
}
