//! Decides when the APIService exists: a pure function of the responses of datastore and API server, and their times.

use std::time::Duration;

use tokio::time::Instant;

/// Silence of the datastore after which the APIService is removed.
const SILENCE: Duration = Duration::from_secs(6);
/// Time for the API server to reach the datastore.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval of checks of the APIService: until it works, and afterwards.
const LOOKS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// Pause after the API server failed to reach the datastore.
const PAUSE: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Leave,
    /// Ensure that it exists with the correct spec.
    Put,
    /// Ensure that it does not exist.
    Remove,
}

/// The result of a check of the APIService.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Gone,
    /// The API server reaches the datastore through it.
    Works,
    /// The API server does not reach it, or has not tried yet.
    Unreached,
    Foreign,
}

/// State between two ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    /// Time of the datastore's last response, or of the start.
    answered: Instant,
    /// Whether the APIService exists; `None` while unknown.
    pub(super) stands: Option<bool>,
    /// Since when the API server has not reached the datastore.
    unreached: Option<Instant>,
    /// Time of the next check.
    look: Instant,
    /// End of the current pause.
    pause: Option<Instant>,
}

impl Guard {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            answered: now,
            stands: None,
            unreached: None,
            look: now,
            pause: None,
        }
    }

    /// The datastore responded, or did not.
    pub(super) fn tick(&mut self, answers: bool, now: Instant) -> Order {
        if !answers {
            let silent = now.duration_since(self.answered) >= SILENCE;
            return if silent && self.stands != Some(false) {
                Order::Remove
            } else {
                Order::Leave
            };
        }
        self.answered = now;
        let paused = self.pause.is_some_and(|until| now < until);
        if !paused && (self.stands != Some(true) || now >= self.look) {
            Order::Put
        } else {
            Order::Leave
        }
    }

    /// It exists with the correct spec.
    pub(super) fn stands(&mut self, seen: Seen, now: Instant) -> Order {
        (self.stands, self.pause) = (Some(true), None);
        if seen != Seen::Unreached {
            (self.unreached, self.look) = (None, now + LOOKS[1]);
            return Order::Leave;
        }
        self.look = now + LOOKS[0];
        if now.duration_since(*self.unreached.get_or_insert(now)) < PATIENCE {
            return Order::Leave;
        }
        self.pause = Some(now + PAUSE);
        Order::Remove
    }

    /// It does not exist any more.
    pub(super) fn gone(&mut self) {
        (self.stands, self.unreached) = (Some(false), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_service_exists_while_the_datastore_responds() {
        let t = Instant::now();
        let at = |seconds| t + Duration::from_secs(seconds);
        let mut guard = Guard::new(t);
        assert_eq!(
            guard.tick(false, at(0)),
            Order::Leave,
            "it may only be starting"
        );
        assert_eq!(guard.tick(false, at(4)), Order::Leave);
        assert_eq!(
            guard.tick(false, at(6)),
            Order::Remove,
            "an older process may have left it"
        );
        guard.gone();
        assert_eq!(guard.tick(false, at(8)), Order::Leave, "once");
        assert_eq!(guard.tick(true, at(10)), Order::Put);
        assert_eq!(guard.stands(Seen::Unreached, at(10)), Order::Leave);
        assert_eq!(guard.tick(true, at(12)), Order::Leave);
        assert_eq!(
            guard.tick(true, at(15)),
            Order::Put,
            "looked at while it is new"
        );
        assert_eq!(guard.stands(Seen::Works, at(15)), Order::Leave);
        assert_eq!(guard.tick(true, at(70)), Order::Leave);
        assert_eq!(
            guard.tick(false, at(72)),
            Order::Leave,
            "one answer that is missing is none"
        );
        assert_eq!(guard.tick(true, at(75)), Order::Put, "and once a minute");
        assert_eq!(guard.stands(Seen::Works, at(75)), Order::Leave);
        for second in [77, 79] {
            assert_eq!(guard.tick(false, at(second)), Order::Leave);
        }
        assert_eq!(guard.tick(false, at(81)), Order::Remove);
        guard.gone();
        assert_eq!(guard.tick(true, at(83)), Order::Put, "back at once");
    }

    #[test]
    fn unreached_api_service_is_removed() {
        let t = Instant::now();
        let at = |seconds| t + Duration::from_secs(seconds);
        let mut guard = Guard::new(t);
        assert_eq!(guard.tick(true, at(0)), Order::Put);
        for second in [0, 5, 25] {
            assert_eq!(guard.stands(Seen::Unreached, at(second)), Order::Leave);
        }
        assert_eq!(guard.stands(Seen::Unreached, at(30)), Order::Remove);
        guard.gone();
        assert_eq!(guard.tick(true, at(32)), Order::Leave);
        assert_eq!(
            guard.tick(true, at(330)),
            Order::Put,
            "and tried again after a while"
        );
        assert_eq!(guard.stands(Seen::Works, at(330)), Order::Leave);
        assert_eq!(guard.tick(true, at(390)), Order::Put);
        assert_eq!(
            guard.stands(Seen::Unreached, at(390)),
            Order::Leave,
            "that may pass"
        );
        assert_eq!(
            guard.tick(true, at(395)),
            Order::Put,
            "and is looked at more closely"
        );
        assert_eq!(guard.stands(Seen::Works, at(395)), Order::Leave);
        assert_eq!(guard.stands(Seen::Unreached, at(455)), Order::Leave);
        assert_eq!(guard.stands(Seen::Unreached, at(485)), Order::Remove);
    }
}
