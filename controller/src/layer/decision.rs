//! What may be decided on a layer: plain values.

use std::time::Duration;

use serde_json::Value;

use crds::TerraformLayerStatus;

use crate::events::Note;

/// An order to the executor.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read the lines of a run's changes: they are not kept in memory.
    Read {
        run: String,
    },
    /// Hold the layer until what it made is destroyed.
    AddFinalizer,
    /// Let it go.
    RemoveFinalizer,
    /// Put a word of our own in the place of `pawl.run/plan=now`.
    TakeAsk {
        token: String,
    },
    Create(Box<NewRun>),
    /// Take a run back that nobody has approved or claimed.
    Supersede {
        run: String,
        /// Its UID, a precondition.
        uid: String,
        /// Why, for people.
        why: String,
    },
    /// Delete a run that has ended.
    Delete {
        run: String,
        /// Its UID, a precondition.
        uid: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewRun {
    pub name: String,
    /// The whole object.
    pub object: Value,
}

impl NewRun {
    pub fn trigger(&self) -> &str {
        self.object["metadata"]["annotations"][crds::names::TRIGGER].as_str().unwrap_or_default()
    }
}

/// What is to be done now, what the layer says, and when to look again though nothing changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// What the layer says; written before anything else is done, when it differs.
    pub status: TerraformLayerStatus,
    /// In this order; an error ends the sequence.
    pub actions: Vec<Action>,
    /// Events to publish when the status was written.
    pub notes: Vec<Note>,
    pub requeue: Option<Duration>,
}
