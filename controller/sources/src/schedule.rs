//! Decides when a repository is checked: pure over known facts and the time.

use std::{collections::BTreeMap, time::Duration};

use crds::{FailureClass, LayerSource, RefStatus, backoff::Backoff};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::{
    follow::{Key, Layer, View},
    relevance::Subject,
};

/// After a start, checks of known repositories are spread over this time.
const START: Duration = Duration::from_secs(60);
/// First wait between checks of a repository that does not respond; its own interval is the maximum.
const FIRST: Duration = Duration::from_secs(10);
/// Backoff for a ref with a transient failure.
const OF_TRANSIENT: Backoff = Backoff {
    base: FIRST,
    cap: Duration::from_secs(300),
};
/// Backoff for a ref with a failure that needs a person.
const OF_OTHERS: Backoff = Backoff {
    base: FIRST,
    cap: Duration::from_secs(3600),
};
/// Backoff after a request that found nothing new: a forge may report a push before its servers show it.
const OF_REQUESTS: Backoff = Backoff {
    base: Duration::from_secs(3),
    cap: Duration::from_secs(6),
};
/// Number of checks after such a request.
const AFTER_REQUEST: u32 = 2;
/// Backoff for failed status writes.
const OF_WRITES: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(60),
};

/// Duration of a check from which its repository is slow, and how long it then is.
const SLOW: Duration = Duration::from_secs(20);
const STAYS_SLOW: SignedDuration = SignedDuration::from_hours(1);

/// Consecutive failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tries {
    /// When the last one happened.
    pub at: Timestamp,
    pub times: u32,
}

impl Tries {
    pub fn more(before: Option<Self>, at: Timestamp) -> Self {
        Self {
            at,
            times: before.map_or(0, |before| before.times).saturating_add(1),
        }
    }
}

/// In-memory facts about a repository, besides its status. They are not needed after a restart.
#[derive(Clone, Debug)]
pub struct Memory {
    /// When following started.
    pub started: Timestamp,
    /// When its refs were last checked.
    pub looked: Option<Timestamp>,
    /// When a check or a fetch last took long.
    pub slow: Option<Timestamp>,
    /// Checks without a response.
    pub failed: Option<Tries>,
    /// Checks without news since a request.
    pub unmoved: Option<Tries>,
    /// Writes that failed.
    pub unwritten: Option<Tries>,
    /// Failures of refs.
    pub refs: BTreeMap<String, Tries>,
    /// The last answer to each layer.
    pub answered: BTreeMap<Key, Answer>,
}

/// A layer's request at the time of an answer, and the status that answered it. If the status differs later, a write that was believed lost
/// took effect, or another writer changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub of: String,
    pub subject: Subject,
    pub source: Option<LayerSource>,
}

impl Answer {
    pub fn new(layer: &Layer, subject: Subject) -> Self {
        Self {
            of: layer.of.clone(),
            subject,
            source: layer.source.clone(),
        }
    }
}

impl Memory {
    pub const fn new(started: Timestamp) -> Self {
        Self {
            started,
            looked: None,
            slow: None,
            failed: None,
            unmoved: None,
            unwritten: None,
            refs: BTreeMap::new(),
            answered: BTreeMap::new(),
        }
    }

    /// Records the duration of a check or a fetch.
    pub fn took(&mut self, time: Duration, now: Timestamp) {
        if time >= SLOW {
            self.slow = Some(now);
        }
    }

    /// Records whether a check found a new commit.
    pub fn found(&mut self, news: bool, cause: Cause, now: Timestamp) {
        let before = self.unmoved.filter(|_| cause != Cause::Request);
        let counts = !news && (cause == Cause::Request || before.is_some());
        self.unmoved = counts
            .then(|| Tries::more(before, now))
            .filter(|tries| tries.times <= AFTER_REQUEST);
    }

    pub fn is_slow(&self, now: Timestamp) -> bool {
        self.slow
            .is_some_and(|at| now.duration_since(at) < STAYS_SLOW)
    }

