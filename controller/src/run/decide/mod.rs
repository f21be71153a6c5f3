//! The decision: a pure function of the observation, the settings and the clock. Its rules are those of `design/0001-run-protocol.md`.
//! Modules return outcomes, which [`say`](super::say) words.
//!
//! | module | decides |
//! |---|---|
//! | [`begin_attempt`] | attempts that no agent has adopted yet |
//! | [`open_attempt`] | attempts with an agent: stops, lost nodes, progress that is worth a write |
//! | [`approval`] | approvals of plans |
//! | [`waiting_plan`] | plans that outlive their pods |
//! | [`close_attempt`] | ends of attempts |
//! | [`ended_run`], [`cleanup`] | runs that have ended, and the clean-up after them |
//! | [`state_queue`] | one apply at a time per state: whether it is the run's turn |
//! | [`slots`] | whether an attempt may begin: frozen namespaces, bounds on open attempts |
//! | [`stale_lock`] | state locks that dead pods left |
//! | [`lost_node`] | pods whose node is lost or over |
//! | [`late_result`], [`apply_log`] | results and object accounts that arrive through the datastore |
//! | [`policies`] | whether the admission policies are enforced |
//! | [`rerun`], [`recovery`] | runs that are created from this one |

mod apply_log;
mod approval;
pub(super) mod begin_attempt;
mod cleanup;
mod close_attempt;
mod ended_run;
pub(super) mod late_result;
pub(super) mod lost_node;
mod open_attempt;
mod policies;
pub(super) mod recovery;
pub(super) mod rerun;
mod slots;
pub(super) mod stale_lock;
pub(super) mod state_queue;
mod waiting_plan;

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    decision::{self, Action},
    observed::Observed,
    outcome::{Decision, Unconfirmed},
    say,
    situation::{Situation, Stage},
};
use crate::settings::Settings;
use crds::names;

/// Decides the next actions. A run with a value of a newer version is left to the newer version.
pub fn decide(o: &Observed, settings: &Settings, now: Timestamp) -> decision::Decision {
    let s = Situation::of(o, settings, now);
    outcomes(&s).map(|outcome| say::write(s.run, now, &outcome))
}

/// The decision before its outcomes are worded.
fn outcomes(s: &Situation<'_>) -> Decision {
    let release = || cleanup::pod(s);
    match &s.stage {
        Stage::Newer => Decision::wait(),
        Stage::New => release()
            .or_else(|| finalizer(s))
            .unwrap_or_else(|| begin_attempt::next(s)),
        Stage::WaitingPlan { plan, attempt } => release()
            .or_else(|| finalizer(s))
            .unwrap_or_else(|| waiting_plan::wait(s, plan, attempt)),
        Stage::Open(open) => open_attempt::unclaimed(s, open),
        Stage::Stopping {
            result,
            why,
            open: Some(open),
        } => open_attempt::stopping(s, open, *result, why),
        Stage::Stopping {
            result,
            why,
            open: None,
        } => release().unwrap_or_else(|| ended_run::stopped(s, *result, why)),
        Stage::Claimed {
            claim,
            attempt,
            pod,
        } => open_attempt::claimed(s, claim, attempt, pod),
        // Closing a claimed attempt ends its run in the same write, so another writer closed it. No further attempt, ever.
        Stage::ClaimedClosed => {
            release().unwrap_or_else(|| close_attempt::unconfirmed(s, Unconfirmed::AttemptClosed))
        }
        Stage::EndedOpen { attempt, pod } => ended_run::but_open(s, attempt, pod),
        Stage::AtRest => ended_run::at_rest(s),
    }
}

/// Adds the finalizer before anything begins, so that a run with objects is never deleted unseen.
fn finalizer(s: &Situation<'_>) -> Option<Decision> {
    if s.run.finalizers().iter().any(|f| f == names::RUN_FINALIZER) {
        return None;
    }
    let prove = policies::unproven(s).is_some_and(|decision| !decision.actions.is_empty());
    Some(Decision::act(Action::AddFinalizer { prove }))
}
