//! One layer.

use crds::TerraformLayer;
use schemars::JsonSchema;
use serde::Serialize;

use super::{object::ObjectPage, shown};
use crate::acts::{self, Act, Kind, Object, kubectl};

/// A layer, and what its state permits.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerPage {
    pub layer: TerraformLayer,
    /// The acts that the layer's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
    /// Changes that no annotation makes, with the command for each.
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

impl ObjectPage for LayerPage {
    type Of = TerraformLayer;
    const KIND: Kind = Kind::Layer;

    fn state(layer: &TerraformLayer) -> Object<'_> {
        Object::Layer(layer)
    }

    fn of(layer: TerraformLayer) -> Self {
        Self {
            acts: acts::offered(&Self::state(&layer)),
            by_hand: vec![ByHand::suspension(&layer)],
            layer: shown(layer),
        }
    }
}
