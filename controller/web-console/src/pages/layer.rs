//! One layer.

use crds::TerraformLayer;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    object::{Beside, ObjectPage},
    shown,
};
use crate::{
    acts::{self, Act, Kind, Object, kubectl},
    lists::{
        RUNS,
        page::{page, query},
    },
    rows::{LayerRow, RunRow},
};

/// A layer, its runs, and what its state permits.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerPage {
    pub row: LayerRow,
    pub layer: TerraformLayer,
    /// Its last 100 runs, the newest first; null when the person may not list runs here, or they are not known yet.
    pub runs: Option<Vec<RunRow>>,
    /// Its state, if the datastore keeps it.
    pub state: Option<StateName>,
    /// The acts that the layer's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
    /// Changes that no annotation makes, with the command for each.
    pub by_hand: Vec<ByHand>,
    /// Sequence of the last change before the layer was read. A client passes it to the stream as `after`.
    pub sequence: String,
}

/// The name of a managed state in its namespace.
#[derive(Serialize, JsonSchema, Debug, PartialEq, Eq)]
pub struct StateName {
    pub stack: String,
    pub workspace: String,
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

impl StateName {
    fn of(layer: &TerraformLayer) -> Option<Self> {
        let status = layer.status.as_ref()?;
        Some(Self {
            stack: status.stack.clone()?,
            workspace: status.workspace.clone()?,
        })
    }
}

impl ObjectPage for LayerPage {
    type Of = TerraformLayer;
    const KIND: Kind = Kind::Layer;

    fn state(layer: &TerraformLayer) -> Object<'_> {
        Object::Layer(layer)
    }

    async fn of(layer: TerraformLayer, beside: Beside<'_>) -> Self {
        let row = LayerRow::of(&layer);
        let runs = runs(&row, &beside).await;
        let row = beside.console.rows.read().joined(row);
        Self {
            row,
            runs,
            state: StateName::of(&layer),
            acts: acts::offered(&Self::state(&layer)),
            by_hand: vec![ByHand::suspension(&layer)],
            layer: shown(layer),
            sequence: beside.sequence,
        }
    }
}

async fn runs(row: &LayerRow, beside: &Beside<'_>) -> Option<Vec<RunRow>> {
    let Beside {
        console, person, ..
    } = beside;
    let namespace = std::iter::once(row.namespace.to_string());
    let scope = console.access.scope(person, RUNS, namespace).await.ok()?;
    let of = [("namespace", &row.namespace), ("layer", &row.name)];
    let query = query::<RunRow>(of.map(|(name, value)| (name.into(), (&**value).into()))).ok()?;
    let tables = console.rows.complete().ok()?;
    let rows = tables.runs.rows();
    let found = scope
        .has(&row.namespace)
        .then(|| page(rows, &scope, &query));
    found.map(|page| page.items)
}
