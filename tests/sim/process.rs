//! A process that may die at any moment, and change notifications.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use played::User;
use tokio::sync::Notify;

/// A process: an agent's, or a controller's.
#[derive(Clone)]
pub(crate) struct Process {
    pub name: Arc<str>,
    pub user: User,
    died: Changes,
}

/// A version that tasks wait for. Not a tokio channel, which wakes its receivers in random order.
#[derive(Clone, Default)]
pub(crate) struct Changes(Arc<(AtomicU64, Notify)>);

impl Changes {
    pub(crate) fn now(&self) -> u64 {
        self.0.0.load(Ordering::Relaxed)
    }

    pub(crate) fn come_to(&self, version: u64) {
        self.0.0.store(version, Ordering::Relaxed);
        self.0.1.notify_waiters();
    }

    /// Waits for a version later than `version`.
    pub(crate) async fn after(&self, version: u64) {
        loop {
            let mut woken = pin!(self.0.1.notified());
            woken.as_mut().enable();
            if self.now() > version {
                return;
            }
            woken.await;
        }
    }

    /// Waits for the next change.
    pub(crate) async fn next(&self) {
        self.0.1.notified().await;
    }

    /// Wakes all waiting tasks without a change.
    pub(crate) fn wake(&self) {
        self.0.1.notify_waiters();
    }
}

impl Process {
    pub(crate) fn new(name: &str, user: User) -> Self {
        Self {
            name: name.into(),
            user,
            died: Changes::default(),
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.died.now() > 0
    }

    pub(crate) fn kill(&self) {
        self.died.come_to(1);
    }

    /// Waits until the process is dead.
    pub(crate) async fn death(&self) {
        self.died.after(0).await;
    }

    /// Returns at once if the process lives, and never if it is dead.
    pub(crate) async fn live(&self) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }
}
