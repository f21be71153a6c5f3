//! The lock of a state: taken for a run and attempt, released by the same pod, taken over only from a holder that can
//! no longer write.

use std::ops::ControlFlow::{Break, Continue};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use crds::datastore::{Problem, UNAVAILABLE};
use serving::problem::{invalid, problem};

use crate::{
    auth::lookup::Lookup,
    cluster::RunView,
    names::{RunKey, StateKey},
    objects::claim,
};

use super::{Head, Held, States, TRIES};

/// Whether the holder of a lock may still write. `run` is the run with the holder's name, read live; `recorded` tells
/// whether the store has a claim of the holder's run.
pub fn may_write(held: &Held, run: Option<&RunView>, recorded: bool) -> bool {
    match run.filter(|run| run.uid == held.uid) {
        // The run is gone, its claim remains: an apply may have ended with an unknown outcome.
        None => recorded,
        Some(run) => {
            run.claim.is_some() || recorded || (run.newest() == held.attempt && run.is_open())
        }
    }
}

/// Parses Terraform's lock info.
///
/// # Errors
/// `Invalid` when it is not a JSON object with an `ID`.
pub fn parse(info: &[u8]) -> Result<(String, Value), Problem> {
    let info: Value =
        serde_json::from_slice(info).map_err(|_| invalid("the lock info is no JSON"))?;
    let id = info
        .get("ID")
        .and_then(Value::as_str)
        .filter(|id| (1..=128).contains(&id.len()));
    let id = id
        .ok_or_else(|| invalid("the lock info has no ID"))?
        .to_owned();
    Ok((id, info))
}

/// The caller that takes or releases a lock.
#[derive(Clone, Debug)]
pub struct Holder<'a> {
    /// The run, read live.
    pub run: &'a RunView,
    pub attempt: u32,
    pub pod_uid: &'a str,
}

impl Holder<'_> {
    /// Whether the controller has confirmed for this lock that the process that left it has ended, with or without a
    /// claim. The confirmation is in the status of the caller's own run, in a field that only the controller writes.
    pub fn may_release(&self, held: &Held) -> bool {
        self.run.released.as_deref() == Some(held.id.as_str())
    }

    pub fn holds(&self, head: &Head, id: &str) -> bool {
        head.lock.as_ref().is_some_and(|held| {
            held.id == id
                && held.uid == self.run.uid
                && held.attempt == self.attempt
                && held.pod_uid == self.pod_uid
        })
    }
}

impl States {
    /// Takes the lock for a run in the namespace with this UID. Taking it again with the same ID is acknowledged.
    ///
    /// # Errors
    /// `Locked` with the holder's info; `StateOfFormerNamespace`; `Unavailable`, also when it is unknown whether the
    /// holder lives.
    pub async fn lock(
        &self,
        key: &StateKey,
        holder: &Holder<'_>,
        namespace_uid: &str,
        info: &[u8],
        lookup: &Lookup,
    ) -> Result<(), Problem> {
        let (id, info) = parse(info)?;
        for attempt in 0..TRIES {
            let newest = self.newest(key).await?;
            newest.head.belongs_to(key, namespace_uid)?;
            if holder.holds(&newest.head, &id) {
                return Ok(());
            }
            let mut head = Head {
                namespace_uid: Some(namespace_uid.to_owned()),
                ..newest.head.clone()
            };
            if let Some(held) = newest.head.lock.as_ref() {
                let run = lookup
                    .find(holder.run.namespace.as_str(), &held.run)
                    .await?;
                let recorded = claim::get(
                    &self.sealed,
                    &RunKey::new(&holder.run.namespace, &held.uid)?,
                )
                .await?
                .is_some();
                if !holder.may_release(held) && may_write(held, run.as_deref(), recorded) {
                    return Err(newest.head.locked());
                }
                let reason = format!(
                    "attempt {} of run {} can write no more",
                    held.attempt, held.run
                );
                tracing::info!(state = %key.prefix(), reason, run = holder.run.name, "a lock is taken over");
                head.note(format!("lock {} taken over", held.id), name(holder), reason);
            }
            head.lock = Some(Held {
                id: id.clone(),
                info: info.clone(),
                run: holder.run.name.clone(),
                uid: holder.run.uid.clone(),
                attempt: holder.attempt,
                pod_uid: holder.pod_uid.to_owned(),
                at: Timestamp::now(),
            });
            if self.append(key, &newest, head, &Bytes::new()).await? {
                return Ok(());
            }
            Self::back_off(attempt).await;
        }
        Err(busy())
    }

