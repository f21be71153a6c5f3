//! Events that a person can follow, published beside the work and never in its way.

use std::time::Duration;

use kube::{
    Client, Resource, ResourceExt,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crds::{names, text::clip};

/// The most bytes of an Event's note.
const MAX_NOTE: usize = 1024;

/// An Event to be published when a write succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// One word.
    pub reason: &'static str,
    /// Whether it is a warning.
    pub warning: bool,
    /// For people; one line.
    pub text: String,
}

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
    pub fn publish(&self, run: &impl Resource<DynamicType = ()>, notes: Vec<Note>) {
        if notes.is_empty() {
            return;
        }
        let (recorder, about) = (self.0.clone(), run.object_ref(&()));
        tokio::spawn(async move {
            for note in notes {
                let event = event(&note);
                let published = tokio::time::timeout(Duration::from_secs(10), recorder.publish(&event, &about)).await;
                if let Ok(Err(error)) = published {
                    tracing::debug!(%error, reason = note.reason, "event lost");
                }
            }
        });
    }

    /// A run was pruned.
    pub fn pruned(&self, run: &impl Resource<DynamicType = ()>) {
        let text = format!("run {} was deleted after its time", run.name_any());
        self.publish(run, vec![Note { reason: "Pruned", warning: false, text }]);
    }
}

/// The recorder counts Events up that are the same but for their note, and keeps the first note: the action, which `kubectl` does
/// not show, tells one fact from another.
fn event(note: &Note) -> Event {
    Event {
        type_: if note.warning { EventType::Warning } else { EventType::Normal },
        reason: note.reason.into(),
        note: Some(fitting(&note.text)),
        action: format!("Reconcile-{}", names::short_hash(&note.text)),
        secondary: None,
    }
}

/// As much of a text as fits.
fn fitting(text: &str) -> String {
    let cut = text.char_indices().take_while(|(at, _)| *at <= MAX_NOTE - '…'.len_utf8()).count();
    clip(text, if text.len() <= MAX_NOTE { MAX_NOTE } else { cut })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_as_long_as_the_api_server_takes() {
        for (text, whole) in
            [("x".repeat(1024), true), ("x".repeat(1025), false), ("ü".repeat(512), true), ("…".repeat(400), false)]
        {
            let note = fitting(&text);
            assert!(note.len() <= MAX_NOTE && (note == text) == whole && note.len() > MAX_NOTE - 8, "{}", note.len());
        }
    }

    #[test]
    fn only_the_same_fact_is_counted_up() {
        let told = |text: &str| event(&Note { reason: "AttemptStarted", warning: false, text: text.into() });
        let (first, second) =
            (told("attempt 1 of at most 4: pod net-x8dlm-a1"), told("attempt 2 of at most 4: pod net-x8dlm-a2"));
        assert_ne!(first.action, second.action);
        assert_eq!(first.action, told("attempt 1 of at most 4: pod net-x8dlm-a1").action);
        assert_eq!(second.note.as_deref(), Some("attempt 2 of at most 4: pod net-x8dlm-a2"));
        assert!(told(&"x".repeat(4000)).action.len() <= 128, "the API server's bound");
    }
}
