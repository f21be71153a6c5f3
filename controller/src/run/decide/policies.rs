//! Whether the admission policies stand, on which whatever people set rests.

use jiff::Timestamp;

use super::draft::Draft;
use crate::{
    policies::Enforcement,
    run::{
        decision::{Action, Decision, Kind},
        observed::Observed,
    },
};
use crds::{conditions, reason};

/// Shows whether the policies are installed.
const POLICY_COMMAND: &str = "kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings pawl-approval pawl-status \
                                  pawl-creation pawl-finalizer pawl-layer; install what is missing with the chart (policies.install=true)";

/// What comes before anything that rests on the admission policies; `None`: they stand, as they were proven.
pub(super) fn unproven(o: &Observed, now: Timestamp) -> Option<Decision> {
    match &o.policies {
        Enforcement::Enforced if o.policies_live => None,
        Enforcement::NotEnforced { retry_at, .. } if now < *retry_at => Some(Decision::until(*retry_at, now)),
        Enforcement::Unknown | Enforcement::Enforced | Enforcement::NotEnforced { .. } => {
            Some(Decision::act(Action::ProbePolicies))
        }
    }
}

/// The same before an attempt is opened: the run waits without a pod and says so.
pub(super) fn wait(o: &Observed, now: Timestamp) -> Option<Decision> {
    let mut decision = unproven(o, now)?;
    if let (Enforcement::NotEnforced { missing, .. }, true) = (&o.policies, decision.actions.is_empty()) {
        decision.actions.extend(policy_missing(o, missing, now));
    }
    Some(decision)
}

/// Says that the policies are missing, once.
fn policy_missing(o: &Observed, missing: &str, now: Timestamp) -> Option<Action> {
    let mut draft = Draft::new(&o.run, now);
    draft.condition_if_new(conditions::STALLED, Some(true), reason::POLICY_MISSING, missing);
    if draft.is_empty() {
        return None;
    }
    draft.pending();
    draft.message(&format!("waits for the admission policies of the chart, without which no run starts: {missing}"));
    draft.set("nextStep", POLICY_COMMAND);
    draft.note(reason::POLICY_MISSING, true, missing);
    Some(Action::Write(draft.finish(Kind::Begin)))
}
