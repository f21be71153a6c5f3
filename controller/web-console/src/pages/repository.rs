//! One repository.

use crds::TerraformRepository;
use schemars::JsonSchema;
use serde::Serialize;

use super::{object::ObjectPage, shown};
use crate::acts::{self, Act, Kind, Object};

/// A repository, and what its state permits.
#[derive(Serialize, JsonSchema)]
pub struct RepositoryPage {
    pub repository: TerraformRepository,
    /// The acts that the repository's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
}

impl ObjectPage for RepositoryPage {
    type Of = TerraformRepository;
    const KIND: Kind = Kind::Repository;

    fn state(repository: &TerraformRepository) -> Object<'_> {
        Object::Repository(repository)
    }

    fn of(repository: TerraformRepository) -> Self {
        Self {
            acts: acts::offered(&Self::state(&repository)),
            repository: shown(repository),
        }
    }
}
