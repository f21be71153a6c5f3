//! One run.

use crds::TerraformRun;
use schemars::JsonSchema;
use serde::Serialize;

use super::{object::ObjectPage, shown};
use crate::acts::{self, Act, Kind, Object};

/// A run, and what its state permits.
#[derive(Serialize, JsonSchema)]
pub struct RunPage {
    pub run: TerraformRun,
    /// The acts that the run's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
    /// The act that the run's reason suggests.
    pub next: Option<Act>,
}

impl ObjectPage for RunPage {
    type Of = TerraformRun;
    const KIND: Kind = Kind::Run;

    fn state(run: &TerraformRun) -> Object<'_> {
        Object::Run(run)
    }

    fn of(run: TerraformRun) -> Self {
        Self {
            acts: acts::offered(&Self::state(&run)),
            next: acts::next(&run),
            run: shown(run),
        }
    }
}
