//! Events that a person can follow, published beside the work and never in its way.

use std::time::Duration;

use kube::{
    Client, Resource, ResourceExt,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crds::{TerraformRun, termination::clip};

use crate::run::Note;

/// The most bytes of an Event's note, in characters of up to three bytes.
const MAX_NOTE: usize = 340;

/// Publishes Events.
#[derive(Clone)]
pub struct Events(Recorder);

impl Events {
    /// Publishes in the name of the controller.
    pub fn new(client: Client) -> Self {
        let instance = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
        Self(Recorder::new(client, Reporter { controller: "pawl-controller".into(), instance }))
    }

    /// Publishes notes on a run, in their order, from a task of its own.
    pub fn publish(&self, run: &TerraformRun, notes: Vec<Note>) {
        if notes.is_empty() {
            return;
        }
        let (recorder, about) = (self.0.clone(), run.object_ref(&()));
        tokio::spawn(async move {
            for note in notes {
                let event = Event {
                    type_: if note.warning { EventType::Warning } else { EventType::Normal },
                    reason: note.reason.into(),
                    note: Some(clip(&note.text, MAX_NOTE)),
                    action: "Reconcile".into(),
                    secondary: None,
                };
                let published = tokio::time::timeout(Duration::from_secs(10), recorder.publish(&event, &about)).await;
                if let Ok(Err(error)) = published {
                    tracing::debug!(%error, reason = note.reason, "event lost");
                }
            }
        });
    }

    /// A run was pruned.
    pub fn pruned(&self, run: &TerraformRun) {
        let text = format!("run {} was deleted after its time", run.name_any());
        self.publish(run, vec![Note { reason: "Pruned", warning: false, text }]);
    }
}
