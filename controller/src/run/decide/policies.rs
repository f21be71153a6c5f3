//! Whether the admission policies are enforced. All fields that people set rely on them.

use crate::run::{
    outcome::{Action, Decision, Outcome},
    situation::{Policies, Situation},
};

/// The decision to take before any that relies on the admission policies; `None` when they are proven.
pub(super) fn unproven(s: &Situation<'_>) -> Option<Decision> {
    match s.policies {
        Policies::Enforced => None,
        Policies::Missing { retry_at, .. } => Some(Decision::until(retry_at, s.now)),
        Policies::Unproven => Some(Decision::act(Action::ProbePolicies)),
    }
}

/// The same before an attempt is opened: the run waits without a pod and reports it once.
pub(super) fn wait(s: &Situation<'_>) -> Option<Decision> {
    let mut decision = unproven(s)?;
    if let Policies::Missing { missing, .. } = s.policies {
        decision
            .actions
            .push(Action::Write(Outcome::PolicyMissing(missing.clone())));
    }
    Some(decision)
}
