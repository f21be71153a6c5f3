//! The timeout of each state, and the event it produces.

use std::time::Duration;

use tokio::time::Instant;

use super::Driver;
use crate::{
    machine::{Event, Stage, State, Stop, Timer},
    ports::{Api, Clock, Work},
};

/// Time limit for adoption. After it the process exits and the controller decides.
const ADOPTION: Duration = Duration::from_secs(600);
/// Time that a command before the claim has after its SIGINT.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Part of the pod's grace period reserved for an apply that does not end: kill the providers, then the tool, then report.
const RESERVE: Duration = Duration::from_secs(20);

impl<A: Api, W: Work, C: Clock> Driver<A, W, C> {
    /// The timer of the current state, and its event.
    pub(super) fn deadline(&self) -> Option<(Instant, Event)> {
        let timeouts = self
            .run
            .as_ref()
            .map(|run| run.spec.timeouts)
            .unwrap_or_default();
        let phase = |limit: Duration| Some((self.phase_since + limit, Event::Stop(Stop::Deadline)));
        let told = |after: Duration| {
            Some((
                self.told_at.unwrap_or_else(Instant::now) + after,
                Event::Timer(Timer::GraceOver),
            ))
        };
        let grace = self.settings.grace;
        let reserve = reserved(grace);
        match self.state {
            State::Adopting => phase(ADOPTION),
            State::Setup(_) => phase(timeouts.setup.0),
            // Includes unpacking the source and running `init`.
            State::Restoring => phase(timeouts.setup.0 + timeouts.init.0),
            State::RecordingInit(_) | State::Init(_) => phase(timeouts.init.0),
            State::RecordingPlan(_)
            | State::Planning(_)
            | State::RecordingResult(_)
            | State::Verifying(_)
            | State::Claiming(_, None) => phase(timeouts.plan.0),
            State::Leasing => self.expires_at.map(|at| (at, Event::Timer(Timer::Expired))),
            State::Awaiting => {
                // Set once the plan is stored.
                let hold = self.hold_until.map(|at| {
                    if self.requests.wanted {
                        at.min(Instant::now())
                    } else {
                        at
                    }
                });
                let hold = hold.map(|at| (at, Event::Timer(Timer::HoldOver)));
                // A recorded approval does not expire while the plan is queued for the lease.
                let expiry = self
                    .expires_at
                    .filter(|_| !self.requests.recorded)
                    .map(|at| (at, Event::Timer(Timer::Expired)));
                [expiry, hold]
                    .into_iter()
                    .flatten()
                    .min_by_key(|(at, _)| *at)
            }
            // If the process is asked to stop, it does not wait longer for the claim's result.
            State::Claiming(_, Some(_)) => Some((
                self.told_at.unwrap_or_else(Instant::now) + STOP_GRACE,
                Event::Stop(Stop::Deadline),
            )),
            State::Stopping { killed, .. } | State::HoldingBack { killed, .. } => {
                let first = STOP_GRACE.min(grace.saturating_sub(reserve / 2));
                told(if killed {
                    first + reserve.min(crate::phases::DRAIN_MARGIN)
                } else {
                    first
                })
            }
            State::Preparing | State::VerifyingAgain | State::Applying => phase(timeouts.apply.0),
            State::Interrupting { stage, .. } => told(interrupted(stage, grace)),
            // Hooks get a new timeout, since that of the phase may be used up. In a terminating pod they get the grace period except for
            // the reserve.
            State::Finishing(_) => {
                let limit = if self.view.claimed().is_some() {
                    timeouts.apply.0
                } else {
                    timeouts.setup.0
                };
                let told = self.terminated_at.map(|at| {
                    (
                        at + grace.saturating_sub(reserve),
                        Event::Timer(Timer::GraceOver),
                    )
                });
                phase(limit)
                    .into_iter()
                    .chain(told)
                    .min_by_key(|(at, _)| *at)
            }
            State::Ending(_) | State::Reporting(_) => self
                .terminated_at
                .map(|at| (at + ending(grace), Event::Timer(Timer::GraceOver))),
            State::Ended => None,
        }
    }
}

/// The reserve of a grace period.
fn reserved(grace: Duration) -> Duration {
    RESERVE.min(grace * 2 / 3)
}

/// Time after the signal at which an interrupted apply leaves a stage.
fn interrupted(stage: Stage, grace: Duration) -> Duration {
    let reserve = reserved(grace);
    grace.saturating_sub(match stage {
        Stage::Asked => reserve,
        Stage::ProvidersKilled => reserve / 2,
        Stage::ToolKilled => reserve / 5,
    })
}

/// Time after the signal at which the delivery of the end is abandoned. It is later than any end of the tool, so the delivery has its share
/// of the reserve even if the tool had to be killed.
fn ending(grace: Duration) -> Duration {
    grace.saturating_sub(reserved(grace) / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_each_other_within_the_grace_period() {
        for seconds in [1, 3, 9, 30, 31, 600, 86_400] {
            let grace = Duration::from_secs(seconds);
            let stages = [Stage::Asked, Stage::ProvidersKilled, Stage::ToolKilled]
                .map(|stage| interrupted(stage, grace));
            let all = [&[Duration::ZERO][..], &stages, &[ending(grace), grace]].concat();
            assert!(
                all.is_sorted_by(|one, next| one < next),
                "{grace:?}: {all:?}"
            );
        }
    }
}
