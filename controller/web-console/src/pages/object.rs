//! Reading one object and acting on it, the same for each kind that has a page.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    annotations,
    path::{Json, Names},
    row,
};
use crate::{
    Console,
    acts::{Kind, Object, Request},
    person::Person,
    problem::{Problem, json},
};

/// The page of a kind of object.
pub trait ObjectPage: Serialize {
    type Of: Resource<DynamicType = ()> + DeserializeOwned + Send;
    const KIND: Kind;

    /// The state that acts depend on.
    fn state(object: &Self::Of) -> Object<'_>;

    /// The page. Parts beside the object are left out where they are not known: the object was permitted, and an act may have been done.
    fn of(object: Self::Of, beside: Beside<'_>) -> impl Future<Output = Self> + Send;
}

/// The sources of the other parts of a page.
pub struct Beside<'a> {
    pub console: &'a Console,
    pub person: &'a Person,
    /// The last change of rows before the object was read, for `after` of the stream.
    pub sequence: String,
}

impl<'a> Beside<'a> {
    fn of(console: &'a Console, person: &'a Person) -> Self {
        let sequence = console.rows.read().changes.last().to_string();
        Self {
            console,
            person,
            sequence,
        }
    }
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn read<P: ObjectPage>(
    State(console): State<Arc<Console>>,
    person: Person,
    Names([namespace, name]): Names<2>,
) -> Result<Response, Problem> {
    let beside = Beside::of(&console, &person);
    let object = person.get(&namespace, &name).await?;
    Ok(json(StatusCode::OK, &P::of(object, beside).await))
}

/// # Errors
/// The request lacks a part, or the API server refused it or did not respond.
pub async fn act<P: ObjectPage>(
    State(console): State<Arc<Console>>,
    person: Person,
    Names([namespace, name, act]): Names<3>,
    Json(request): Json<Request>,
) -> Result<Response, Problem> {
    let row = row(P::KIND, &act)?;
    let beside = Beside::of(&console, &person);
    let object: P::Of = person.get(&namespace, &name).await?;
    let written = annotations(row, &P::state(&object), &request, person.name())?;
    let object = person.annotate(&namespace, &name, &written).await?;
    Ok(json(StatusCode::OK, &P::of(object, beside).await))
}
