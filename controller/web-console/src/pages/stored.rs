//! The objects of a run in the datastore, read through `read.pawl.run` as the person and passed on as it arrives.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Request, StatusCode, header},
    response::Response,
};
use crds::datastore::HEADER_LOG_LENGTH;
use http_body_util::{BodyExt as _, Limited};
use kube::core::Status;
use serde::de::DeserializeOwned;

use crate::{person::Person, problem::Problem};

/// The largest error document, in bytes.
const LARGEST: usize = 64 << 10;
/// The largest document that is read whole, in bytes.
const DOCUMENT: usize = 4 << 20;
/// The words while the API server does not serve the group.
pub const UNSERVED: &str = "the API server does not serve read.pawl.run now: the datastore is down, or there is none. Lists, objects and acts work meanwhile";

/// The path of a namespace in `read.pawl.run`.
pub fn base(namespace: &str) -> String {
    format!("/apis/read.pawl.run/v1alpha1/namespaces/{namespace}")
}

/// Sends a request as the person.
///
/// # Errors
/// The API server refused it or did not respond.
pub async fn send(
    person: &Person,
    request: Request<Vec<u8>>,
) -> Result<axum::http::Response<kube::client::Body>, Problem> {
    let response = person
        .api_server
        .send("read what the datastore keeps", &person.token, request)
        .await?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if status == StatusCode::UNAUTHORIZED {
        return Err(Problem::unauthenticated());
    }
    let text = Limited::new(response.into_body(), LARGEST).collect().await;
    let text = text
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let refused = serde_json::from_slice::<Status>(&text).unwrap_or_default();
    Err(if status == StatusCode::NOT_FOUND && refused.code == 0 {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Unavailable", UNSERVED)
    } else if refused.message.is_empty() {
        // The aggregation layer answers in plain text while it does not reach the datastore.
        let text = String::from_utf8_lossy(&text);
        let text: String = text.trim().chars().take(256).collect();
        let detail = format!(
            "the datastore does not answer ({status}: {text}); lists, objects and acts work meanwhile"
        );
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Unavailable", detail)
    } else {
        Problem::new(status, &refused.reason, refused.message)
    })
}

/// Reads a document as the person.
///
/// # Errors
/// The API server refused it or did not respond; it is no such document, or larger than 4 MiB.
pub async fn document<T: DeserializeOwned>(person: &Person, url: &str) -> Result<T, Problem> {
    let request = Request::get(url).body(Vec::new()).unwrap_or_default();
    let body = send(person, request).await?.into_body();
    let text = Limited::new(body, DOCUMENT).collect().await;
    let text = text.map(http_body_util::Collected::to_bytes);
    let found = text.map_err(|error| error.to_string());
    let found =
        found.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
    found.map_err(|error| {
        let detail = format!("the answer of the datastore cannot be read: {error}");
        Problem::new(StatusCode::BAD_GATEWAY, "Unavailable", detail)
    })
}

/// Passes a response on as it arrives. Its type is `kind`, whatever the response has: the content is not ours.
///
/// # Errors
/// The API server refused it or did not respond.
pub async fn pass_on(person: &Person, url: &str, kind: &'static str) -> Result<Response, Problem> {
    let request = Request::get(url).body(Vec::new()).unwrap_or_default();
    let (parts, body) = send(person, request).await?.into_parts();
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies pass each piece on at once.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // With its length a reader notices that the rest is missing; with that of the log it reads parts.
    let log_length = HeaderName::from_static(HEADER_LOG_LENGTH);
    for name in [header::CONTENT_LENGTH, log_length] {
        if let Some(length) = parts.headers.get(&name) {
            headers.insert(name, length.clone());
        }
    }
    Ok(response)
}
