//! Whether anything happens: decided on times that come in as values. The status hears of it once a spell: when it has lasted, and
//! with the first write after it is over.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Driver;
use crate::{
    machine::{Event, State, Stop, Timer},
    ports::{Api, Clock, Work},
    report::Ends,
};

/// What was heard of a command that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    heard: Instant,
    at: Timestamp,
    /// When the status is due; none when it has been told.
    due: Option<Instant>,
    after: Duration,
}

impl Stall {
    /// From now on, with silence after so long.
    pub(super) fn new(after: Duration, now: Instant, at: Timestamp) -> Self {
        Self { heard: now, at, due: Some(now + after), after }
    }

    /// Something happened. Whether the status says that nothing does.
    pub(super) fn happened(&mut self, now: Instant, at: Timestamp) -> bool {
        let told = self.due.is_none();
        *self = Self::new(self.after, now, at);
        told
    }

    /// When the status has to say that nothing happens.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The status is told, once; since when nothing happened.
    pub(super) fn tell(&mut self) -> Timestamp {
        self.due = None;
        self.at
    }

    /// It was told and did not arrive: once more, as much later.
    pub(super) fn missed(&mut self, now: Instant) {
        self.due.get_or_insert(now + self.after);
    }

    /// For how long nothing happened.
    pub(super) fn lasted(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }
}

/// Whether a command runs in a state, which may say something or not.
pub(super) const fn works(state: State) -> bool {
    matches!(
        state,
        State::Setup(_)
            | State::Restoring
            | State::Init(_)
            | State::Planning(_)
            | State::Preparing
            | State::Applying
            | State::Interrupting { .. }
    )
}

impl<A: Api, W: Work, C: Clock> Driver<A, W, C> {
    /// Something happened: what the status says of silence goes with the next write, which is due.
    pub(super) fn happened(&mut self) {
        let told = self.stall.happened(Instant::now(), self.clock.now());
        self.view.heard();
        self.progress_due |= told;
    }

    /// The state changed: a command begins, or is told to end, and has its time from here on.
    pub(super) fn listens(&mut self, before: State) {
        let told_to_end = matches!(self.state, State::Stopping { .. } | State::HoldingBack { .. } | State::Interrupting { .. });
        if told_to_end && works(before) && !matches!(before, State::Interrupting { .. }) {
            self.view.stalled_for(self.stall.lasted(Instant::now()));
        }
        if std::mem::discriminant(&self.state) != std::mem::discriminant(&before) {
            self.happened();
        }
    }

    pub(super) fn stall_at(&self) -> Option<Instant> {
        self.stall.due().filter(|_| works(self.state) && !self.writer.is_busy())
    }

    /// Nothing happened for so long that people are told.
    pub(super) fn write_stall(&mut self) {
        let at = |instant: Instant| self.clock.now().checked_add(instant.saturating_duration_since(Instant::now())).ok();
        let ends = match self.deadline() {
            Some((instant, Event::Stop(Stop::Deadline))) => at(instant).map(Ends::Deadline),
            Some((instant, Event::Timer(Timer::GraceOver))) => at(instant).map(Ends::Killed),
            Some(_) | None => None,
        };
        let since = self.stall.tell();
        self.view.stalled(since, ends);
        self.write_progress();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(60);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn silence_is_told_once_and_its_end_once() {
        let start = Instant::now();
        let second = |n: u64| start + Duration::from_secs(n);
        let mut stall = Stall::new(AFTER, start, at(0));
        assert_eq!(stall.due(), Some(second(60)));
        // What happens in time puts it off, and is no news to the status.
        assert!(!stall.happened(second(59), at(59)));
        assert_eq!(stall.due(), Some(second(119)));
        assert_eq!(stall.tell(), at(59));
        assert_eq!((stall.due(), stall.lasted(second(200))), (None, Duration::from_secs(141)), "no further write");
        assert!(stall.happened(second(300), at(300)), "the status has to be corrected");
        assert!(!stall.happened(second(301), at(301)), "once");
        assert_eq!((stall.due(), stall.lasted(second(311))), (Some(second(361)), Duration::from_secs(10)));
    }

    #[test]
    fn what_did_not_arrive_is_told_again_but_not_at_once() {
        let start = Instant::now();
        let mut stall = Stall::new(AFTER, start, at(0));
        stall.tell();
        stall.missed(start + Duration::from_secs(61));
        assert_eq!(stall.due(), Some(start + Duration::from_secs(121)));
        // Something that happened meanwhile counts, not the write that was missed.
        stall.happened(start + Duration::from_secs(70), at(70));
        stall.missed(start + Duration::from_secs(75));
        assert_eq!((stall.due(), stall.tell()), (Some(start + Duration::from_secs(130)), at(70)));
    }

    #[test]
    fn a_plan_that_waits_for_people_is_not_silent() {
        for state in [State::Adopting, State::Leasing, State::Awaiting, State::Ended] {
            assert!(!works(state), "{state:?}");
        }
        assert!(works(State::Applying) && works(State::Restoring));
    }
}
