//! The log of a phase, by byte offset.

use axum::{http::Uri, response::Response};

use super::{
    path::{Names, Query},
    plan::TEXT,
    stored,
};
use crate::{person::Person, problem::Problem};

/// The parameters. `offset` needs `attempt`, since each attempt has a log of its own.
pub const PARAMETERS: [&str; 4] = ["attempt", "offset", "follow", "tail"];

/// # Errors
/// The API server refused it or did not respond; 503 when as many logs are followed as the datastore permits.
pub async fn phase(
    person: Person,
    Names([namespace, name, phase]): Names<3>,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = Query::of(&uri, &PARAMETERS)?;
    let base = stored::base(&namespace);
    let mut url = format!("{base}/terraformruns/{name}/log?phase={phase}");
    for name in PARAMETERS {
        if let Some(value) = query.get(name) {
            // `1` as the contract has it.
            let value = if name == "follow" && value == "1" {
                "true"
            } else {
                value
            };
            url = format!("{url}&{name}={value}");
        }
    }
    stored::pass_on(&person, &url, TEXT).await
}
