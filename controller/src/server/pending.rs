//! Pending requests: one per repository at a time, until it is answered. Deliveries in the meantime cause one more,
//! because the check in progress may have started before them. Their rate is bounded, so that deliveries sent again, in whatever form, cost
//! a bounded number of checks.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// First wait after a failed request; doubled each time.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum wait after a failed request.
const LONGEST: Duration = Duration::from_secs(60);
/// Minimum time between two requests for one repository, on average.
const EACH: Duration = Duration::from_secs(10);
/// Number of requests that may precede this rate.
const BURST: u32 = 10;

/// The state of a repository with respect to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A reconcile may be requested.
    Free,
    /// It has a request that is not answered yet.
    Requested,
    /// There is no repository with this UID any more.
    Gone,
}

#[derive(Debug, Default)]
struct Wanted {
    /// `Some` while a request is being sent: whether another delivery arrived since.
    under_way: Option<bool>,
    failures: u32,
    not_before: Option<Instant>,
}

/// Repositories with deliveries, by UID.
#[derive(Debug, Default)]
pub struct Pending {
    wanted: BTreeMap<String, Wanted>,
    /// When the sent requests of a repository would have been sent at the rate of one in [`EACH`].
    paced: BTreeMap<String, Instant>,
}

impl Pending {
    /// Records a delivery.
    pub fn want(&mut self, uid: &str) {
        let wanted = self.wanted.entry(uid.to_owned()).or_default();
        if let Some(again) = &mut wanted.under_way {
            *again = true;
        }
    }

    /// Up to `room` repositories to notify now, and the time at which the next one is due, if it waits for a time only. The returned
    /// repositories count as in progress.
    pub fn due(
        &mut self,
        now: Instant,
        room: usize,
        standing: impl Fn(&str) -> Standing,
    ) -> (Vec<String>, Option<Instant>) {
        self.wanted
            .retain(|uid, wanted| wanted.under_way.is_some() || standing(uid) != Standing::Gone);
        self.paced.retain(|_, at| *at > now);
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (uid, wanted) in &mut self.wanted {
            if wanted.under_way.is_some() || standing(uid) != Standing::Free {
                continue;
            }
            let paced = self.paced.get(uid);
            let paced = paced.and_then(|at| at.checked_sub(EACH * (BURST - 1)));
            match wanted.not_before.max(paced).filter(|at| *at > now) {
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

    /// Records a successful request.
    pub fn sent(&mut self, uid: &str, now: Instant) {
        let paced = self.paced.entry(uid.to_owned()).or_insert(now);
        *paced = (*paced).max(now) + EACH;
        if self
            .wanted
            .get(uid)
            .is_some_and(|wanted| wanted.under_way == Some(true))
        {
            self.wanted.insert(uid.to_owned(), Wanted::default());
        } else {
            self.wanted.remove(uid);
        }
    }

    /// Records a failed request, which may have taken effect.
    pub fn failed(&mut self, uid: &str, now: Instant) {
        if let Some(wanted) = self.wanted.get_mut(uid) {
            let wait = AGAIN
                .saturating_mul(1 << wanted.failures.min(6))
                .min(LONGEST);
            *wanted = Wanted {
                under_way: None,
                failures: wanted.failures.saturating_add(1),
                not_before: Some(now + wait),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standing::{Free, Gone, Requested};

    fn due(pending: &mut Pending, now: Instant, standing: Standing) -> usize {
        pending.due(now, 9, |_| standing).0.len()
    }

    #[test]
    fn deliveries_during_a_request_cause_one_more() {
        let (mut pending, now) = (Pending::default(), Instant::now());
        pending.want("a");
        pending.want("a");
        assert_eq!(pending.due(now, 9, |_| Free).0, ["a"]);
        assert_eq!(due(&mut pending, now, Free), 0, "it is under way");
        pending.sent("a", now);
        assert_eq!(due(&mut pending, now, Free), 0, "and was for both");
        for _ in 0..1000 {
            pending.want("a");
            assert_eq!(due(&mut pending, now, Requested), 0, "not answered yet");
        }
        assert_eq!(
            due(&mut pending, now, Free),
            1,
            "answered: whoever looked may have looked before"
        );
        pending.want("a");
        pending.sent("a", now);
        assert_eq!(
            due(&mut pending, now, Free),
            1,
            "one came while it was under way"
        );
        pending.sent("a", now);
        assert_eq!(due(&mut pending, now, Free), 0);
        assert!(pending.wanted.is_empty());
    }

    #[test]
    fn endless_deliveries_cause_requests_at_a_bounded_rate() {
        let (mut pending, start) = (Pending::default(), Instant::now());
        let mut sent = Vec::new();
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            for _ in 0..100 {
                pending.want("a");
                pending.want("b");
                if due(&mut pending, now, Free) > 0 {
                    // It was answered at once.
                    pending.sent("a", now);
                    sent.push(second);
                    pending.failed("b", now);
                }
            }
        }
        assert_eq!(sent[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 20]);
        assert_eq!(sent.len(), 10 + 59);
        let quiet = start + Duration::from_secs(1000);
        assert_eq!(due(&mut pending, quiet, Gone), 0);
        assert!(pending.paced.is_empty(), "nothing is left of it");
    }

    #[test]
    fn failed_request_is_retried_with_backoff() {
        let (mut pending, start) = (Pending::default(), Instant::now());
        pending.want("a");
        let (mut now, mut waits) = (start, Vec::new());
        for _ in 0..9 {
            assert_eq!(due(&mut pending, now, Free), 1);
            pending.failed("a", now);
            pending.want("a");
            let (none, next) = pending.due(now, 9, |_| Free);
            assert!(none.is_empty(), "a delivery is no reason to hurry");
            waits.push((next.unwrap() - now).as_secs());
            now = next.unwrap();
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(due(&mut pending, now, Free), 1);
        pending.sent("a", now);
        pending.want("a");
        assert_eq!(
            due(&mut pending, now, Free),
            1,
            "and at once after it was well"
        );
    }

    #[test]
    fn requests_of_deleted_repositories_are_dropped() {
        let (mut pending, now) = (Pending::default(), Instant::now());
        for uid in ["a", "b", "c"] {
            pending.want(uid);
        }
        assert_eq!(
            pending.due(now, 1, |_| Free),
            (vec!["a".to_owned()], None),
            "so many at a time"
        );
        assert_eq!(due(&mut pending, now, Gone), 0);
        pending.sent("a", now);
        assert!(pending.wanted.is_empty(), "{pending:?}");
    }
}
