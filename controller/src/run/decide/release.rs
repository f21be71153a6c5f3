//! What is left of an attempt that is closed, and of a run that goes.

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    draft::{Draft, End},
    state_queue,
};
use crate::run::{
    decision::{Action, Decision, Kind, Write},
    observed::{Observed, PodState},
    run_view::RunView,
};
use crds::{Attempt, names};

/// The closing write, and the account's removal where no pod's finalizer is left to remind of it.
pub(super) fn closing(o: &Observed, attempt: &Attempt, write: Write) -> Decision {
    let mut actions = vec![Action::Write(write)];
    match &o.pod {
        PodState::Present(pod) if pod.held && pod.attempt == attempt.number => {}
        PodState::Present(_) | PodState::Absent | PodState::Unknown => {
            actions.push(Action::DeleteAccount { name: attempt.pod_name.clone() });
        }
    }
    Decision::all(actions)
}

/// Ends a run that has no open attempt and no claim.
pub(super) fn end(o: &Observed, end: &End, now: Timestamp) -> Decision {
    let mut draft = Draft::new(&o.run, now);
    draft.end(end);
    state_queue::give_back(&mut draft);
    Decision::act(Action::Write(draft.finish(Kind::End)))
}

/// Everything of the run goes, then the run.
pub(super) fn remove(run: &RunView) -> Decision {
    if run.finalizers().iter().any(|f| f == names::RUN_FINALIZER) {
        Decision::all(vec![Action::Cleanup, Action::RemoveFinalizer])
    } else {
        Decision::wait()
    }
}

/// What is left to do with the pod of an attempt that is closed. Its finalizer goes last: it is the mark that says that this is
/// still to be done.
pub(super) fn pod(o: &Observed) -> Option<Decision> {
    let attempt = o.status().attempt.as_ref().filter(|attempt| !attempt.open)?;
    match &o.pod {
        PodState::Present(pod) if pod.held && pod.attempt == attempt.number => {
            let mut actions = vec![Action::DeleteAccount { name: attempt.pod_name.clone() }];
            if pod.ended.is_none() && !pod.deleting {
                actions.push(Action::delete(pod));
            }
            actions.push(Action::ReleasePod { name: pod.name.clone(), uid: pod.uid.clone() });
            Some(Decision::all(actions))
        }
        PodState::Present(_) | PodState::Absent | PodState::Unknown => None,
    }
}
