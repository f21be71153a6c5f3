//! Pending pokes: one per repository at a time, until it is answered. Deliveries in the meantime cause one more,
//! because the check in progress may have started before them.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// First wait after a failed poke; doubled each time.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum wait after a failed poke.
const LONGEST: Duration = Duration::from_secs(60);

/// The state of a repository with respect to pokes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may be poked.
    Free,
    /// It has a poke that is not answered yet.
    Poked,
    /// There is no repository with this UID any more.
    Gone,
}

#[derive(Debug, Default)]
struct Wanted {
    /// `Some` while a poke is being sent: whether another delivery arrived since.
    under_way: Option<bool>,
    failures: u32,
    not_before: Option<Instant>,
}

/// Repositories with deliveries, by UID.
#[derive(Debug, Default)]
pub struct Pokes(BTreeMap<String, Wanted>);

impl Pokes {
    /// Records a delivery.
    pub fn want(&mut self, uid: &str) {
        let wanted = self.0.entry(uid.to_owned()).or_default();
        if let Some(again) = &mut wanted.under_way {
            *again = true;
        }
    }

    /// Up to `room` repositories to poke now, and when the next one is due if only time has to pass. The returned ones
    /// count as being sent.
    pub fn due(&mut self, now: Instant, room: usize, standing: impl Fn(&str) -> Standing) -> (Vec<String>, Option<Instant>) {
        self.0.retain(|uid, wanted| wanted.under_way.is_some() || standing(uid) != Standing::Gone);
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (uid, wanted) in &mut self.0 {
            if wanted.under_way.is_some() || standing(uid) != Standing::Free {
                continue;
            }
            match wanted.not_before.filter(|at| *at > now) {
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None if due.len() < room => {
                    wanted.under_way = Some(false);
                    due.push(uid.clone());
                }
                None => {}
            }
        }
        (due, next)
    }

    /// Records a successful poke.
    pub fn sent(&mut self, uid: &str) {
        if self.0.get(uid).is_some_and(|wanted| wanted.under_way == Some(true)) {
            self.0.insert(uid.to_owned(), Wanted::default());
        } else {
            self.0.remove(uid);
        }
    }

    /// Records a failed poke, which may have taken effect.
    pub fn failed(&mut self, uid: &str, now: Instant) {
        if let Some(wanted) = self.0.get_mut(uid) {
            let wait = AGAIN.saturating_mul(1 << wanted.failures.min(6)).min(LONGEST);
            *wanted = Wanted { under_way: None, failures: wanted.failures.saturating_add(1), not_before: Some(now + wait) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standing::{Free, Gone, Poked};

    fn due(pokes: &mut Pokes, now: Instant, standing: Standing) -> usize {
        pokes.due(now, 9, |_| standing).0.len()
    }

    #[test]
    fn deliveries_during_a_poke_cause_one_more() {
        let (mut pokes, now) = (Pokes::default(), Instant::now());
        pokes.want("a");
        pokes.want("a");
        assert_eq!(pokes.due(now, 9, |_| Free).0, ["a"]);
        assert_eq!(due(&mut pokes, now, Free), 0, "it is under way");
        pokes.sent("a");
        assert_eq!(due(&mut pokes, now, Free), 0, "and was for both");
        for _ in 0..1000 {
            pokes.want("a");
            assert_eq!(due(&mut pokes, now, Poked), 0, "not answered yet");
        }
        assert_eq!(due(&mut pokes, now, Free), 1, "answered: whoever looked may have looked before");
        pokes.want("a");
        pokes.sent("a");
        assert_eq!(due(&mut pokes, now, Free), 1, "one came while it was under way");
        pokes.sent("a");
        assert_eq!(due(&mut pokes, now, Free), 0);
        assert!(pokes.0.is_empty());
    }

    #[test]
    fn failed_poke_is_retried_with_backoff() {
        let (mut pokes, start) = (Pokes::default(), Instant::now());
        pokes.want("a");
        let (mut now, mut waits) = (start, Vec::new());
        for _ in 0..9 {
            assert_eq!(due(&mut pokes, now, Free), 1);
            pokes.failed("a", now);
            pokes.want("a");
            let (none, next) = pokes.due(now, 9, |_| Free);
            assert!(none.is_empty(), "a delivery is no reason to hurry");
            waits.push((next.unwrap() - now).as_secs());
            now = next.unwrap();
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(due(&mut pokes, now, Free), 1);
        pokes.sent("a");
        pokes.want("a");
        assert_eq!(due(&mut pokes, now, Free), 1, "and at once after it was well");
    }

    #[test]
    fn pokes_of_deleted_repositories_are_dropped() {
        let (mut pokes, now) = (Pokes::default(), Instant::now());
        for uid in ["a", "b", "c"] {
            pokes.want(uid);
        }
        assert_eq!(pokes.due(now, 1, |_| Free), (vec!["a".to_owned()], None), "so many at a time");
        assert_eq!(due(&mut pokes, now, Gone), 0);
        pokes.sent("a");
        assert!(pokes.0.is_empty(), "{pokes:?}");
    }
}
