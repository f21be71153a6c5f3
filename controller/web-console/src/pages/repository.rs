//! One repository.

use axum::response::Response;
use crds::TerraformRepository;
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

/// A repository, and what its state permits.
#[derive(Serialize, JsonSchema)]
pub struct RepositoryPage {
    pub repository: TerraformRepository,
    /// The acts that the repository's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
}

impl RepositoryPage {
    fn of(repository: TerraformRepository) -> Self {
        Self {
            acts: acts::offered(&Object::Repository(&repository)),
            repository: shown(repository),
        }
    }
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn read(person: Person, Names([namespace, name]): Names<2>) -> Result<Response, Problem> {
    Ok(json(&RepositoryPage::of(
        person.get(&namespace, &name).await?,
    )))
}

/// # Errors
/// The request lacks a part, or the API server refused it or did not respond.
pub async fn act(
    person: Person,
    Names([namespace, name, act]): Names<3>,
    Json(request): Json<Request>,
) -> Result<Response, Problem> {
    let row = row(Kind::Repository, &act)?;
    let repository: TerraformRepository = person.get(&namespace, &name).await?;
    let written = annotations(
        row,
        &Object::Repository(&repository),
        &request,
        person.name(),
    )?;
    let repository = person.annotate(&namespace, &name, &written).await?;
    Ok(json(&RepositoryPage::of(repository)))
}
