//! A namespace: whether it is frozen, and the acts on it.

use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use crds::names;
use k8s_openapi::api::core::v1::Namespace;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    annotations,
    path::{Json, Names},
    row,
};
use crate::{
    acts::{self, Act, Kind, NamespaceState, Object, Request},
    person::Person,
    problem::{Problem, json},
};

/// A namespace, and what its state permits.
#[derive(Serialize, JsonSchema)]
pub struct NamespacePage {
    pub name: String,
    /// Whether its annotation freezes it: nothing new begins. Null when the person may not read the namespace.
    pub frozen: Option<bool>,
    /// RBAC decides whether the person may do them.
    pub acts: Vec<Act>,
}

/// # Errors
/// The API server did not respond, or there is no such namespace.
pub async fn read(person: Person, Names([name]): Names<1>) -> Result<Response, Problem> {
    let frozen = match person.get_in::<Namespace>(None, &name).await {
        Ok(namespace) => Some(names::is_on(&namespace.metadata, names::FREEZE)),
        Err(error) if error.code() == 403 => None,
        Err(error) => return Err(error.into()),
    };
    let state = NamespaceState {
        name: &name,
        frozen,
    };
    let acts = acts::offered(&Object::Namespace(&state));
    let page = NamespacePage { name, frozen, acts };
    Ok(json(StatusCode::OK, &page))
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn act(
    person: Person,
    Names([namespace, act]): Names<2>,
    Json(request): Json<Request>,
) -> Result<Response, Problem> {
    let row = row(Kind::Namespace, &act)?;
    let state = NamespaceState {
        name: &namespace,
        frozen: None,
    };
    let written = annotations(row, &Object::Namespace(&state), &request, person.name())?;
    person
        .annotate_in::<Namespace>(None, &namespace, &written)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
