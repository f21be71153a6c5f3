//! The possible decisions on a layer: plain values.

use std::time::Duration;

use serde_json::Value;

use crds::TerraformLayerStatus;

use crate::events::Note;

/// An instruction to the executor.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read a run's list of changes, which the cache does not store.
    Read {
        run: String,
    },
    /// Delay deletion until the layer's resources are destroyed.
    AddFinalizer,
    RemoveFinalizer,
    /// Replace `pawl.run/plan=now` by a token.
    TakeAsk {
        token: String,
    },
    Create(Box<NewRun>),
    /// Withdraw a run that is neither approved nor claimed.
    Supersede {
        run: String,
        /// Precondition of the write.
        uid: String,
        /// For people.
        why: String,
    },
    /// Delete a run that has ended.
    Delete {
        run: String,
        /// Precondition of the delete.
        uid: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewRun {
    pub name: String,
    /// The complete manifest.
    pub object: Value,
}

impl NewRun {
    pub fn trigger(&self) -> &str {
        self.object["metadata"]["annotations"][crds::names::TRIGGER]
            .as_str()
            .unwrap_or_default()
    }
}

/// The layer's status, the actions, and when to reconcile again without an event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Written before any action, if it differs.
    pub status: TerraformLayerStatus,
    /// Carried out in this order; the first error ends the sequence.
    pub actions: Vec<Action>,
    /// Events, published once the status is written.
    pub notes: Vec<Note>,
    pub requeue: Option<Duration>,
}
