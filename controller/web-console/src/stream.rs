//! Live updates: one stream of server-sent events per browser, for the topics on its screen.
//!
//! A stream has no queue: it reads the changes after its position, and sends the present rows. A slow browser misses
//! nothing but intermediate rows, or is told to read its lists again.

mod places;

use std::{collections::BTreeSet, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, Uri},
    response::{
        IntoResponse as _, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::get,
};
use futures::{Stream, StreamExt as _, stream};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use watching::Name;

use crate::{
    Console,
    access::Scope,
    lists::{LAYERS, RUNS},
    person::{self, Person},
    problem::Problem,
    rows::{Kind, LayerRow, Rows, RunRow, Sequence},
};

pub use places::Streams;

use places::Place;

/// Most topics of a stream.
const TOPICS: usize = 64;
/// Most rows of a batch; a browser that missed more reads its lists again.
const ROWS: usize = 500;
/// Time between two batches of events.
const PACE: Duration = Duration::from_millis(250);
/// Time between two events for the inbox.
const INBOX_PACE: Duration = Duration::from_secs(2);
/// Age at which the person's rights are looked up again.
const RIGHTS: Duration = Duration::from_secs(5);
/// The same without changes.
const RIGHTS_IDLE: Duration = Duration::from_secs(60);
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Data of the event `row`.
#[derive(Serialize, JsonSchema, Clone, Debug, PartialEq)]
pub struct RowEvent {
    pub kind: Kind,
    pub namespace: Box<str>,
    pub name: Box<str>,
    /// Null: it is gone, or the inbox has to be read again.
    pub row: Option<AnyRow>,
}

impl RowEvent {
    /// The inbox has to be read again.
    fn inbox() -> Self {
        Self {
            kind: Kind::Inbox,
            namespace: "".into(),
            name: "".into(),
            row: None,
        }
    }
}

/// A row of a topic.
#[derive(Serialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(untagged)]
pub enum AnyRow {
    Layer(Box<LayerRow>),
    Run(Box<RunRow>),
}

/// The topics on the screen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Topics {
    layers: bool,
    runs: bool,
    inbox: bool,
    objects: BTreeSet<(Kind, Name)>,
}

impl Topics {
    fn of(query: &str) -> Result<Self, Problem> {
        let mut topics = Self::default();
        let pairs = form_urlencoded::parse(query.as_bytes());
        for (_, topic) in pairs.filter(|(name, _)| name == "topic") {
            let mut parts = topic.split('/');
            match (parts.next(), parts.next(), parts.next(), parts.next()) {
                (Some("layers"), None, ..) => topics.layers = true,
                (Some("runs"), None, ..) => topics.runs = true,
                (Some("inbox"), None, ..) => topics.inbox = true,
                (Some(kind @ ("run" | "layer")), Some(namespace), Some(name), None) => {
                    let kind = if kind == "run" {
                        Kind::Run
                    } else {
                        Kind::Layer
                    };
                    topics
                        .objects
                        .insert((kind, (namespace.into(), name.into())));
                }
                _ => return Err(Problem::invalid(format!("{topic} is no topic"))),
            }
        }
        if topics == Self::default() || topics.objects.len() > TOPICS {
            return Err(Problem::invalid(format!(
                "a stream has 1 to {TOPICS} topics"
            )));
        }
        Ok(topics)
    }

    fn has(&self, kind: Kind, name: &Name) -> bool {
        match kind {
            Kind::Layer if self.layers => true,
            Kind::Run if self.runs => true,
            Kind::Repository | Kind::Inbox => false,
            _ => !self.objects.is_empty() && self.objects.contains(&(kind, name.clone())),
        }
    }
}

/// The namespaces that a person may list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rights {
    runs: Scope,
    layers: Scope,
}

impl Rights {
    fn has(&self, kind: Kind, namespace: &str) -> bool {
        match kind {
            Kind::Layer => self.layers.has(namespace),
            Kind::Run => self.runs.has(namespace),
            Kind::Repository | Kind::Inbox => false,
        }
    }
}

/// The events after a position.
#[derive(Debug, Default, PartialEq)]
struct Batch {
    rows: Vec<RowEvent>,
    /// Something in the inbox changed.
    inbox: bool,
    /// The browser has to read its lists again.
    resync: bool,
    /// Changes were left out that the person may not list, as far as is known.
    hidden: bool,
}