    /// Records layers seen for the first time: a status for the current spec counts as an answer to the current
    /// settings. Drops deleted layers.
    pub fn meets(&mut self, view: &View) {
        let defaults = &view.repository.spec.defaults;
        for layer in view.layers.iter().filter(|layer| layer.is_current()) {
            self.answered
                .entry(layer.key.clone())
                .or_insert_with(|| Answer::new(layer, layer.subject(defaults)));
        }
        self.answered
            .retain(|key, _| view.layers.iter().any(|layer| layer.key == *key));
        self.refs
            .retain(|name, _| view.layers.iter().any(|layer| layer.git_ref == *name));
    }

    /// Whether the layer's current request was answered and its status is unchanged.
    pub fn has_answered(&self, layer: &Layer, view: &View) -> bool {
        let defaults = &view.repository.spec.defaults;
        let answer = self.answered.get(&layer.key);
        answer.is_some_and(|answer| {
            answer.of == layer.of
                && answer.source == layer.source
                && answer.subject == layer.subject(defaults)
        })
    }
}

/// The cause of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A person or webhook requested it.
    Request,
    /// Its spec changed.
    Spec,
    /// A layer uses a ref that was not checked yet, or its settings changed.
    Layer,
    Interval,
    /// The retry of a failed ref.
    Retry,
}

impl Cause {
    /// The name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Spec => "spec",
            Self::Layer => "layer",
            Self::Interval => "interval",
            Self::Retry => "retry",
        }
    }
}

/// When a repository is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Now(Cause),
    /// At this time, unless an event comes first.
    At(Timestamp),
    /// Only after an event.
    Never,
}

pub fn due(view: &View, memory: &Memory, now: Timestamp) -> Due {
    let spec = &view.repository.spec;
    if let Some(tries) = memory.unwritten {
        let then = later(
            tries.at,
            OF_WRITES.spread(tries.times, hash(view.uid(), u64::from(tries.times))),
        );
        if then > now {
            return Due::At(then);
        }
    }
    if spec.suspend {
        return Due::Never;
    }
    let status = view.repository.status.as_ref();
    if view.request() != status.and_then(|status| status.last_handled_reconcile.as_ref())
        && view.request().is_some()
    {
        return Due::Now(Cause::Request);
    }
    if status.and_then(|status| status.observed_generation) != view.repository.metadata.generation {
        return Due::Now(Cause::Spec);
    }
    if let Some(tries) = memory.failed {
        let backoff = Backoff {
            base: FIRST,
            cap: spec.interval.0.max(FIRST),
        };
        let then = later(
            tries.at,
            backoff.spread(tries.times, hash(view.uid(), u64::from(tries.times))),
        );
        return if then > now {
            Due::At(then)
        } else {
            Due::Now(Cause::Interval)
        };
    }
    let mut next = next_look(view, memory);
    if let Some(tries) = memory.unmoved {
        next = next.min(later(tries.at, OF_REQUESTS.after(tries.times)));
    }
    if next <= now {
        return Due::Now(Cause::Interval);
    }
    let refs = view.refs();
    let goes = |known: &&RefStatus| known.failure.is_some() && !refs.contains(&known.name.as_str());
    if status.is_some_and(|status| status.refs.iter().any(|known| goes(&known))) {
        // The repository's message names a fault of no layer any more.
        return Due::Now(Cause::Layer);
    }
    for name in refs.iter().copied() {
        match status.and_then(|status| status.refs.iter().find(|known| known.name == name)) {
            None => return Due::Now(Cause::Layer),
            Some(RefStatus { failure: None, .. }) => {
                if view
                    .of_ref(name)
                    .any(|layer| !memory.has_answered(layer, view))
                {
                    return Due::Now(Cause::Layer);
                }
            }
            Some(known) => {
                let then = retry(known, memory);
                if then <= now {
                    return Due::Now(Cause::Retry);
                }
                next = next.min(then);
            }
        }
    }
    Due::At(next)
}

