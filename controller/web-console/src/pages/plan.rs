//! The plan of a run: the tool's own text, and its changes without sensitive values.

use axum::{http::Uri, response::Response};

use super::{
    path::{Names, Query},
    stored,
};
use crate::{person::Person, problem::Problem};

/// The type of all text that a tool printed.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// JSON, one document a line.
pub const LINES: &str = "application/x-ndjson";

/// An object of a run: its name, the parameters of its query, and its type.
type Kind = (&'static str, &'static [&'static str], &'static str);

/// # Errors
/// The API server refused it or did not respond.
pub async fn text(person: Person, names: Names<2>, uri: Uri) -> Result<Response, Problem> {
    object(&person, names, &uri, ("plan", &["attempt"], TEXT)).await
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn changes(person: Person, names: Names<2>, uri: Uri) -> Result<Response, Problem> {
    object(&person, names, &uri, ("changes", &["attempt"], LINES)).await
}

pub(super) async fn object(
    person: &Person,
    Names([namespace, run]): Names<2>,
    uri: &Uri,
    (name, parameters, kind): Kind,
) -> Result<Response, Problem> {
    let query = Query::of(uri, parameters)?.text();
    let base = stored::base(&namespace);
    let url = format!("{base}/terraformruns/{run}/{name}?{query}");
    stored::pass_on(person, &url, kind).await
}
