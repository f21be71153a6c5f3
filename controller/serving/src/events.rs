//! Publishes Events for people, in the background.
//!
//! Names and aggregation equal those of `kube::runtime::events::Recorder`. The Recorder retains every Event for six
//! minutes and walks all of them under a lock at each publication, while a thousand runs publish several thousand. This
//! one retains four numbers for each.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crds::{names, text::clip};

/// Maximum size of an Event's note, in bytes.
const MAX_NOTE: usize = 1024;
/// A repetition within this time increments the count.
const AGAIN: SignedDuration = SignedDuration::from_mins(6);

/// An Event to publish after a successful write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The reason, one word.
    pub reason: &'static str,
    pub warning: bool,
    /// One line for people.
    pub text: String,
}

#[derive(Clone)]
pub struct Events {
    client: Client,
    /// The reporting component.
    reporter: &'static str,
    instance: String,
    said: Arc<Mutex<Said>>,
}

/// Recent publications: a few numbers each, because a thousand concurrent runs publish several thousand.
#[derive(Default)]
struct Said {
    by_fact: HashMap<u64, Series>,
    /// Times of publications, earliest first.
    order: VecDeque<(Timestamp, u64)>,
}

/// First and last publication of a fact, and their count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    first: Timestamp,
    last: Timestamp,
    count: i32,
}

impl Said {
    /// The series of a fact that is published now.
    fn next(&self, fact: u64, now: Timestamp) -> Series {
        let before = self
            .by_fact
            .get(&fact)
            .filter(|series| now.duration_since(series.last) < AGAIN);
        before.map_or(
            Series {
                first: now,
                last: now,
                count: 1,
            },
            |series| Series {
                last: now,
                count: series.count.saturating_add(1),
                ..*series
            },
        )
    }

    /// Records a publication; drops expired ones.
    fn done(&mut self, fact: u64, series: Series) {
        self.by_fact.insert(fact, series);
        self.order.push_back((series.last, fact));
        while let Some((_, old)) = self
            .order
            .front()
            .copied()
            .filter(|(at, _)| series.last.duration_since(*at) >= AGAIN)
        {
            self.order.pop_front();
            if self
                .by_fact
                .get(&old)
                .is_some_and(|kept| series.last.duration_since(kept.last) >= AGAIN)
            {
                self.by_fact.remove(&old);
            }
        }
    }
}

impl Events {
    /// Publishes as this component.
    pub fn new(client: Client, reporter: &'static str) -> Self {
        let instance = std::env::var("HOSTNAME")
            .ok()
            .filter(|name| !name.is_empty());
        Self {
            client,
            reporter,
            instance: instance.unwrap_or_else(|| reporter.into()),
            said: Arc::default(),
        }
    }

    /// Publishes notes about an object, in order, from a separate task.
    pub fn publish(&self, run: &impl Resource<DynamicType = ()>, notes: Vec<Note>) {
        if notes.is_empty() {
            return;
        }
        let (events, about) = (self.clone(), run.object_ref(&()));
        tokio::spawn(async move {
            for note in notes {
                let said =
                    tokio::time::timeout(Duration::from_secs(10), events.say(&about, &note)).await;
                if let Ok(Err(error)) = said {
                    tracing::debug!(%error, reason = note.reason, "event lost");
                }
            }
        });
    }

    pub fn pruned(&self, run: &impl Resource<DynamicType = ()>) {
        let text = format!("run {} was deleted after its time", run.name_any());
        self.publish(
            run,
            vec![Note {
                reason: "Pruned",
                warning: false,
                text,
            }],
        );
    }

