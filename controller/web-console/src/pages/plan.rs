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

/// # Errors
/// The API server refused it or did not respond.
pub async fn text(person: Person, names: Names<2>, uri: Uri) -> Result<Response, Problem> {
    object(&person, names, &uri, "plan", TEXT).await
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn changes(person: Person, names: Names<2>, uri: Uri) -> Result<Response, Problem> {
    object(&person, names, &uri, "changes", LINES).await
}

async fn object(
    person: &Person,
    Names([namespace, name]): Names<2>,
    uri: &Uri,
    what: &str,
    kind: &'static str,
) -> Result<Response, Problem> {
    let query = Query::of(uri, &["attempt"])?;
    let base = stored::base(&namespace);
    let mut url = format!("{base}/terraformruns/{name}/{what}");
    if let Some(attempt) = query.get("attempt") {
        url = format!("{url}?attempt={attempt}");
    }
    stored::pass_on(person, &url, kind).await
}