/// Whether a ref is checked: always if it did not fail, otherwise when its retry is due.
pub fn is_tried(known: &RefStatus, memory: &Memory, cause: Cause, now: Timestamp) -> bool {
    known.failure.is_none()
        || matches!(cause, Cause::Request | Cause::Spec)
        || retry(known, memory) <= now
}

/// When a failed ref is retried: immediately after a restart, since the time of the failure is in memory only.
fn retry(known: &RefStatus, memory: &Memory) -> Timestamp {
    let (Some(failure), Some(tries)) = (&known.failure, memory.refs.get(&known.name)) else {
        return Timestamp::MIN;
    };
    let backoff = if failure.class == FailureClass::Transient {
        OF_TRANSIENT
    } else {
        OF_OTHERS
    };
    later(tries.at, backoff.after(failure.times))
}

/// The end of the interval: 90 to 110 % of it, derived from the repository's UID and the last check.
fn next_look(view: &View, memory: &Memory) -> Timestamp {
    let interval = view.repository.spec.interval.0;
    let Some(looked) = memory.looked else {
        // Known repositories can wait while new ones are checked.
        let has_refs = view
            .repository
            .status
            .as_ref()
            .is_some_and(|status| !status.conditions.is_empty());
        let spread = u64::try_from(interval.min(START).as_millis()).unwrap_or(u64::MAX);
        let wait = if has_refs {
            hash(view.uid(), 0) % spread.max(1)
        } else {
            0
        };
        return later(memory.started, Duration::from_millis(wait));
    };
    let tenths = 900
        + hash(
            view.uid(),
            u64::try_from(looked.as_second()).unwrap_or_default(),
        ) % 201;
    later(
        looked,
        interval.saturating_mul(u32::try_from(tenths).unwrap_or(1000)) / 1000,
    )
}

