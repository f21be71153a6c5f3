//! One run.

use axum::{http::Uri, response::Response};
use crds::TerraformRun;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    object::{Beside, ObjectPage},
    path::{Names, Query},
    plan::LINES,
    shown, stored,
};
use crate::{
    acts::{self, Act, Kind, Object},
    person::Person,
    problem::Problem,
    rows::RunRow,
};

/// A run, and what its state permits.
#[derive(Serialize, JsonSchema)]
pub struct RunPage {
    pub row: RunRow,
    pub run: TerraformRun,
    /// The acts that the run's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
    /// The act that the run's reason suggests.
    pub next: Option<Act>,
    /// The change before which the run was read, for `after` of the stream.
    pub sequence: String,
}

impl ObjectPage for RunPage {
    type Of = TerraformRun;
    const KIND: Kind = Kind::Run;

    fn state(run: &TerraformRun) -> Object<'_> {
        Object::Run(run)
    }

    async fn of(run: TerraformRun, beside: Beside<'_>) -> Self {
        Self {
            row: RunRow::of(&run),
            acts: acts::offered(&Self::state(&run)),
            next: acts::next(&run),
            run: shown(run),
            sequence: beside.sequence,
        }
    }
}

/// The journal of an apply: one event of the tool a line.
///
/// # Errors
/// The API server refused it or did not respond.
pub async fn journal(
    person: Person,
    Names([namespace, name]): Names<2>,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = Query::of(&uri, &JOURNAL)?;
    let url = format!("{}/terraformruns/{name}/journal?", stored::base(&namespace));
    stored::pass_on(&person, &(url + &query.text()), LINES).await
}

/// The parameters of a journal. `offset` needs `attempt`.
pub const JOURNAL: [&str; 2] = ["attempt", "offset"];