/// The changes since a position, each row once, and the new position.
fn batch(
    rows: &Rows,
    topics: &Topics,
    rights: &Rights,
    since: Option<Sequence>,
) -> (Batch, Sequence) {
    let tables = rows.read();
    let last = tables.changes.last();
    let Some(changes) = since.and_then(|since| tables.changes.since(since)) else {
        let resync = Batch {
            resync: true,
            ..Batch::default()
        };
        return (resync, last);
    };
    let (seen, hidden): (BTreeSet<_>, BTreeSet<_>) = changes
        .filter(|(kind, _)| *kind != Kind::Repository)
        .partition(|(kind, key)| rights.has(*kind, &key.0));
    let wanted: Vec<_> = seen
        .iter()
        .filter(|(kind, key)| topics.has(*kind, key))
        .collect();
    if wanted.len() > ROWS {
        let resync = Batch {
            resync: true,
            inbox: topics.inbox,
            ..Batch::default()
        };
        return (resync, last);
    }
    let wanted = wanted.into_iter();
    let events = wanted.map(|(kind, key)| RowEvent {
        kind: *kind,
        namespace: key.0.clone(),
        name: key.1.clone(),
        row: match kind {
            Kind::Layer => {
                let row = tables.layers.get(key).cloned();
                row.map(|row| AnyRow::Layer(Box::new(row)))
            }
            Kind::Run => {
                let row = tables.runs.get(key).cloned();
                row.map(|row| AnyRow::Run(Box::new(row)))
            }
            Kind::Repository | Kind::Inbox => None,
        },
    });
    let batch = Batch {
        rows: events.collect(),
        inbox: topics.inbox && !seen.is_empty(),
        resync: false,
        hidden: !hidden.is_empty(),
    };
    (batch, last)
}

/// The route of the stream.
pub fn router() -> Router<Arc<Console>> {
    Router::new().route("/api/v1/stream", get(open))
}

async fn open(
    State(console): State<Arc<Console>>,
    person: Person,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let query = uri.query().unwrap_or_default();
    let topics = Topics::of(query)?;
    let place = Place::take(&console, &person)?;
    let rights = rights(&console, &person).await?;
    // A page names the change that its rows were read after.
    let mut after = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "after");
    let after = after.next().map(|(_, value)| value.into_owned());
    let header = headers.get("last-event-id");
    let header = header.and_then(|value| value.to_str().ok());
    let position = match header.or(after.as_deref()) {
        Some(text) => text.parse().ok(),
        None => Some(console.rows.read().changes.last()),
    };
    let live = Live {
        away: console.away.subscribe(),
        told_away: false,
        changed: console.rows.changed(),
        asked: Instant::now(),
        sent: None,
        inbox_sent: None,
        inbox_due: false,
        is_first: true,
        hidden: false,
        _place: place,
        console: console.clone(),
        person: person.clone(),
        topics,
        rights,
        position,
    };
    let batches = stream::unfold(live, Live::next).flat_map(stream::iter);
    let ended = async move { person::ends(&person, &console).await };
    let events = batches.take_until(Box::pin(ended)).map(Ok::<_, Infallible>);
    Ok(response(events))
}

fn response(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let keep = KeepAlive::new().interval(HEARTBEAT);
    let unbuffered = [("x-accel-buffering", "no")];
    (unbuffered, Sse::new(events).keep_alive(keep)).into_response()
}

async fn rights(console: &Console, person: &Person) -> Result<Rights, Problem> {
    Ok(Rights {
        runs: console.scope(person, RUNS).await?,
        layers: console.scope(person, LAYERS).await?,
    })
}

/// An open stream.
struct Live {
    console: Arc<Console>,
    person: Person,
    topics: Topics,
    rights: Rights,
    asked: Instant,
    changed: watch::Receiver<()>,
    /// Whether the API server does not respond, and whether the browser was told so.
    away: watch::Receiver<bool>,
    told_away: bool,
    /// The change that was sent last; `None`: unknown here.
    position: Option<Sequence>,
    sent: Option<Instant>,
    inbox_sent: Option<Instant>,
    inbox_due: bool,
    is_first: bool,
    /// Changes were left out since the rights were looked up: a namespace may be new, or a right.
    hidden: bool,
    _place: Place,
}

