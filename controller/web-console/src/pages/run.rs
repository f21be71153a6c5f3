//! One run.

use axum::response::Response;
use crds::TerraformRun;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    annotations, json,
    path::{Json, Names},
    row, shown,
};
use crate::{
    acts::{self, Act, Kind, Object, Request},
    person::Person,
    problem::Problem,
};

/// A run, and what its state permits.
#[derive(Serialize, JsonSchema)]
pub struct RunPage {
    pub run: TerraformRun,
    /// The acts that the run's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
    /// The act that the run's reason suggests.
    pub next: Option<Act>,
}

impl RunPage {
    fn of(run: TerraformRun) -> Self {
        Self {
            acts: acts::offered(&Object::Run(&run)),
            next: acts::next(&run),
            run: shown(run),
        }
    }
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn read(person: Person, Names([namespace, name]): Names<2>) -> Result<Response, Problem> {
    Ok(json(&RunPage::of(person.get(&namespace, &name).await?)))
}

/// # Errors
/// The request lacks a part, or the API server refused it or did not respond.
pub async fn act(
    person: Person,
    Names([namespace, name, act]): Names<3>,
    Json(request): Json<Request>,
) -> Result<Response, Problem> {
    let row = row(Kind::Run, &act)?;
    let run: TerraformRun = person.get(&namespace, &name).await?;
    let written = annotations(row, &Object::Run(&run), &request, person.name())?;
    let run = person.annotate(&namespace, &name, &written).await?;
    Ok(json(&RunPage::of(run)))
}
