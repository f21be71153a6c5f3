//! Reading one object and acting on it, the same for each kind that has a page.

use axum::{http::StatusCode, response::Response};
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    annotations,
    path::{Json, Names},
    row,
};
use crate::{
    acts::{Kind, Object, Request},
    person::Person,
    problem::{Problem, json},
};

/// The page of a kind of object.
pub trait ObjectPage: Serialize {
    type Of: Resource<DynamicType = ()> + DeserializeOwned;
    const KIND: Kind;

    /// The state that acts depend on.
    fn state(object: &Self::Of) -> Object<'_>;

    fn of(object: Self::Of) -> Self;
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn read<P: ObjectPage>(
    person: Person,
    Names([namespace, name]): Names<2>,
) -> Result<Response, Problem> {
    let page = P::of(person.get(&namespace, &name).await?);
    Ok(json(StatusCode::OK, &page))
}

/// # Errors
/// The request lacks a part, or the API server refused it or did not respond.
pub async fn act<P: ObjectPage>(
    person: Person,
    Names([namespace, name, act]): Names<3>,
    Json(request): Json<Request>,
) -> Result<Response, Problem> {
    let row = row(P::KIND, &act)?;
    let object: P::Of = person.get(&namespace, &name).await?;
    let written = annotations(row, &P::state(&object), &request, person.name())?;
    let object = person.annotate(&namespace, &name, &written).await?;
    Ok(json(StatusCode::OK, &P::of(object)))
}
