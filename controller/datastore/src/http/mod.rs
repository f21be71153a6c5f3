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

use axum::{Router, body::Body, extract::Request, http::StatusCode, response::Response};

use crds::datastore::Problem;
use serving::problem;

use crate::service::{Service, busy};

use route::Route;

/// The router of all requests. Each request carries the [`serving::connections::CommonName`] of its connection.
pub fn router(service: Arc<Service>) -> Router {
    route::router(move |route, request| {
        let service = service.clone();
        Box::pin(async move { answer(&service, route, request).await })
    })
}

async fn answer(service: &Arc<Service>, route: Result<Route, Problem>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    // `kubectl` shows error messages only from a Status object.
    let by_api_server = parts.uri.path().starts_with("/apis");
    let refuse = |problem: &Problem| if by_api_server { problem::failure(problem) } else { problem::response(problem) };
    let route = match route {
        Ok(route) => route,
        Err(problem) => {
            service.metrics.answered("none", problem::status(&problem.reason));
            return refuse(&problem);
        }
    };
    let kind = route.kind();
    // Probes are answered even when all places are taken.
    let probe = matches!(route, Route::Health | Route::Ready);
    let permit = service.requests.try_acquire();
    let refused = match (&*service.unfit.borrow(), &permit) {
        _ if probe => None,
        (Some(unfit), _) => Some(unfit.clone()),
        (None, Err(_)) => Some(busy()),
        (None, Ok(_)) => None,
    };
    if let Some(problem) = refused {
        let response = refuse(&problem);
        service.metrics.answered(kind, response.status());
        return response;
    }
    let response = match &route {
        Route::Health => text(StatusCode::OK, "ok\n"),
        Route::Ready => match service.ready().await {
            Ok(()) => text(StatusCode::OK, "ok\n"),
            Err(problem) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{problem}\n")),
        },
        Route::Attempt { namespace, run, attempt, ask, query } => {
            let request = attempt::Request { namespace, run, attempt: *attempt, ask: *ask, query };
            let answered = attempt::answer(service, &request, &parts, body).await;
            answered.unwrap_or_else(|problem| problem::response(&problem))
        }
        Route::Uid { run, ask } => {
            let answered = controller::answer(service, run, *ask, &parts).await;
            answered.unwrap_or_else(|problem| problem::response(&problem))
        }
        Route::Snapshots { of, ask } => {
            let answered = sources::answer(service, of, ask, &parts, body).await;
            answered.unwrap_or_else(|problem| problem::response(&problem))
        }
        Route::Wanted { follow } => {
            let answered =
                if *follow { sources::follow_wanted(service, &parts).await } else { sources::wanted(service, &parts).await };
            answered.unwrap_or_else(|problem| problem::response(&problem))
        }
        Route::Read(reading) => read::answer(service, reading, &parts, body).await,
    };
    service.metrics.answered(kind, response.status());
    tracing::debug!(kind, code = response.status().as_u16(), path = parts.uri.path(), "answered");
    response
}

fn text(status: StatusCode, body: &str) -> Response {
    let mut response = Response::new(Body::from(body.to_owned()));
    *response.status_mut() = status;
    response
}
