//! A state that somebody else has locked: `plan` and `apply` wait for it, say who holds it, and release a lock that the controller says was
//! left by an ended process of ours. No other lock is ever touched.

use std::{sync::PoisonError, time::Duration};

use crds::{Failure, StateLock};
use tokio::time::Instant;

use super::{PhaseRunner, Shell, guard};
use crate::{
    backend::Backend,
    classify,
    datastore::{failure, retry_for},
    ports::{Notice, Notices},
};

/// How long the tool itself waits for a lock that is held for a moment, in seconds.
const LOCK_TIMEOUT: u32 = 10;
/// How often that is doubled under Terragrunt: up to 160 s.
const DOUBLED: u32 = 4;
/// Between two tries, beside the time that the tool itself waits.
const AGAIN: Duration = Duration::from_secs(5);
/// How soon a stop, or the controller's word, is seen while nothing runs.
const GLANCE: Duration = Duration::from_millis(100);
/// How long a managed state's lock is tried to be released for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The controller's word that a lock may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) id: String,
    pub(super) holder: String,
}

impl Shell {
    /// How long the tool itself waits for a lock, once it was refused it `waits` times. Each try of Terragrunt's runs the hooks of its configuration again
    /// and reads the outputs of other units, so that the tool beneath is left to wait: longer each time, as nobody sees meanwhile
    /// who holds the lock.
    pub(super) fn lock_timeout(&self, waits: u32) -> String {
        format!("-lock-timeout={}s", seconds(if self.is_terragrunt() { waits } else { 0 }))
    }

    /// Whether a lock is released by its ID and no other. The datastore does that; of other backends the table of types says so.
    fn unlocks_by_id(&self) -> bool {
        self.managed || Backend::read(&self.stack).is_ok_and(|backend| backend.unlocks_by_id(Some(self.tool.found.name)))
    }
}

impl PhaseRunner {
    /// Waits until a step is worth another try; the failure stands when it is not one of a lock, or the attempt is being stopped.
    pub(super) async fn wait_for_lock(
        &self,
        shell: &Shell,
        step: &str,
        failure: Failure,
        notices: &Notices,
    ) -> Result<(), Failure> {
        let Some(lock) = classify::lock(&failure, &self.settings.pod_name) else { return Err(failure) };
        let lock = self.named(shell, lock);
        let failure = Failure { message: format!("{step} failed: {}", classify::held_by(&lock)), ..failure };
        // A person at a terminal sees who holds it, and tries again himself.
        if self.host.terminal().is_some() {
            return Err(failure);
        }
        let _ = notices.send(Notice::Locked(lock.clone()));
        let until = Instant::now() + AGAIN;
        while Instant::now() < until {
            if self.children.is_stopped() {
                return Err(failure);
            }
            let word = guard(&self.release).clone();
            if let Some(release) = word.filter(|release| release.id == lock.id && shell.unlocks_by_id()) {
                return self.unlock(shell, &lock, &release, notices).await;
            }
            tokio::time::sleep(GLANCE).await;
        }
        Ok(())
    }

    /// The holder of a managed state's lock is the datastore's to name: of what an `http` backend says, the tools pass on the ID.
    fn named(&self, shell: &Shell, lock: StateLock) -> StateLock {
        let Some(remote) = self.remote.as_ref().filter(|_| shell.managed) else { return lock };
        let server = remote.state.lock().unwrap_or_else(PoisonError::into_inner);
        server.as_ref().and_then(|server| server.holder(&lock.id)).unwrap_or(lock)
    }

    async fn unlock(&self, shell: &Shell, lock: &StateLock, release: &Release, notices: &Notices) -> Result<(), Failure> {
        // Once: should the lock stay, it takes another word.
        *guard(&self.release) = None;
        let released = match self.remote.as_ref().filter(|_| shell.managed) {
            Some(remote) => {
                let released = retry_for(PATIENCE, || remote.client.unlock(&lock.id)).await;
                released.map_err(|trouble| failure("the lock of the managed state cannot be released", &trouble))
            }
            None => self.tool_step(shell, "force-unlock", &["force-unlock", "-force", &lock.id], notices).await.map(drop),
        };
        match released {
            Ok(()) => {
                let text = format!("released the lock {} that {} left", lock.id, release.holder);
                let _ = notices.send(Notice::Unlocked(text));
            }
            // Somebody else may have released it; the next try shows how it is.
            Err(failure) => self.log.line(&self.redactor.clean(&format!("pawl: {}", failure.message))).await,
        }
        Ok(())
    }
}

/// How long the tool waits for a lock, when each time is twice as long as the one before.
fn seconds(waits: u32) -> u32 {
    LOCK_TIMEOUT << waits.min(DOUBLED)
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_wait_is_longer_up_to_a_bound() {
        assert_eq!([0, 1, 2, 3, 4, 5, 100].map(super::seconds), [10, 20, 40, 80, 160, 160, 160]);
    }
}
