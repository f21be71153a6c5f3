//! The pages of one object: what it is, what a person may do with it, its plan, changes and logs. Each request is made as the person.

pub mod layer;
pub mod log;
pub mod namespace;
pub mod object;
pub mod path;
pub mod plan;
pub mod repository;
pub mod run;
pub mod state;
pub mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post},
};
use kube::Resource;
use serde_json::{Map, Value};

use crate::{
    Console,
    acts::{self, Kind, Object, Request},
    problem::Problem,
};

/// The routes of one object.
pub fn router() -> Router<Arc<Console>> {
    let routes = Router::new()
        .route(
            "/namespaces/{namespace}/runs/{name}",
            get(object::read::<run::RunPage>),
        )
        .route(
            "/namespaces/{namespace}/runs/{name}/acts/{act}",
            post(object::act::<run::RunPage>),
        )
        .route("/namespaces/{namespace}/runs/{name}/plan", get(plan::text))
        .route(
            "/namespaces/{namespace}/runs/{name}/changes",
            get(plan::changes),
        )
        .route(
            "/namespaces/{namespace}/runs/{name}/journal",
            get(run::journal),
        )
        .route(
            "/namespaces/{namespace}/runs/{name}/log/{phase}",
            get(log::phase),
        )
        .route(
            "/namespaces/{namespace}/layers/{name}",
            get(object::read::<layer::LayerPage>),
        )
        .route(
            "/namespaces/{namespace}/layers/{name}/acts/{act}",
            post(object::act::<layer::LayerPage>),
        )
        .route(
            "/namespaces/{namespace}/repositories/{name}",
            get(object::read::<repository::RepositoryPage>),
        )
        .route(
            "/namespaces/{namespace}/repositories/{name}/acts/{act}",
            post(object::act::<repository::RepositoryPage>),
        )
        .route("/namespaces/{namespace}", get(namespace::read))
        .route("/namespaces/{namespace}/acts/{act}", post(namespace::act))
        .route("/namespaces/{namespace}/states/{state}", get(state::read))
        .route(
            "/namespaces/{namespace}/states/{state}/outputs",
            get(state::outputs),
        )
        .route(
            "/namespaces/{namespace}/states/{state}/unlock",
            post(state::unlock),
        );
    Router::new().nest("/api/v1", routes)
}

/// The object without the fields that only the API server uses.
fn shown<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// The row of an act.
fn row(kind: Kind, act: &str) -> Result<&'static acts::table::Row, Problem> {
    acts::row(kind, act).ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("there is no act {act} here; nothing was changed"),
        )
    })
}

/// The annotations of an act.
fn annotations(
    row: &acts::table::Row,
    object: &Object<'_>,
    request: &Request,
    person: &str,
) -> Result<Value, Problem> {
    let now = jiff::Timestamp::now().as_second();
    let written: Result<Map<_, _>, _> = row.annotations(object, request, person, now);
    written.map(Value::Object).map_err(|lacks| {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{lacks}; nothing was changed"),
        )
    })
}