impl Live {
    /// The next events; `None` once the token is refused.
    async fn next(mut self) -> Option<(Vec<Event>, Self)> {
        loop {
            if !self.is_first {
                self.wait().await;
            }
            let now = Instant::now();
            let mut resync = false;
            if now.duration_since(self.asked) >= RIGHTS {
                match rights(&self.console, &self.person).await {
                    Ok(rights) => {
                        resync = rights != self.rights && !self.is_first;
                        (self.rights, self.asked, self.hidden) = (rights, now, false);
                    }
                    Err(problem) if problem.status.is_client_error() => return None,
                    // Nothing is sent before the rights are known again.
                    Err(_) => {
                        self.sent = Some(now + Duration::from_secs(2));
                        match self.away() {
                            Some(event) => return Some((vec![event], self)),
                            None => continue,
                        }
                    }
                }
            }
            let (mut batch, position) = batch(
                &self.console.rows,
                &self.topics,
                &self.rights,
                self.position,
            );
            batch.resync |= resync;
            self.position = Some(position);
            self.sent = Some(now);
            self.hidden |= batch.hidden;
            self.inbox_due |= batch.inbox;
            let rests = self
                .inbox_sent
                .is_some_and(|sent| now.duration_since(sent) < INBOX_PACE);
            batch.inbox = self.inbox_due && !rests;
            if batch.inbox {
                (self.inbox_due, self.inbox_sent) = (false, Some(now));
            }
            let mut events = events(&batch, position, self.is_first);
            self.is_first = false;
            // Before the last one, which has the position.
            events.splice(0..0, self.away());
            if !events.is_empty() {
                return Some((events, self));
            }
        }
    }

    /// The event that tells whether the API server is away, if that changed.
    fn away(&mut self) -> Option<Event> {
        let is_away = *self.away.borrow_and_update();
        let is_new = std::mem::replace(&mut self.told_away, is_away) != is_away;
        is_new.then(|| Event::default().event("away").data(is_away.to_string()))
    }

    /// Waits for a change, and for the pace.
    async fn wait(&mut self) {
        let due = self.inbox_sent.filter(|_| self.inbox_due);
        let inbox = async {
            match due {
                Some(sent) => sleep_until(sent + INBOX_PACE).await,
                None => std::future::pending().await,
            }
        };
        let kept = if self.hidden { RIGHTS } else { RIGHTS_IDLE };
        let expires = sleep_until(self.asked + kept);
        tokio::select! {
            _ = self.changed.changed() => {}
            _ = self.away.changed() => {}
            () = inbox => {}
            () = expires => {}
        }
        if let Some(sent) = self.sent {
            sleep_until(sent + PACE).await;
        }
        self.changed.mark_unchanged();
    }
}

