//! One managed state: its versions, its lock and its outputs, read through `read.pawl.run` as the person.

use std::collections::BTreeMap;

use axum::{
    http::{Request as HttpRequest, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    path::{Json, Names, Query},
    stored,
};
use crate::{
    acts::{Act, kubectl},
    person::Person,
    problem::{Problem, json},
};

/// The parameters of a state.
pub const PARAMETERS: [&str; 1] = ["workspace"];

/// A managed state.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatePage {
    pub stack: String,
    pub workspace: String,
    /// The lock; absent if none is held.
    pub lock: Option<Lock>,
    /// The stored versions, the newest first.
    #[serde(default)]
    pub versions: Vec<Version>,
    /// Actions of people on the state.
    #[serde(default)]
    pub notes: Vec<Note>,
    /// The act that removes the lock; absent if none is held. RBAC decides whether the person may do it.
    #[serde(default, skip_deserializing)]
    pub unlock: Option<Act>,
}

/// A lock.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "HeldLock")]
pub struct Lock {
    pub id: String,
    /// The run whose pod took it.
    pub run: String,
    pub attempt: u32,
    pub since: Time,
    /// The tool's lock info: `Who`, `Operation`, `Created` and others.
    pub info: Value,
}

/// A version.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "StateVersion")]
pub struct Version {
    pub number: u64,
    pub at: Time,
    /// The author: run and attempt, or a person.
    pub by: String,
    /// A person's reason.
    pub reason: Option<String>,
    /// In bytes.
    pub size: u64,
    /// The tool's serial number of the state.
    pub serial: Option<u64>,
}

/// An action of a person.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "StateNote")]
pub struct Note {
    pub at: Time,
    pub what: String,
    pub by: String,
    pub reason: String,
}

/// The outputs of a state.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "StateOutputs")]
pub struct Outputs {
    /// The version that has them.
    pub version: u64,
    /// By name, without sensitive ones.
    pub outputs: BTreeMap<String, Value>,
    /// The number of sensitive ones.
    pub sensitive: u32,
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn read(person: Person, names: Names<2>, uri: Uri) -> Result<Response, Problem> {
    let namespace = names.0[0].clone();
    let mut page: StatePage = get(&person, names, &uri, "").await?;
    let line = || kubectl::unlock_line(&namespace, &page.stack, &page.workspace);
    page.unlock = page.lock.as_ref().map(|_| Act::unlock(line()));
    Ok(json(StatusCode::OK, &page))
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn outputs(person: Person, names: Names<2>, uri: Uri) -> Result<Response, Problem> {
    let outputs: Outputs = get(&person, names, &uri, "/outputs").await?;
    Ok(json(StatusCode::OK, &outputs))
}

async fn get<T: serde::de::DeserializeOwned>(
    person: &Person,
    Names([namespace, state]): Names<2>,
    uri: &Uri,
    part: &str,
) -> Result<T, Problem> {
    let query = Query::of(uri, &PARAMETERS)?.text();
    let base = stored::base(&namespace);
    stored::document(person, &format!("{base}/states/{state}{part}?{query}")).await
}

/// The body of a request to remove the lock of a state.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unlock {
    /// The workspace. Default: `default`.
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
