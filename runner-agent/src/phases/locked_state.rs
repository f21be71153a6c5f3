//! Waits for a locked state: `init`, `plan` and `apply` report the holder, and release a lock if the controller confirms that an ended
//! process of Pawl left it. No other lock is ever released.

use std::time::Duration;

use crds::{Failure, StateLock};
use tokio::time::Instant;

use super::{PhaseRunner, Shell};
use crate::{
    backend::Backend,
    classify,
    datastore::{failure, retry_for},
    guard,
    ports::{Notice, Notices},
};

/// Time in seconds that the tool itself waits for a lock.
const LOCK_TIMEOUT: u32 = 10;
/// Number of doublings of that time under Terragrunt: up to 160 s.
const DOUBLED: u32 = 4;
/// Pause between two attempts, besides the tool's own wait.
const AGAIN: Duration = Duration::from_secs(5);
/// Interval at which a stop or the controller's release is noticed during the pause.
const GLANCE: Duration = Duration::from_millis(100);
/// Time limit for retries to release a managed state's lock.
const PATIENCE: Duration = Duration::from_secs(60);

/// The controller's permission to release a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) id: String,
    pub(super) holder: String,
}

impl Shell {
    /// The tool's own lock timeout after `waits` refusals. Each attempt of Terragrunt runs its configuration's hooks again and
    /// reads the outputs of other units, so the tool beneath waits instead. The wait grows with each attempt, since the holder is
    /// not visible meanwhile.
    pub(super) fn lock_timeout(&self, waits: u32) -> String {
        format!(
            "-lock-timeout={}s",
            seconds(if self.is_terragrunt() { waits } else { 0 })
        )
    }

    /// Whether the lock can be released by its ID alone. True for the datastore; the backend table decides for others.
    fn unlocks_by_id(&self) -> bool {
        self.managed
            || Backend::read(&self.stack)
                .is_ok_and(|backend| backend.unlocks_by_id(Some(self.tool.found.name)))
    }
}

impl PhaseRunner {
    /// Waits until a step is worth a retry. Returns the failure if it is not caused by a lock, or if the attempt is being stopped.
    pub(super) async fn wait_for_lock(
        &self,
        shell: &Shell,
        step: &str,
        failure: Failure,
        notices: &Notices,
    ) -> Result<(), Failure> {
        let Some(lock) = classify::lock(&failure, &self.settings.pod_name) else {
            return Err(failure);
        };
        let lock = self.named(shell, lock);
        let failure = self.held(shell, step, failure);
        // A person at a terminal sees the holder and retries.
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
            if let Some(release) =
                word.filter(|release| release.id == lock.id && shell.unlocks_by_id())
            {
                return self.unlock(shell, &lock, &release, notices).await;
            }
            tokio::time::sleep(GLANCE).await;
        }
        Ok(())
    }

    /// The failure of a step that did not get the lock, with the holder as far as the backend names it.
    pub(super) fn held(&self, shell: &Shell, step: &str, failure: Failure) -> Failure {
        match classify::lock(&failure, &self.settings.pod_name) {
            Some(lock) => Failure {
                message: format!(
                    "{step} failed: {}",
                    classify::held_by(&self.named(shell, lock))
                ),
                ..failure
            },
            None => failure,
        }
    }

    /// Names the holder of a managed state's lock from the datastore's response, since for an `http` backend the tools print only
    /// the ID. Some backends name the refused client in place of the holder.
    fn named(&self, shell: &Shell, lock: StateLock) -> StateLock {
        if Backend::read(&shell.stack).is_ok_and(|backend| !backend.names_holder()) {
            return StateLock {
                id: classify::UNKNOWN.to_owned(),
                who: classify::UNKNOWN.to_owned(),
                ..StateLock::default()
            };
        }
        let Some(remote) = self.remote.as_ref().filter(|_| shell.managed) else {
            return lock;
        };
        let server = guard(&remote.state);
        server
            .as_ref()
            .and_then(|server| server.holder(&lock.id))
            .unwrap_or(lock)
    }

    async fn unlock(
        &self,
        shell: &Shell,
        lock: &StateLock,
        release: &Release,
        notices: &Notices,
    ) -> Result<(), Failure> {
        // Once: if the lock remains, another permission is needed.
        *guard(&self.release) = None;
        let remote = self.remote.as_ref().filter(|_| shell.managed);
        let released = if let Some(remote) = remote {
            let released = retry_for(PATIENCE, || remote.client.unlock(&lock.id)).await;
            released.map_err(|trouble| {
                failure("the lock of the managed state cannot be released", &trouble)
            })
        } else {
            let args = ["force-unlock", "-force", &lock.id];
            let unlocked = self.tool_once(shell, "force-unlock", &args, notices);
            unlocked.await.map(drop)
        };
        match released {
            Ok(()) => {
                let text = format!("released the lock {} that {} left", lock.id, release.holder);
                let _ = notices.send(Notice::Unlocked(text));
            }
            // The command opens the state first, and several backends lock a state while they create it.
            Err(failure) if classify::lock(&failure, &self.settings.pod_name).is_some() => {
                self.say(format!(
                    "{}; force-unlock takes this lock itself, since the state does not exist yet: a person has to remove the lock in the backend",
                    failure.message
                ))
                .await;
            }
            // Another client may have released it. The next attempt decides.
            Err(failure) => self.say(failure.message).await,
        }
        Ok(())
    }
}

/// The tool's lock timeout in seconds, doubled with each refusal up to the bound.
fn seconds(waits: u32) -> u32 {
    LOCK_TIMEOUT << waits.min(DOUBLED)
}

#[cfg(test)]
mod tests {
    #[test]
    fn lock_timeout_doubles_up_to_a_bound() {
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 100].map(super::seconds),
            [10, 20, 40, 80, 160, 160, 160]
        );
    }
}