/// The events of a batch. The last one alone has the position: a browser that is cut off before it gets all of them again.
fn events(batch: &Batch, position: Sequence, is_first: bool) -> Vec<Event> {
    let plain = |name: &str| Event::default().event(name).data("{}");
    let inbox = batch.inbox.then(RowEvent::inbox);
    let rows = batch.rows.iter().chain(&inbox);
    let rows = rows.filter_map(|row| serde_json::to_string(row).ok());
    let first = match (batch.resync, is_first) {
        (true, _) => Some(plain("resync")),
        (false, true) => Some(plain("open")),
        (false, false) => None,
    };
    let mut events: Vec<_> = first
        .into_iter()
        .chain(rows.map(|row| Event::default().event("row").data(row)))
        .collect();
    if let Some(last) = events.pop() {
        events.push(last.id(position.to_string()));
    }
    events
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use watching::Key;

    use super::*;
    use crate::rows::tests::{layer, run, show};

    fn rights(namespace: &str) -> Rights {
        let names = BTreeSet::from([namespace.to_owned()]);
        let scope = Scope::Namespaces(Arc::new(names));
        Rights {
            runs: scope.clone(),
            layers: scope,
        }
    }

    fn told(batch: &Batch) -> Vec<String> {
        let rows = batch.rows.iter();
        rows.map(|event| format!("{:?} {}", event.kind, event.name))
            .collect()
    }

    fn phase(rows: &Rows, namespace: &str, name: &str, phase: &str) {
        show(
            rows,
            &[run(namespace, name, "net", &json!({"phase": phase}))],
            &[],
        );
    }

    #[test]
    fn topics_select_rows() {
        let rows = Rows::default();
        let start = rows.read().changes.last();
        phase(&rows, "a", "r1", "Plan");
        phase(&rows, "a", "r2", "Plan");
        show(&rows, &[], &[layer("a", "net", &json!({}))]);
        for (query, wanted, inbox) in [
            ("topic=runs", vec!["Run r1", "Run r2"], false),
            ("topic=layers", vec!["Layer net"], false),
            ("topic=run/a/r2", vec!["Run r2"], false),
            (
                "topic=layer%2Fa%2Fnet&topic=run/a/r1",
                vec!["Layer net", "Run r1"],
                false,
            ),
            ("topic=run/b/r2", vec![], false),
            ("topic=inbox", vec![], true),
        ] {
            let topics = Topics::of(query).unwrap();
            let (batch, _) = batch(&rows, &topics, &rights("a"), Some(start));
            assert_eq!(
                (told(&batch), batch.inbox),
                (wanted.into_iter().map(str::to_owned).collect(), inbox),
                "{query}"
            );
        }
        for query in [
            "",
            "topic=",
            "topic=pods",
            "topic=run",
            "topic=run/a",
            "topic=run/a/b/c",
            "topic=layers/a",
        ] {
            assert!(Topics::of(query).is_err(), "{query}");
        }
    }

    #[test]
    fn changes_of_one_row_coalesce_into_its_present_state() {
        let rows = Rows::default();
        let topics = Topics::of("topic=runs").unwrap();
        let start = rows.read().changes.last();
        for word in ["Setup", "Init", "Plan", "Apply"] {
            phase(&rows, "a", "r1", word);
        }
        let (first, seen) = batch(&rows, &topics, &rights("a"), Some(start));
        assert_eq!(told(&first), ["Run r1"]);
        let data = serde_json::to_value(&first.rows[0]).unwrap();
        assert_eq!(
            (&data["kind"], &data["row"]["phase"]),
            (&json!("run"), &json!("Apply"))
        );
        assert_eq!(
            batch(&rows, &topics, &rights("a"), Some(seen)).0,
            Batch::default()
        );
        let key = Key::new(("a".into(), "r1".into()));
        watching::Index::<crds::TerraformRun>::delete(&rows, &key);
        let (gone, _) = batch(&rows, &topics, &rights("a"), Some(seen));
        let data = serde_json::to_value(&gone.rows[0]).unwrap();
        assert_eq!(
            data,
            json!({"kind": "run", "namespace": "a", "name": "r1", "row": null})
        );
    }

    #[test]
    fn change_in_another_namespace_is_not_sent() {
        let rows = Rows::default();
        let start = rows.read().changes.last();
        phase(&rows, "b", "secret", "Plan");
        let topics = Topics::of("topic=runs&topic=inbox&topic=run/b/secret").unwrap();
        let (hidden, seen) = batch(&rows, &topics, &rights("a"), Some(start));
        let nothing = Batch {
            hidden: true,
            ..Batch::default()
        };
        assert_eq!(hidden, nothing);
        assert!(
            events(&hidden, seen, false).is_empty(),
            "nor that something changed"
        );
    }

    #[test]
    fn browser_resumes_or_reads_again() {
        let (rows, topics) = (Rows::default(), Topics::of("topic=runs").unwrap());
        phase(&rows, "a", "r1", "Plan");
        let seen = rows.read().changes.last().to_string().parse().ok();
        phase(&rows, "a", "r2", "Plan");
        assert_eq!(
            told(&batch(&rows, &topics, &rights("a"), seen).0),
            ["Run r2"]
        );
        // Of another process, or no number at all.
        let other = Rows::default().read().changes.last();
        for position in [Some(other), None] {
            let (batch, _) = batch(&rows, &topics, &rights("a"), position);
            assert!(batch.resync && batch.rows.is_empty());
        }
        // A browser that reads slowly.
        for number in 0..=ROWS {
            phase(&rows, "a", &format!("s{number}"), "Plan");
        }
        let (batch, _) = batch(&rows, &topics, &rights("a"), seen);
        assert!(batch.resync && batch.rows.is_empty());
    }
}