/// A number derived from a UID and another number.
fn hash(uid: &str, n: u64) -> u64 {
    let digest = Sha256::digest(format!("{uid} {n}"));
    digest
        .first_chunk::<8>()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

pub(crate) fn later(at: Timestamp, wait: Duration) -> Timestamp {
    at.checked_add(SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX))
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use crds::{TerraformLayer, TerraformRepository, names};
    use serde_json::{Value, json};

    use super::*;
    use crate::follow::Follow;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// The commit that a forge reports may be on its servers some seconds later.
    #[test]
    fn request_without_news_is_followed_by_two_more_checks() {
        let mut memory = Memory::new(at(0));
        let mut due = Vec::new();
        memory.found(false, Cause::Request, at(0));
        while let Some(tries) = memory.unmoved {
            let then = later(tries.at, OF_REQUESTS.after(tries.times));
            due.push(then.duration_since(at(0)).as_secs());
            memory.found(false, Cause::Interval, then);
        }
        assert_eq!(due, [3, 9]);
        memory.found(false, Cause::Interval, at(60));
        assert_eq!(memory.unmoved, None, "only after a request");
        memory.found(false, Cause::Request, at(70));
        memory.found(true, Cause::Interval, at(73));
        assert_eq!(memory.unmoved, None, "it came");
    }

    #[test]
    fn one_slow_check_makes_a_repository_slow_for_an_hour() {
        let mut memory = Memory::new(at(0));
        memory.took(Duration::from_secs(19), at(0));
        assert!(!memory.is_slow(at(0)));
        memory.took(Duration::from_secs(300), at(300));
        // A fast one in between gives nothing back.
        memory.took(Duration::from_secs(1), at(400));
        assert!(memory.is_slow(at(3899)) && !memory.is_slow(at(3900)));
    }

    /// A repository with a one-minute interval and a layer on `main`, its status, and whether the layer has a source.
    fn view(spec: &Value, status: Value, source: bool) -> View {
        let mut all = json!({"url": "https://h/r", "interval": "1m"});
        all.as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        let mut repository = TerraformRepository::new("r", serde_json::from_value(all).unwrap());
        let meta = &mut repository.metadata;
        (meta.namespace, meta.uid, meta.generation) = (Some("a".into()), Some("u".into()), Some(1));
        repository.status = serde_json::from_value(status).unwrap();
        let mut layer = TerraformLayer::new(
            "l",
            serde_json::from_value(json!({"repository": {"name": "r"}})).unwrap(),
        );
        layer.metadata.namespace = Some("a".into());
        if source {
            let source =
                json!({"source": {"of": layer.source_of(), "revision": "a", "content": "x"}});
            layer.status = serde_json::from_value(source).unwrap();
        }
        let mut follow = Follow::default();
        follow.repository(repository);
        follow.layer(&layer);
        follow.view(&("a".into(), "r".into())).unwrap()
    }

    fn known() -> Value {
        let condition = json!({"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        json!({"observedGeneration": 1, "conditions": [condition], "refs": [{"name": "main", "commit": {"revision": "a"}}]})
    }

    fn failing(class: &str, times: u32) -> Value {
        let mut status = known();
        status["refs"][0]["failure"] = json!({"class": class, "reason": "R", "message": "", "nextStep": "",
            "since": "2026-01-01T00:00:00Z", "times": times});
        status
    }

    fn memory(view: &View) -> Memory {
        let mut memory = Memory {
            looked: Some(at(0)),
            ..Memory::new(at(-1000))
        };
        memory.meets(view);
        memory
    }

    fn seconds(due: Due) -> f64 {
        match due {
            Due::At(then) => then.duration_since(at(0)).as_secs_f64(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn interval_has_a_stable_jitter_of_ten_percent() {
        let view = view(&json!({}), known(), true);
        let mut seen = std::collections::BTreeSet::new();
        for second in 0..50 {
            let memory = Memory {
                looked: Some(at(second * 60)),
                ..memory(&view)
            };
            let then = due(&view, &memory, at(second * 60));
            let wait = seconds(then) - f64::from(i32::try_from(second * 60).unwrap());
            assert!((54.0..=66.0).contains(&wait), "{wait}");
            assert_eq!(due(&view, &memory, at(second * 60 + 10)), then);
            seen.insert((wait * 1000.0).round().to_string());
        }
        assert!(seen.len() > 20, "{seen:?}");
        assert_eq!(
            due(&view, &memory(&view), at(67)),
            Due::Now(Cause::Interval)
        );
    }

    #[test]
    fn after_a_start_new_repositories_are_checked_first() {
        let new = view(&json!({}), json!({"observedGeneration": 1}), false);
        assert_eq!(
            due(&new, &Memory::new(at(0)), at(0)),
            Due::Now(Cause::Interval)
        );
        let known = view(&json!({}), known(), true);
        let mut memory = Memory::new(at(0));
        memory.meets(&known);
        let wait = seconds(due(&known, &memory, at(0)));
        assert!((0.0..60.0).contains(&wait) && wait > 0.0, "{wait}");
        assert_eq!(due(&known, &memory, at(60)), Due::Now(Cause::Interval));
    }

    #[test]
    fn requests_and_changed_specs_or_layers_are_due_at_once() {
        let now = at(1);
        let mut view_ = view(&json!({}), known(), true);
        assert!(matches!(due(&view_, &memory(&view_), now), Due::At(_)));
        let mut requested = (*view_.repository).clone();
        requested.metadata.annotations =
            Some([(names::RECONCILE.to_owned(), "1".to_owned())].into());
        view_.repository = std::sync::Arc::new(requested.clone());
        assert_eq!(due(&view_, &memory(&view_), now), Due::Now(Cause::Request));
        requested.status.as_mut().unwrap().last_handled_reconcile = Some("1".into());
        view_.repository = std::sync::Arc::new(requested);
        assert!(
            matches!(due(&view_, &memory(&view_), now), Due::At(_)),
            "it is answered"
        );

        let mut older = known();
        older["observedGeneration"] = json!(0);
        let other = view(&json!({}), older, true);
        assert_eq!(due(&other, &memory(&other), now), Due::Now(Cause::Spec));
        let mut without = known();
        without["refs"] = json!([]);
        let without = view(&json!({}), without, false);
        assert_eq!(
            due(&without, &memory(&without), now),
            Due::Now(Cause::Layer)
        );
        let mut left = failing("Configuration", 1);
        left["refs"][0]["name"] = json!("of a deleted layer");
        left["refs"]
            .as_array_mut()
            .unwrap()
            .extend(known()["refs"].as_array().unwrap().clone());
        let left = view(&json!({}), left, true);
        assert_eq!(due(&left, &memory(&left), now), Due::Now(Cause::Layer));
        let fresh = view(&json!({}), known(), false);
        assert_eq!(due(&fresh, &memory(&fresh), now), Due::Now(Cause::Layer));
        let mut memory_ = memory(&fresh);
        let layer = &fresh.layers[0];
        let answer = Answer::new(layer, layer.subject(&fresh.repository.spec.defaults));
        memory_.answered.insert(layer.key.clone(), answer);
        assert!(
            matches!(due(&fresh, &memory_, now), Due::At(_)),
            "what was answered is not asked in a circle"
        );
        let late = view(&json!({}), known(), true);
        assert_eq!(
            due(&late, &memory_, now),
            Due::Now(Cause::Layer),
            "it says something else than it was told"
        );
        let other = view(
            &json!({"defaults": {"variableFiles": [{"path": "x.tfvars"}]}}),
            known(),
            true,
        );
        assert_eq!(
            due(&other, &memory(&late), now),
            Due::Now(Cause::Layer),
            "other settings"
        );
    }

    #[test]
    fn suspended_repository_is_never_due() {
        let view = view(&json!({"suspend": true}), json!({}), false);
        assert_eq!(due(&view, &Memory::new(at(0)), at(9_999_999)), Due::Never);
    }

    /// Burrito 11.11: a failure to get a token stopped polling until another event. Here a check without a response
    /// always has a successor, no later than the interval.
    #[test]
    fn unreachable_repository_is_retried_forever() {
        let view = view(&json!({}), known(), true);
        for times in [1, 2, 3, 10, 1000, u32::MAX] {
            let memory = Memory {
                failed: Some(Tries { at: at(0), times }),
                ..memory(&view)
            };
            let wait = seconds(due(&view, &memory, at(0)));
            let most = 10.0 * 2f64.powi(i32::try_from(times.min(10)).unwrap() - 1);
            assert!(
                wait >= most.min(60.0) / 2.0 && wait <= most.min(60.0),
                "{times}: {wait}"
            );
            assert_eq!(due(&view, &memory, at(61)), Due::Now(Cause::Interval));
        }
    }

    /// Burrito 11.12: a failing ref was requested every ten seconds forever.
    #[test]
    fn failing_ref_backs_off() {
        let rows = [
            ("Configuration", 1, 10),
            ("Configuration", 3, 40),
            ("Transient", 30, 300),
            ("Configuration", 30, 3600),
        ];
        for (class, times, wait) in rows {
            let view = view(&json!({"interval": "24h"}), failing(class, times), true);
            let mut memory = memory(&view);
            memory.refs.insert(
                "main".into(),
                Tries {
                    at: at(0),
                    times: 1,
                },
            );
            assert_eq!(
                due(&view, &memory, at(0)),
                Due::At(at(wait)),
                "{class} {times}"
            );
            assert_eq!(due(&view, &memory, at(wait)), Due::Now(Cause::Retry));
            let known = &view.repository.status.as_ref().unwrap().refs[0];
            assert!(
                !is_tried(known, &memory, Cause::Interval, at(wait - 1))
                    && is_tried(known, &memory, Cause::Request, at(0))
            );
        }
    }

    #[test]
    fn failed_write_is_retried_with_backoff() {
        let view = view(&json!({}), json!({}), false);
        let memory = Memory {
            unwritten: Some(Tries {
                at: at(0),
                times: 1,
            }),
            ..memory(&view)
        };
        assert!((0.5..=1.0).contains(&seconds(due(&view, &memory, at(0)))));
        assert_eq!(due(&view, &memory, at(1)), Due::Now(Cause::Spec));
    }
}
