//! The decision: a pure function of what was observed, the settings and the clock. Its rules are those of
//! `design/0001-run-protocol.md`.
//!
//! | module | decides |
//! |---|---|
//! | [`begin`] | attempts that nobody has adopted yet |
//! | [`working`] | attempts with an agent: stops, lost nodes, what is worth a write |
//! | [`approval`] | approvals of plans |
//! | [`waiting_plan`] | plans that outlive their pods |
//! | [`close`] | ends of attempts |
//! | [`ended`], [`release`] | runs that have ended, and what is left of them |
//! | [`state_queue`] | one apply at a time on a state: whether it is the run's turn |
//! | [`slots`] | whether something new may begin: what is frozen, how many attempts are open |
//! | [`stale_lock`] | locks of states that dead pods left |
//! | [`lost_node`] | the pod's node is lost, or over |
//! | [`late_result`], [`apply_log`] | results, and what became of objects, that arrive by the datastore |
//! | [`policies`] | whether the admission policies stand |
//! | [`rerun`], [`recovery`] | runs that are made from this one |
//! | [`draft`] | status writes in the making |

pub(super) mod apply_log;
pub(super) mod approval;
pub(super) mod begin;
mod close;
pub(super) mod draft;
mod ended;
pub(super) mod late_result;
pub(super) mod lost_node;
mod policies;
pub(super) mod recovery;
mod release;
pub(super) mod rerun;
mod slots;
pub(super) mod stale_lock;
pub(super) mod state_queue;
mod waiting_plan;
mod working;

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    decision::{Action, Decision},
    observed::Observed,
    situation::Situation,
};
use crate::settings::Settings;
use crds::names;

/// Says what is to be done now. A run with a word of a newer version is left to the newer version.
pub fn decide(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let release = || release::pod(o);
    match Situation::of(o) {
        Situation::Newer => Decision::wait(),
        Situation::New => release().or_else(|| finalizer(o, now)).unwrap_or_else(|| begin::next(o, settings, now)),
        Situation::WaitingPlan { plan, attempt } => {
            release().or_else(|| finalizer(o, now)).unwrap_or_else(|| waiting_plan::wait(o, plan, attempt, settings, now))
        }
        Situation::Open(open) => working::unclaimed(o, &open, settings, now),
        Situation::Stopping { result, why, open: Some(open) } => working::stopping(o, &open, result, why, now),
        Situation::Stopping { result, why, open: None } => release().unwrap_or_else(|| ended::stopped(o, result, why, now)),
        Situation::Claimed { claim, attempt, pod } => working::claimed(o, claim, attempt, &pod, settings, now),
        // Closing a claimed attempt ends its run in the same write, so this needs another hand. No further attempt, ever.
        Situation::ClaimedClosed => release().unwrap_or_else(|| close::unconfirmed(o, "its attempt was closed", settings, now)),
        Situation::EndedOpen { attempt, pod } => ended::but_open(o, attempt, &pod, now),
        Situation::AtRest => ended::at_rest(o, settings, now),
    }
}

/// Nothing is begun of a run that may go unseen.
fn finalizer(o: &Observed, now: Timestamp) -> Option<Decision> {
    if o.run.finalizers().iter().any(|f| f == names::RUN_FINALIZER) {
        return None;
    }
    let prove = policies::unproven(o, now).is_some_and(|decision| !decision.actions.is_empty());
    Some(Decision::act(Action::AddFinalizer { prove }))
}
