//! The conditions of a run. `lastTransitionTime` changes only with the status.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::{SignedDuration, Timestamp},
};

use crate::{FailureClass, text::clip, whole_seconds};

/// A plan was made.
pub const PLANNED: &str = "Planned";
/// The plan may be applied.
pub const APPROVED: &str = "Approved";
/// The run holds the lease on the state that it applies to.
pub const STATE_LEASED: &str = "StateLeased";
/// The result of the run; Unknown until it ends.
pub const SUCCEEDED: &str = "Succeeded";
/// True when the run has ended, whatever its result.
pub const FINISHED: &str = "Finished";
/// An obstacle delays the run; the reason names it (kstatus reads this type).
pub const STALLED: &str = "Stalled";

/// Of repositories and layers: the object works as specified.
pub const READY: &str = "Ready";
/// Of repositories: the last check of the remote succeeded.
pub const SYNCED: &str = "Synced";

/// All condition types of a run.
pub const ALL: [&str; 6] = [
    PLANNED,
    APPROVED,
    STATE_LEASED,
    SUCCEEDED,
    FINISHED,
    STALLED,
];

/// Sets a condition. Keeps the transition time while the status is unchanged. An empty message is replaced by a default
/// for the status. Returns whether anything changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: Option<bool>,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let status = match status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let fresh = Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message: clip(
            if message.is_empty() {
                plain(type_, status)
            } else {
                message
            },
            512,
        ),
        observed_generation: generation,
        last_transition_time: whole_seconds(now),
    };
    if let Some(old) = conditions.iter_mut().find(|c| c.type_ == type_) {
        let at: Time = if old.status == fresh.status {
            old.last_transition_time.clone()
        } else {
            fresh.last_transition_time.clone()
        };
        let fresh = Condition {
            last_transition_time: at,
            ..fresh
        };
        let changed = *old != fresh;
        *old = fresh;
        changed
    } else {
        conditions.push(fresh);
        true
    }
}

/// Default messages: `kubectl describe` prints every message, and an empty one looks like a defect.
fn plain(type_: &str, status: &str) -> &'static str {
    match (type_, status) {
        (PLANNED, "True") => "there is a plan",
        (PLANNED, _) => "there is no plan",
        (APPROVED, "True") => "the plan may be applied",
        (APPROVED, _) => "no plan is approved",
        (STATE_LEASED, "True") => "it is this run's turn on the state",
        (STATE_LEASED, _) => "the run waits for its turn on the state",
        (STALLED, "True") => "the run is held up",
        (STALLED, _) => "nothing blocks the run",
        (_, "True") => "the run has ended",
        (_, "False") if type_ == SUCCEEDED => "the run has ended without success",
        _ => "the run has not ended",
    }
}

/// A message that ends in the next step, within the bound of a condition's message. A step that does not fit is left out: half a command is
/// none, and `nextStep` has the whole.
pub fn with_step(message: &str, step: Option<&str>) -> String {
    let Some(step) = step.filter(|step| step.chars().count() <= 400) else {
        return clip(message, 512);
    };
    let room = 511 - STEP.len() - step.chars().count();
    format!("{}{STEP}{step}", clip(message, room))
}

/// The message without the next step of [`with_step`].
pub fn without_step(message: &str) -> &str {
    message
        .split_once(STEP)
        .map_or(message, |(message, _)| message)
}

/// From when a repository's failure counts against a commit that is known: a fault at once, since it does not pass, an outage after an hour.
pub fn counts_from(class: FailureClass, since: Timestamp) -> Timestamp {
    if class == FailureClass::Transient {
        since + SignedDuration::from_hours(1)
    } else {
        since
    }
}

const STEP: &str = "; next step: ";

/// The status of a condition: `Some(true)`, `Some(false)`, or `None` when it is Unknown or missing.
pub fn status(conditions: &[Condition], type_: &str) -> Option<bool> {
    match conditions
        .iter()
        .find(|c| c.type_ == type_)?
        .status
        .as_str()
    {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_is_empty() {
        for type_ in ALL {
            for status in [Some(true), Some(false), None] {
                let mut conditions = Vec::new();
                set(
                    &mut conditions,
                    type_,
                    status,
                    "Reason",
                    "",
                    None,
                    Timestamp::UNIX_EPOCH,
                );
                assert!(!conditions[0].message.is_empty(), "{type_} {status:?}");
                set(
                    &mut conditions,
                    type_,
                    status,
                    "Reason",
                    "more is known",
                    None,
                    Timestamp::UNIX_EPOCH,
                );
                assert_eq!(conditions[0].message, "more is known");
            }
        }
    }

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let (early, late) = (
            Timestamp::from_second(100).unwrap(),
            Timestamp::from_second(200).unwrap(),
        );
        let mut conditions = Vec::new();
        assert!(set(
            &mut conditions,
            STALLED,
            Some(false),
            "Progressing",
            "",
            None,
            early
        ));
        assert!(
            !set(
                &mut conditions,
                STALLED,
                Some(false),
                "Progressing",
                "",
                None,
                late
            ),
            "nothing changed"
        );
        assert!(set(
            &mut conditions,
            STALLED,
            Some(false),
            "Retrying",
            "",
            None,
            late
        ));
        assert_eq!(conditions[0].last_transition_time.0, early);
        assert!(set(
            &mut conditions,
            STALLED,
            Some(true),
            "PodGone",
            "",
            None,
            late
        ));
        assert_eq!(conditions[0].last_transition_time.0, late);
        assert_eq!(status(&conditions, STALLED), Some(true));
    }
}
