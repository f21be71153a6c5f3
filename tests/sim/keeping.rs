//! Simulated state outside the pod: the lock of the state, and the content of the datastore.

use std::time::Duration;

use crds::{Changed, Claim, Failure, FailureClass, StateLock, reason};
use played::Refusal;
use runner_agent::ports::{Notice, Notices};
use tokio::time::sleep;

use crate::{
    deeds,
    work::{PlayedWork, refused, unrecorded},
    world::{Datastore, Lock, Trouble, World, millis},
};

/// Interval between attempts to take a lock.
const LOCK_AGAIN: Duration = Duration::from_secs(5);

impl PlayedWork {
    /// Takes the lock of the state, or waits for it. Reports the holder, and releases the lock when the controller confirms that it is
    /// stale.
    pub(crate) async fn take_lock(&self, notices: &Notices) -> Result<(), Failure> {
        let mut told = self.told.subscribe();
        while let Some(lock) = self.shared.act(|world| self.try_lock(world)) {
            let pod = lock.holder.split('/').next().unwrap_or_default();
            let held = StateLock {
                id: lock.id.clone(),
                who: format!("root@{pod}"),
                operation: None,
                created: None,
            };
            let _ = notices.send(Notice::Locked(held));
            let until = tokio::time::Instant::now() + LOCK_AGAIN;
            while tokio::time::Instant::now() < until {
                if *told.borrow_and_update() > 0 {
                    let text = format!("the state is locked by {}", lock.holder);
                    return Err(Failure::new(
                        FailureClass::StateLocked,
                        reason::STATE_LOCKED,
                        &text,
                        Changed::None,
                    ));
                }
                if self.mine().release.take_if(|id| *id == lock.id).is_some() {
                    let id = lock.id.clone();
                    let unlock = move |world: &mut World| {
                        deeds::unlock(world, |lock| lock.id == id);
                        Ok(())
                    };
                    // Ignore the result: the next attempt shows whether it is free.
                    let _ = self
                        .shared
                        .request(&self.process, || "release the lock".to_owned(), unlock)
                        .await;
                    let _ =
                        notices.send(Notice::Unlocked(format!("released the lock {}", lock.id)));
                    break;
                }
                tokio::select! {
                    biased;
                    _ = told.changed() => {}
                    () = sleep(Duration::from_millis(500)) => {}
                }
            }
            self.process.live().await;
        }
        Ok(())
    }

    /// Takes the lock, or returns the one that blocks it. The datastore takes over the lock of a closed attempt without a claim.
    fn try_lock(&self, world: &mut World) -> Option<Lock> {
        let (process, settings) = (&self.process, &self.settings);
        if let Some(lock) = &world.lock {
            let run = world
                .runs
                .values()
                .find(|run| run.metadata.uid.as_deref() == Some(&lock.uid));
            let closed = run
                .and_then(|run| run.status.as_ref())
                .is_none_or(|status| {
                    let over = status
                        .attempt
                        .as_ref()
                        .is_none_or(|a| a.number > lock.attempt || !a.open);
                    over && status.claim.is_none()
                });
            if !(self.has_store && closed) {
                return Some(lock.clone());
            }
        }
        let id = format!("{}@{}", process.name, millis());
        world.lock = Some(Lock {
            id,
            holder: process.name.clone(),
            uid: settings.run_uid.clone(),
            attempt: settings.attempt,
        });
        None
    }

    /// Writes the record of the claim. Without it the apply does not begin.
    pub(crate) async fn record(&self, claim: &Claim) -> Result<(), Failure> {
        if !self.has_store {
            return Ok(());
        }
        let (uid, record) = (self.settings.run_uid.clone(), claim.clone());
        let claimed = || refused("AlreadyClaimed", "another process claimed this run");
        let kept = self.stored("record the claim", 60, move |data| {
            let there = data
                .claims
                .entry(uid.clone())
                .or_insert_with(|| record.clone());
            if *there == record {
                Ok(())
            } else {
                Err(claimed())
            }
        });
        kept.await.map_err(unrecorded)
    }

    pub(crate) fn release_lock(&self) {
        let name = &self.process.name;
        self.shared.act(|world| {
            if world.lock.as_ref().is_some_and(|lock| lock.holder == *name) {
                world.lock = None;
            }
        });
    }

    /// Sends a request to the datastore and retries it for a while.
    pub(crate) async fn stored<T: Send + 'static>(
        &self,
        what: &'static str,
        patience: u64,
        operation: impl Fn(&mut Datastore) -> Result<T, Refusal> + Clone + Send + 'static,
    ) -> Result<T, Trouble> {
        let until = millis() + patience * 1000;
        loop {
            let operation = operation.clone();
            let carry_out = move |world: &mut World| {
                if millis() < world.data.away_until {
                    return Err(Trouble::Lost);
                }
                Ok(operation(&mut world.data)?)
            };
            let what = || format!("datastore: {what}");
            let answer = self.shared.request(&self.process, what, carry_out).await;
            match answer {
                Err(Trouble::Lost) if millis() < until => sleep(Duration::from_secs(2)).await,
                Err(Trouble::Refused(refusal)) if refusal.code != 418 && millis() < until => {
                    sleep(Duration::from_secs(2)).await;
                }
                answer => return answer,
            }
        }
    }
}