    async fn say(&self, about: &ObjectReference, note: &Note) -> kube::Result<()> {
        let fact = fact(about, note);
        let series = self.said().next(fact, Timestamp::now());
        let api: Api<Event> = Api::namespaced(
            self.client.clone(),
            about.namespace.as_deref().unwrap_or("default"),
        );
        let name = format!(
            "{}.{:x}",
            about.name.as_deref().unwrap_or(self.reporter),
            series.first.as_nanosecond()
        );
        if series.count == 1 {
            api.create(
                &PostParams::default(),
                &self.event(name, about, note, series.first),
            )
            .await?;
        } else {
            let counted = EventSeries {
                count: series.count,
                last_observed_time: MicroTime(series.last),
            };
            api.patch_metadata(
                &name,
                &PatchParams::default(),
                &Patch::Merge(json!({"series": counted})),
            )
            .await?;
        }
        self.said().done(fact, series);
        Ok(())
    }

    fn event(&self, name: String, about: &ObjectReference, note: &Note, at: Timestamp) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            action: Some(action(note)),
            event_time: Some(MicroTime(at)),
            note: Some(fitting(&note.text)),
            reason: Some(note.reason.into()),
            regarding: Some(about.clone()),
            reporting_controller: Some(self.reporter.into()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(if note.warning { "Warning" } else { "Normal" }.into()),
            ..Event::default()
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A different action for each note, which `kubectl` does not show. Viewers would aggregate Events that differ only in
/// their note, and show the first note.
fn action(note: &Note) -> String {
    format!("Reconcile-{}", names::short_hash(&note.text))
}

/// A hash of an object and a note about it.
fn fact(about: &ObjectReference, note: &Note) -> u64 {
    let mut hasher = DefaultHasher::new();
    (
        &about.uid,
        &about.namespace,
        &about.name,
        note.reason,
        note.warning,
        &note.text,
    )
        .hash(&mut hasher);
    hasher.finish()
}

/// Clips a text to the maximum size.
fn fitting(text: &str) -> String {
    let cut = text
        .char_indices()
        .take_while(|(at, _)| *at <= MAX_NOTE - '…'.len_utf8())
        .count();
    clip(
        text,
        if text.len() <= MAX_NOTE {
            MAX_NOTE
        } else {
            cut
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: &str) -> Note {
        Note {
            reason: "AttemptStarted",
            warning: false,
            text: text.into(),
        }
    }

    #[test]
    fn event_note_is_clipped_to_the_api_servers_limit() {
        for (text, whole) in [
            ("x".repeat(1024), true),
            ("x".repeat(1025), false),
            ("ü".repeat(512), true),
            ("…".repeat(400), false),
        ] {
            let note = fitting(&text);
            assert!(
                note.len() <= MAX_NOTE && (note == text) == whole && note.len() > MAX_NOTE - 8,
                "{}",
                note.len()
            );
        }
    }

    #[test]
    fn only_equal_events_are_aggregated() {
        let about = ObjectReference {
            name: Some("net".into()),
            ..ObjectReference::default()
        };
        let (first, second) = (
            note("attempt 1 of at most 4: pod net-x8dlm-a1"),
            note("attempt 2 of at most 4: pod net-x8dlm-a2"),
        );
        assert_ne!(action(&first), action(&second));
        assert_ne!(fact(&about, &first), fact(&about, &second));
        assert_eq!(fact(&about, &first), fact(&about, &first.clone()));
        assert!(
            action(&note(&"x".repeat(4000))).len() <= 128,
            "the API server's bound"
        );
    }

    #[test]
    fn repeated_events_are_counted_and_expired_ones_dropped() {
        let mut said = Said::default();
        let at = |seconds| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
        let say = |said: &mut Said, fact, seconds| {
            let series = said.next(fact, at(seconds));
            said.done(fact, series);
            (series.first, series.count)
        };
        assert_eq!(say(&mut said, 1, 0), (at(0), 1));
        assert_eq!(say(&mut said, 1, 300), (at(0), 2));
        assert_eq!(say(&mut said, 2, 301), (at(301), 1), "another");
        assert_eq!(say(&mut said, 1, 659), (at(0), 3), "the last time counts");
        assert_eq!(say(&mut said, 3, 700), (at(700), 1));
        assert_eq!(
            (said.by_fact.len(), said.order.len()),
            (2, 2),
            "the second is over"
        );
        assert_eq!(say(&mut said, 1, 1019), (at(1019), 1), "said anew");
    }
}
