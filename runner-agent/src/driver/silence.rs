//! Detects silence of a command; a pure decision on times passed in. The status reports a spell of silence once when it has lasted
//! long enough, and its end with the next write.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Driver;
use crate::{
    machine::{Event, State, Stop, Timer},
    ports::{Api, Clock, Work},
    report::Ends,
};

/// Activity of a running command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    heard: Instant,
    at: Timestamp,
    /// When the status must report silence; `None` once it has.
    due: Option<Instant>,
    after: Duration,
}

impl Stall {
    /// Starts now; `after` is the duration that counts as silence.
    pub(super) fn new(after: Duration, now: Instant, at: Timestamp) -> Self {
        Self {
            heard: now,
            at,
            due: Some(now + after),
            after,
        }
    }

    /// Records activity. Returns whether the status currently reports silence.
    pub(super) fn happened(&mut self, now: Instant, at: Timestamp) -> bool {
        let told = self.due.is_none();
        *self = Self::new(self.after, now, at);
        told
    }

    /// When the status must report silence.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Marks silence as reported. Returns the time of the last activity.
    pub(super) fn tell(&mut self) -> Timestamp {
        self.due = None;
        self.at
    }

    /// The report was lost: it is due again after the same duration.
    pub(super) fn missed(&mut self, now: Instant) {
        self.due.get_or_insert(now + self.after);
    }

    /// Duration of the silence.
    pub(super) fn lasted(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }
}

/// Whether a command runs in a state.
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
    /// Records activity. If the status reports silence, a corrected write is due.
    pub(super) fn happened(&mut self) {
        let told = self.stall.happened(Instant::now(), self.clock.now());
        self.view.heard();
        self.progress_due |= told;
    }

    /// Handles a state change: a command starts or is asked to stop, so its silence counts from here on.
    pub(super) fn listens(&mut self, before: State) {
        let told_to_end = matches!(
            self.state,
            State::Stopping { .. } | State::HoldingBack { .. } | State::Interrupting { .. }
        );
        if told_to_end && works(before) && !matches!(before, State::Interrupting { .. }) {
            self.view.stalled_for(self.stall.lasted(Instant::now()));
        }
        if std::mem::discriminant(&self.state) != std::mem::discriminant(&before) {
            self.happened();
        }
    }

    pub(super) fn stall_at(&self) -> Option<Instant> {
        self.stall
            .due()
            .filter(|_| works(self.state) && !self.writer.is_busy())
    }

    /// Writes the report of silence.
    pub(super) fn write_stall(&mut self) {
        let at = |instant: Instant| {
            self.clock
                .now()
                .checked_add(instant.saturating_duration_since(Instant::now()))
                .ok()
        };
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
