//! The API server's clock, as the `Date` of its answers shows it (`design/0001-run-protocol.md`, "Whose clock counts").

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimeParser};

/// `Date` names whole seconds, and leaves out the rest.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(1);
/// The longest that a server is left alone which asks for it.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The time of day as the API server has it; clones share what is known of it.
#[derive(Clone)]
pub struct ServerClock {
    /// The API server's time at a moment of this process; none before its first answer.
    known: Arc<Mutex<Option<(Timestamp, Instant)>>>,
    /// Until when it asked to be left alone.
    busy: Arc<Mutex<Option<Instant>>>,
    own: Arc<dyn Fn() -> (Timestamp, Instant) + Send + Sync>,
}

impl Default for ServerClock {
    fn default() -> Self {
        Self::beside(|| (Timestamp::now(), Instant::now()))
    }
}

impl fmt::Debug for ServerClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerClock").field("known", &*self.lock()).finish_non_exhaustive()
    }
}

impl ServerClock {
    /// Nothing is known yet. `own` are this process's own clocks: its time of day, and one that only ever goes on.
    pub fn beside(own: impl Fn() -> (Timestamp, Instant) + Send + Sync + 'static) -> Self {
        Self { known: Arc::default(), busy: Arc::default(), own: Arc::new(own) }
    }

    /// Now, by the API server's clock: at most behind it by a second and the round trip of an answer, and never ahead of it by more.
    /// Before its first answer by this machine's.
    pub fn now(&self) -> Timestamp {
        let (local, moment) = (self.own)();
        self.lock().map_or(local, |known| at(known, moment))
    }

    /// The moment at which a request is sent, for [`Self::answered`].
    pub fn sent(&self) -> Instant {
        (self.own)().1
    }

    /// Takes the value of `Date` in an answer that has just come. The answer was begun between `sent` and now, so that the API server's
    /// clock is no earlier than `Date`, and no later than the end of that second and the round trip: what is known is moved as far as
    /// that asks for. A date that cannot be read says nothing.
    pub fn answered(&self, sent: Instant, date: &[u8]) {
        let date = std::str::from_utf8(date).ok().and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        let Some(date) = date else { return };
        let received = (self.own)().1;
        let took = SignedDuration::try_from(received.saturating_duration_since(sent)).unwrap_or(SignedDuration::MAX);
        let latest = after(date, took.saturating_add(RESOLUTION));
        let mut known = self.lock();
        let time = known.map_or(date, |known| at(known, received).clamp(date, latest));
        *known = Some((time, received));
    }

    /// Takes the value of `Retry-After` in the answer of a busy server: seconds, as an API server says it. What is no number says nothing.
    pub fn busy(&self, after: &[u8]) {
        let seconds = std::str::from_utf8(after).ok().and_then(|after| after.trim().parse().ok());
        let Some(wait) = seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT)) else { return };
        let until = (self.own)().1 + wait;
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        *busy = (*busy).max(Some(until));
    }

    /// For how long the API server still wants to be left alone: no time where it did not ask for any.
    pub fn busy_for(&self) -> Duration {
        let until = *self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since((self.own)().1))
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Timestamp, Instant)>> {
        // Whole at every moment, so a panic elsewhere spoils nothing.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at((time, seen): (Timestamp, Instant), moment: Instant) -> Timestamp {
    after(time, SignedDuration::try_from(moment.saturating_duration_since(seen)).unwrap_or(SignedDuration::MAX))
}

fn after(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::fmt::rfc2822::DateTimePrinter;

    use super::*;

    /// A machine whose clock is an hour behind, and an API server that answers at a moment of its own clock, both in milliseconds.
    struct Lab {
        clock: ServerClock,
        passed: Arc<Mutex<u64>>,
        begun: Instant,
    }

    impl Lab {
        fn new() -> Self {
            let (passed, begun) = (Arc::<Mutex<u64>>::default(), Instant::now());
            let own = passed.clone();
            let clock = ServerClock::beside(move || {
                let passed = Duration::from_millis(*own.lock().unwrap());
                (after(served(0), SignedDuration::try_from(passed).unwrap() - SignedDuration::from_hours(1)), begun + passed)
            });
            Self { clock, passed, begun }
        }

        /// A request that was sent at one moment and answered at another, while the server's clock said `date`.
        fn asked(&self, sent: u64, received: u64, date: u64) {
            *self.passed.lock().unwrap() = received;
            let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&served(date)).unwrap();
            self.clock.answered(self.begun + Duration::from_millis(sent), date.as_bytes());
        }

        fn says(&self, moment: u64) -> i64 {
            *self.passed.lock().unwrap() = moment;
            self.clock.now().as_millisecond() - served(0).as_millisecond()
        }
    }

    fn served(millis: u64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + i64::try_from(millis).unwrap()).unwrap()
    }

    #[test]
    fn before_the_first_answer_it_is_the_machines_own_and_then_the_servers() {
        let lab = Lab::new();
        assert_eq!(lab.says(500), 500 - 3_600_000);
        lab.asked(500, 510, 508);
        assert_eq!(lab.says(510), 0, "the second that Date names, never later");
        assert_eq!(lab.says(4_510), 4_000, "it goes on without answers");
    }

    #[test]
    fn a_busy_server_is_left_alone_for_as_long_as_it_asks_and_no_longer_than_half_a_minute() {
        let lab = Lab::new();
        let left = |moment: u64| {
            *lab.passed.lock().unwrap() = moment;
            lab.clock.busy_for().as_millis()
        };
        assert_eq!(left(0), 0);
        lab.clock.busy(b"7");
        lab.clock.busy(b"1");
        lab.clock.busy(b"soon");
        assert_eq!((left(0), left(4_000), left(8_000)), (7_000, 3_000, 0));
        lab.clock.busy(b" 99999 ");
        assert_eq!(left(8_000), LONGEST_WAIT.as_millis());
    }

    #[test]
    fn further_answers_bring_it_closer_and_a_slow_one_does_no_harm() {
        let lab = Lab::new();
        lab.asked(500, 510, 508);
        lab.asked(2_000, 2_030, 2_010);
        assert_eq!(lab.says(2_030), 2_000, "500 ms closer");
        // Its date is of the time at which it was sent: by now the clock has gone on, and is not put back.
        lab.asked(3_000, 63_000, 3_005);
        assert_eq!(lab.says(63_000), 62_970);
        for second in 64..164 {
            let millis = second * 1_000 + second * 7 % 1_000;
            lab.asked(millis, millis + 5, millis + 2);
            let off = millis + 5 - u64::try_from(lab.says(millis + 5)).unwrap();
            assert!(off <= 1_005, "off by {off} ms");
        }
    }

    #[test]
    fn a_clock_that_is_put_right_is_followed_both_ways() {
        let lab = Lab::new();
        lab.asked(0, 10, 5_000_005);
        assert_eq!(lab.says(10), 5_000_000);
        lab.asked(1_000, 1_010, 1_005);
        assert_eq!(lab.says(1_010), 2_010, "the end of the second and the round trip");
        lab.asked(2_000, 2_010, 9_000_005);
        assert_eq!(lab.says(2_010), 9_000_000);
    }

    #[test]
    fn what_is_no_date_says_nothing() {
        let lab = Lab::new();
        for date in [&b""[..], b"soon", b"\xff", b"Tue, 99 Nov 2026 10:00:00 GMT"] {
            lab.clock.answered(lab.begun, date);
        }
        assert_eq!(lab.says(0), -3_600_000);
    }
}
