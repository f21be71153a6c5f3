//! The API server's clock, estimated from the `Date` header of its responses (`design/0001-run-protocol.md`, "Whose
//! clock counts").

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimeParser};

/// `Date` has whole seconds; the fraction is cut off.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(1);
/// Upper bound of a server's `Retry-After`.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The API server's current time. Clones share the estimate.
#[derive(Clone)]
pub struct ServerClock {
    /// The API server's time at a local instant; none before the first response.
    known: Arc<Mutex<Option<(Timestamp, Instant)>>>,
    /// End of the last `Retry-After`.
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
        f.debug_struct("ServerClock")
            .field("known", &*self.lock())
            .finish_non_exhaustive()
    }
}

impl ServerClock {
    /// Starts without an estimate. `own` returns the local time of day and a monotonic instant.
    pub fn beside(own: impl Fn() -> (Timestamp, Instant) + Send + Sync + 'static) -> Self {
        Self {
            known: Arc::default(),
            busy: Arc::default(),
            own: Arc::new(own),
        }
    }

    /// The current time of the API server's clock: late by at most one second plus a round trip, and never early by
    /// more than that. Before the first response, this machine's time.
    pub fn now(&self) -> Timestamp {
        let (local, moment) = (self.own)();
        self.lock().map_or(local, |known| at(known, moment))
    }

    /// The instant at which a request is sent, for [`Self::answered`].
    pub fn sent(&self) -> Instant {
        (self.own)().1
    }

    /// Takes the `Date` of a response that has just arrived. The server created the response between `sent` and now. So
    /// its clock is not earlier than `Date`, and not later than the end of that second plus the round trip. The
    /// estimate moves only as far as these bounds require. An unreadable date is ignored.
    pub fn answered(&self, sent: Instant, date: &[u8]) {
        let date = std::str::from_utf8(date)
            .ok()
            .and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        let Some(date) = date else { return };
        let received = (self.own)().1;
        let took = SignedDuration::try_from(received.saturating_duration_since(sent))
            .unwrap_or(SignedDuration::MAX);
        let latest = after(date, took.saturating_add(RESOLUTION));
        let mut known = self.lock();
        let time = known.map_or(date, |known| at(known, received).clamp(date, latest));
        *known = Some((time, received));
    }

    /// Takes the `Retry-After` of a busy server, in seconds, as API servers send it. A value that is not a number is
    /// ignored.
    pub fn busy(&self, after: &[u8]) {
        let seconds = std::str::from_utf8(after)
            .ok()
            .and_then(|after| after.trim().parse().ok());
        let Some(wait) = seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT))
        else {
            return;
        };
        let until = (self.own)().1 + wait;
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        *busy = (*busy).max(Some(until));
    }

    /// Remaining time of the server's `Retry-After`; zero when it sent none.
    pub fn busy_for(&self) -> Duration {
        let until = *self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since((self.own)().1)
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Timestamp, Instant)>> {
        // Every assignment is complete, so a poisoned lock still holds a valid value.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at((time, seen): (Timestamp, Instant), moment: Instant) -> Timestamp {
    after(
        time,
        SignedDuration::try_from(moment.saturating_duration_since(seen))
            .unwrap_or(SignedDuration::MAX),
    )
}

fn after(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::fmt::rfc2822::DateTimePrinter;

    use super::*;

    /// An API server, and a machine whose clock is one hour behind. All times are in milliseconds.
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
                (
                    after(
                        served(0),
                        SignedDuration::try_from(passed).unwrap() - SignedDuration::from_hours(1),
                    ),
                    begun + passed,
                )
            });
            Self {
                clock,
                passed,
                begun,
            }
        }

        /// A request sent at `sent` and answered at `received`, with the server's clock at `date`.
        fn asked(&self, sent: u64, received: u64, date: u64) {
            *self.passed.lock().unwrap() = received;
            let date = DateTimePrinter::new()
                .timestamp_to_rfc9110_string(&served(date))
                .unwrap();
            self.clock
                .answered(self.begun + Duration::from_millis(sent), date.as_bytes());
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
    fn clock_is_local_until_the_first_response() {
        let lab = Lab::new();
        assert_eq!(lab.says(500), 500 - 3_600_000);
        lab.asked(500, 510, 508);
        assert_eq!(lab.says(510), 0, "the second that Date names, never later");
        assert_eq!(lab.says(4_510), 4_000, "it goes on without answers");
    }

    #[test]
    fn retry_after_is_honoured_up_to_30_seconds() {
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
    fn clock_converges_and_slow_responses_do_no_harm() {
        let lab = Lab::new();
        lab.asked(500, 510, 508);
        lab.asked(2_000, 2_030, 2_010);
        assert_eq!(lab.says(2_030), 2_000, "500 ms closer");
        // The `Date` is from the time of sending. The estimate is ahead of it and does not go back.
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
    fn clock_follows_corrections_in_both_directions() {
        let lab = Lab::new();
        lab.asked(0, 10, 5_000_005);
        assert_eq!(lab.says(10), 5_000_000);
        lab.asked(1_000, 1_010, 1_005);
        assert_eq!(
            lab.says(1_010),
            2_010,
            "the end of the second and the round trip"
        );
        lab.asked(2_000, 2_010, 9_000_005);
        assert_eq!(lab.says(2_010), 9_000_000);
    }

    #[test]
    fn invalid_date_is_ignored() {
        let lab = Lab::new();
        for date in [&b""[..], b"soon", b"\xff", b"Tue, 99 Nov 2026 10:00:00 GMT"] {
            lab.clock.answered(lab.begun, date);
        }
        assert_eq!(lab.says(0), -3_600_000);
    }
}
