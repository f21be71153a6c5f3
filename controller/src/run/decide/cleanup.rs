//! Clean-up after a closed attempt and of a deleted run.

use kube::ResourceExt;

use crate::run::{
    outcome::{Action, Decision, Ending, Outcome, RunEnd},
    run_view::RunView,
    situation::Situation,
};
use crds::{Attempt, names};

/// Closes the attempt, and deletes the service account if no pod's finalizer will cause its clean-up.
pub(super) fn closing(s: &Situation<'_>, attempt: &Attempt, outcome: Outcome) -> Decision {
    let mut actions = vec![Action::Write(outcome)];
    if s.pod
        .is_none_or(|pod| !pod.held || pod.attempt != attempt.number)
    {
        actions.push(Action::DeleteAccount {
            name: attempt.pod_name.clone(),
        });
    }
    Decision::all(actions)
}

/// Ends a run that has no open attempt and no claim.
pub(super) fn end(ending: Ending) -> Decision {
    Decision::write(Outcome::Ended(RunEnd::unclaimed(ending, false, None)))
}

/// Deletes all objects of the run, then releases the run.
pub(super) fn remove(run: &RunView) -> Decision {
    if run.finalizers().iter().any(|f| f == names::RUN_FINALIZER) {
        Decision::all(vec![Action::Cleanup, Action::RemoveFinalizer])
    } else {
        Decision::wait()
    }
}

/// Cleans up the pod of a closed attempt. Its finalizer is removed last: it marks that the clean-up is due.
pub(super) fn pod(s: &Situation<'_>) -> Option<Decision> {
    let attempt = s
        .status()
        .attempt
        .as_ref()
        .filter(|attempt| !attempt.open)?;
    let pod = s
        .pod
        .filter(|pod| pod.held && pod.attempt == attempt.number)?;
    let mut actions = vec![Action::DeleteAccount {
        name: attempt.pod_name.clone(),
    }];
    if pod.ended.is_none() && !pod.deleting {
        actions.push(Action::delete(pod));
    }
    actions.push(Action::ReleasePod {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        lingers: pod.lingers,
    });
    Some(Decision::all(actions))
}
