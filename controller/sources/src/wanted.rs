//! Schedules the fetches of revisions that runs wait for, independent of refs.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use crds::{backoff::Backoff, datastore::WantedRevision};
use jiff::Timestamp;

use crate::schedule::{Tries, later};

/// Wait before the stream of wanted revisions is opened again.
pub const PAUSE: Duration = Duration::from_secs(5);
/// Backoff between tries of one revision: the server may be asked for a revision that it does not have.
const AGAIN: Backoff = Backoff {
    base: Duration::from_secs(10),
    cap: Duration::from_secs(300),
};

/// Wanted revisions by the UID of the repository, with their tries.
#[derive(Debug, Default)]
pub struct Wanted(BTreeMap<String, BTreeMap<String, Option<Tries>>>);

impl Wanted {
    /// Takes the datastore's list; returns the repositories with a due revision.
    pub fn told(&mut self, list: Vec<WantedRevision>, now: Timestamp) -> BTreeSet<String> {
        let mut before = mem::take(&mut self.0);
        for WantedRevision { uid, revision, .. } in list {
            let tries = before
                .get_mut(&uid)
                .and_then(|of| of.remove(&revision))
                .flatten();
            self.0.entry(uid).or_default().insert(revision, tries);
        }
        self.0
            .keys()
            .filter(|uid| self.next(uid, now).is_some())
            .cloned()
            .collect()
    }

    /// The revision of a repository to fetch now.
    pub fn next(&self, uid: &str, now: Timestamp) -> Option<&str> {
        let is_due = |tries: &Option<Tries>| {
            tries.is_none_or(|tries| later(tries.at, AGAIN.after(tries.times)) <= now)
        };
        self.0
            .get(uid)?
            .iter()
            .find(|(_, tries)| is_due(tries))
            .map(|(revision, _)| revision.as_str())
    }

    /// Records a try. A stored revision is missing in the next list; another one is retried later.
    pub fn tried(&mut self, uid: &str, revision: &str, now: Timestamp) {
        if let Some(tries) = self.0.get_mut(uid).and_then(|of| of.get_mut(revision)) {
            *tries = Some(Tries::more(*tries, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_revision_is_tried_at_once_and_retried() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let list = |all: &[(&str, &str)]| {
            let one = |(uid, revision): &(&str, &str)| WantedRevision {
                namespace: "team".into(),
                uid: (*uid).into(),
                revision: (*revision).into(),
            };
            all.iter().map(one).collect::<Vec<_>>()
        };
        let both = list(&[("u", "a"), ("v", "b")]);
        let mut wanted = Wanted::default();
        assert_eq!(
            wanted.told(both.clone(), at(0)),
            ["u".to_owned(), "v".to_owned()].into()
        );
        assert_eq!(
            (wanted.next("u", at(0)), wanted.next("w", at(0))),
            (Some("a"), None)
        );
        wanted.tried("u", "a", at(0));
        assert_eq!(
            wanted.told(both.clone(), at(9)),
            ["v".to_owned()].into(),
            "it waits"
        );
        assert_eq!(wanted.next("u", at(9)), None);
        assert_eq!(wanted.next("u", at(10)), Some("a"));
        wanted.tried("u", "a", at(10));
        assert_eq!(
            (wanted.next("u", at(29)), wanted.next("u", at(30))),
            (None, Some("a")),
            "longer each time"
        );
        assert_eq!(
            wanted.told(list(&[("v", "b")]), at(11)),
            ["v".to_owned()].into()
        );
        assert_eq!(
            wanted.told(both, at(12)).len(),
            2,
            "who asks anew does not wait"
        );
    }
}