    /// Releases the lock. Releasing a free lock is no error.
    ///
    /// # Errors
    /// `Locked` when it has another holder; `Unavailable`.
    pub async fn unlock(
        &self,
        key: &StateKey,
        holder: &Holder<'_>,
        id: &str,
    ) -> Result<(), Problem> {
        let change = |head: &mut Head| {
            let Some(held) = &head.lock else {
                return Ok(Break(()));
            };
            let is_left = held.id == id && holder.may_release(held);
            if !is_left && !holder.holds(head, id) {
                return Err(head.locked());
            }
            if let Some(held) = head.lock.take().filter(|_| is_left) {
                let reason = format!(
                    "the controller says that attempt {} of run {} has ended",
                    held.attempt, held.run
                );
                head.note(format!("lock {id} released"), name(holder), reason);
            }
            Ok(Continue(()))
        };
        self.change(key, change).await
    }

    /// Releases the lock that a run left, after the controller has confirmed that nothing of the run writes any more. A
    /// late write is fenced: it is rejected without its lock. The lock of another run remains.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn release(&self, key: &StateKey, run_uid: &str) -> Result<(), Problem> {
        let change = |head: &mut Head| {
            let Some(held) = head.lock.take_if(|held| held.uid == run_uid) else {
                return Ok(Break(()));
            };
            let reason = format!(
                "the controller says that attempt {} of run {} has ended or was abandoned",
                held.attempt, held.run
            );
            tracing::info!(state = %key.prefix(), reason, run = held.run, "a lock is released");
            head.note(
                format!("lock {} released", held.id),
                "controller".to_owned(),
                reason,
            );
            Ok(Continue(()))
        };
        self.change(key, change).await
    }

    /// Removes the lock from any holder, on a person's request; returns the former holder.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn force_unlock(
        &self,
        key: &StateKey,
        user: &str,
        reason: &str,
    ) -> Result<Option<Held>, Problem> {
        let change = |head: &mut Head| {
            let Some(held) = head.lock.take() else {
                return Ok(Break(None));
            };
            let what = format!(
                "lock {} of run {} attempt {} removed",
                held.id, held.run, held.attempt
            );
            head.note(what, user.to_owned(), reason.to_owned());
            Ok(Continue(Some(held)))
        };
        self.change(key, change).await
    }
}

pub(super) fn name(holder: &Holder<'_>) -> String {
    format!("run {} attempt {}", holder.run.name, holder.attempt)
}

pub(super) fn busy() -> Problem {
    problem(
        UNAVAILABLE,
        "other writers change this state too often; nothing was written; try again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{claim, view};

    #[test]
    fn lock_is_taken_over_only_from_a_holder_that_cannot_write() {
        let run = view(2, true);
        let held = Held {
            id: "1".into(),
            info: Value::Null,
            run: run.name.clone(),
            uid: run.uid.clone(),
            attempt: 2,
            pod_uid: "pod-2".into(),
            at: Timestamp::UNIX_EPOCH,
        };
        let older = Held {
            attempt: 1,
            ..held.clone()
        };
        let of_another = Held {
            uid: "other".into(),
            ..held.clone()
        };
        let closed = view(2, false);
        let claimed = RunView {
            claim: Some(claim(2)),
            ..closed.clone()
        };
        let dead = |held, run, recorded| !may_write(held, run, recorded);
        assert!(!dead(&held, Some(&run), false), "open");
        assert!(dead(&older, Some(&run), false), "replaced");
        assert!(dead(&held, Some(&closed), false), "closed");
        assert!(
            !dead(&held, Some(&claimed), false),
            "behind the claim the apply may go on"
        );
        assert!(
            !dead(&held, Some(&closed), true),
            "the store knows of a claim that the status lost"
        );
        assert!(
            dead(&of_another, Some(&run), false),
            "a run of the same name was deleted before"
        );
        assert!(dead(&held, None, false), "deleted without a claim");
        assert!(!dead(&held, None, true), "deleted behind its claim");
    }

    #[test]
    fn claimed_lock_is_released_only_when_the_controller_names_it() {
        let held = Held {
            id: "1".into(),
            info: Value::Null,
            run: "dead".into(),
            uid: "dead".into(),
            attempt: 1,
            pod_uid: "pod-1".into(),
            at: Timestamp::UNIX_EPOCH,
        };
        let may = |released: Option<&str>| {
            let run = RunView {
                released: released.map(str::to_owned),
                ..view(1, true)
            };
            Holder {
                run: &run,
                attempt: 1,
                pod_uid: "pod",
            }
            .may_release(&held)
        };
        assert!(may(Some("1")) && !may(Some("2")) && !may(Some("")) && !may(None));
    }

    #[test]
    fn lock_info_without_an_id_is_rejected() {
        for bad in [
            b"".as_slice(),
            b"[]",
            b"{}",
            br#"{"ID": ""}"#,
            br#"{"ID": 1}"#,
            b"\xff",
        ] {
            assert!(parse(bad).is_err());
        }
        assert_eq!(parse(br#"{"ID": "a", "Who": "x"}"#).unwrap().0, "a");
    }
}
