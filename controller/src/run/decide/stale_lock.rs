//! State locks that Pawl's dead processes left: who owns a lock, and when it may be released (`design/0010-leases-and-locks.md`).

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::{
    run::{
        observed::PodState,
        outcome::{Action, Decision, Outcome},
        situation::Situation,
        timing::after,
    },
    runner_pod::gone_wait,
};
use crds::{StateLock, TerraformRun, names};

/// The interval between two checks of a lock's holder.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(5);

/// Releases the lock once its process is known to have ended. Checks that at intervals until then.
pub(super) fn decide(s: &Situation<'_>) -> Option<Decision> {
    let status = s.status();
    let lock = status.state_lock.as_ref()?;
    if status
        .lock_release
        .as_ref()
        .is_some_and(|release| release.id == lock.id)
        || pod_of(lock).is_none()
    {
        return None;
    }
    if let Some(by) = s.lock_left_by {
        return Some(Decision::write(Outcome::LockLeft { by: by.to_owned() }));
    }
    match &s.notes.lock_asked {
        Some((id, at)) if *id == lock.id && s.now < after(*at, LOOK_AGAIN) => {
            Some(Decision::until(after(*at, LOOK_AGAIN), s.now))
        }
        Some(_) | None => Some(Decision::act(Action::AskLock)),
    }
}

/// The pod that holds a lock, if its name is one of Pawl's: name of the run, five characters of a hash of its UID, attempt.
pub(in crate::run) fn pod_of(lock: &StateLock) -> Option<(&str, &str, u32)> {
    let host = lock.who.rsplit_once('@')?.1;
    let (rest, number) = host.rsplit_once("-a")?;
    let (run, hash) = rest.rsplit_once('-')?;
    (hash.len() == 5 && !run.is_empty()).then_some((run, hash, number.parse().ok()?))
}

/// Whether that attempt's pod has ended for certain: `Ok` with its owner, otherwise the reason why the lock remains.
pub(in crate::run) fn is_over(
    run: &TerraformRun,
    number: u32,
    pod: &PodState,
    now: Timestamp,
) -> Result<Over, String> {
    let name = format!("{}/{}", run.namespace().unwrap_or_default(), run.name_any());
    if let Some(field) = run.unknown_word() {
        return Err(format!("{field} of {name} is a value of a newer version"));
    }
    let status = run.status.clone().unwrap_or_default();
    let Some(attempt) = status.attempt.filter(|attempt| attempt.number >= number) else {
        return Err(format!("{name} has no attempt {number}"));
    };
    if attempt.number == number && attempt.open {
        return Err(format!("attempt {number} of {name} still works"));
    }
    let whose = format!("{name}, attempt {number}");
    match pod {
        PodState::Present(pod) if pod.ended.is_some() => Ok(Over::Ended(whose)),
        PodState::Present(_) | PodState::Unknown => {
            Err(format!("the pod of attempt {number} of {name} still runs"))
        }
        PodState::Absent => {
            // An upper bound: the next attempt opens only after this one is closed.
            let closed = if attempt.number == number {
                attempt.closed_at
            } else {
                attempt.opened_at
            };
            let due = after(closed.map_or(now, |at| at.0), gone_wait(run));
            if now < due {
                return Err(format!(
                    "the pod of attempt {number} of {name} is gone, and its end is not confirmed"
                ));
            }
            Ok(Over::Gone(whose))
        }
    }
}

/// The node of that attempt's pod; `None` if it was not recorded, as by older versions.
pub(in crate::run) fn node_of(run: &TerraformRun, number: u32) -> Option<&str> {
    let status = run.status.as_ref()?;
    let attempt = status.attempt.as_ref()?;
    if attempt.number == number {
        return attempt.node(status.adopted.as_ref());
    }
    attempt
        .former
        .iter()
        .find(|former| former.number == number)
        .map(|former| former.node_name.as_str())
}

/// How certain the end of a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) enum Over {
    /// The end was observed.
    Ended(String),
    /// The pod has been gone for so long that a Ready node has ended it.
    Gone(String),
}

/// Whether that pod belongs to an attempt of the run.
pub(in crate::run) fn is_run(run: &TerraformRun, name: &str, hash: &str) -> bool {
    run.name_any() == name && names::short_hash(&run.uid().unwrap_or_default()) == hash
}
