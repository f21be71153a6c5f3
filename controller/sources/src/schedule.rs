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
mod tests;
