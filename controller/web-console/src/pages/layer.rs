//! One layer.

use axum::response::Response;
use crds::TerraformLayer;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    annotations, json,
    path::{Json, Names},
    row, shown,
};
use crate::{
    acts::{self, Act, Kind, Object, Request, kubectl},
    person::Person,
    problem::Problem,
};

/// A layer, and what its state permits.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerPage {
    pub layer: TerraformLayer,
    /// The acts that the layer's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
    /// What no annotation can change, with the command for it.
    pub by_hand: Vec<ByHand>,
}

/// A change of a field, which people make where the manifest is.
#[derive(Serialize, JsonSchema)]
pub struct ByHand {
    pub label: &'static str,
    pub kubectl: String,
}

impl ByHand {
    fn suspension(layer: &TerraformLayer) -> Self {
        Self {
            label: if layer.spec.suspend {
                "Set spec.suspend to false"
            } else {
                "Set spec.suspend to true"
            },
            kubectl: kubectl::suspend_line(layer),
        }
    }
}

impl LayerPage {
    fn of(layer: TerraformLayer) -> Self {
        Self {
            acts: acts::offered(&Object::Layer(&layer)),
            by_hand: vec![ByHand::suspension(&layer)],
            layer: shown(layer),
        }
    }
}

/// # Errors
/// The API server refused it or did not respond.
pub async fn read(person: Person, Names([namespace, name]): Names<2>) -> Result<Response, Problem> {
    Ok(json(&LayerPage::of(person.get(&namespace, &name).await?)))
}

/// # Errors
/// The request lacks a part, or the API server refused it or did not respond.
pub async fn act(
    person: Person,
    Names([namespace, name, act]): Names<3>,
    Json(request): Json<Request>,
) -> Result<Response, Problem> {
    let row = row(Kind::Layer, &act)?;
    let layer: TerraformLayer = person.get(&namespace, &name).await?;
    let written = annotations(row, &Object::Layer(&layer), &request, person.name())?;
    let layer = person.annotate(&namespace, &name, &written).await?;
    Ok(json(&LayerPage::of(layer)))
}
