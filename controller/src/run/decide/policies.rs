//! Whether the admission policies are enforced, on which everything relies that people set.

use jiff::Timestamp;

use super::draft::Draft;
use crate::{
    policies::{Enforcement, missing::Missing},
    run::{
        decision::{Action, Decision, Kind},
        observed::Observed,
    },
};
use crds::{
    conditions,
    reason::{
        self,
        next_step::{Facts, Place, next_step},
    },
};

/// Shows whether the policies are installed.
const POLICY_COMMAND: &str = "kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings pawl-approval pawl-status \
                                  pawl-creation pawl-finalizer pawl-layer; install what is missing with the chart (policies.install=true)";

/// What comes before anything that relies on the admission policies; `None`: they are proven.
pub(super) fn unproven(o: &Observed, now: Timestamp) -> Option<Decision> {
    match &o.policies {
        Enforcement::Enforced => None,
        Enforcement::NotEnforced { retry_at, .. } if now < *retry_at => Some(Decision::until(*retry_at, now)),
        Enforcement::Unknown | Enforcement::NotEnforced { .. } => Some(Decision::act(Action::ProbePolicies)),
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

/// Says what keeps the policies from being proven, once.
fn policy_missing(o: &Observed, missing: &Missing, now: Timestamp) -> Option<Action> {
    let mut draft = Draft::new(&o.run, now);
    draft.condition_if_new(conditions::STALLED, Some(true), missing.reason, &missing.text);
    if draft.is_empty() {
        return None;
    }
    draft.pending();
    if missing.reason == reason::NAMESPACE_TERMINATING {
        draft.message(&missing.text);
        draft.set("nextStep", next_step(missing.reason, Place::Cluster, &Facts::default()));
    } else {
        let text = &missing.text;
        draft.message(&format!("waits for the admission policies of the chart, without which no run starts: {text}"));
        draft.set("nextStep", POLICY_COMMAND);
    }
    draft.note(missing.reason, true, &missing.text);
    Some(Action::Write(draft.finish(Kind::Begin)))
}
