//! Acts on a namespace, and on a state in it.

use axum::{
    http::{Request as HttpRequest, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use k8s_openapi::api::core::v1::Namespace;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    annotations,
    path::{Json, Names},
    row, stored,
};
use crate::{
    acts::{Kind, Object, Request},
    person::Person,
    problem::Problem,
};

/// # Errors
/// The API server refused it or did not respond.
pub async fn act(
    person: Person,
    Names([namespace, act]): Names<2>,
    Json(request): Json<Request>,
) -> Result<Response, Problem> {
    let row = row(Kind::Namespace, &act)?;
    let written = annotations(row, &Object::Namespace(&namespace), &request, person.name())?;
    person
        .annotate_in::<Namespace>(None, &namespace, &written)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The body of a request to remove the lock of a state.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unlock {
    /// `default` when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Why, in one line of at most 512 bytes.
    #[serde(default)]
    pub reason: String,
}

/// Removes the lock of a state.
///
/// # Errors
/// The API server refused it or did not respond.
pub async fn unlock(
    person: Person,
    Names([namespace, state]): Names<2>,
    Json(body): Json<Unlock>,
) -> Result<Response, Problem> {
    let url = format!("{}/states/{state}/unlock", stored::base(&namespace));
    let request = HttpRequest::post(url)
        .header(header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&body).unwrap_or_default())
        .unwrap_or_default();
    stored::send(&person, request).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
