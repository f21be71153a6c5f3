//! The kinds of strikes, and a record of strikes so far.

use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use jiff::Timestamp;

/// Kind of a fault that the loop injects (a strike, in the order of the report. The value's name is the one in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// The init process of the pod, whose death ends all processes of the container.
    #[value(name = "agent, SIGKILL")]
    Agent,
    /// The tool and its children.
    #[value(name = "tool, SIGKILL")]
    Tool,
    #[value(name = "agent, SIGTERM")]
    Terminate,
    #[value(name = "pod deleted")]
    Delete,
    #[value(name = "pod deleted by force")]
    ForceDelete,
    #[value(name = "pod evicted")]
    Evict,
    #[value(name = "tool out of memory")]
    OutOfMemory,
    #[value(name = "node drained")]
    Drain,
    #[value(name = "controller, SIGKILL")]
    Controller,
    #[value(name = "datastore, SIGKILL")]
    Datastore,
    #[value(name = "sources, SIGKILL")]
    Sources,
    #[value(name = "server, SIGKILL")]
    Server,
    #[value(name = "Git server away")]
    GitServer,
    #[value(name = "API server, SIGKILL")]
    ApiServer,
    /// Not a kill.
    #[value(name = "bad network")]
    Network,
}

#[derive(Clone, Debug)]
pub(super) struct Strike {
    pub(super) kind: Kind,
    /// Phase of the struck run. `None` for strikes on the cluster.
    pub(super) phase: Option<String>,
    pub(super) at: Timestamp,
}

/// All strikes so far.
#[derive(Debug, Default)]
pub(super) struct Record(Mutex<Vec<Strike>>);

impl Record {
    pub(super) fn add(&self, kind: Kind, phase: Option<String>) {
        self.guard().push(Strike {
            kind,
            phase,
            at: Timestamp::now(),
        });
    }

    pub(super) fn all(&self) -> Vec<Strike> {
        self.guard().clone()
    }

    /// Number of kills so far, without network faults.
    pub(super) fn kills(&self) -> u64 {
        self.guard()
            .iter()
            .filter(|strike| strike.kind != Kind::Network)
            .count() as u64
    }

    /// Times of the strikes of some kinds.
    pub(super) fn times(&self, kinds: &[Kind]) -> Vec<Timestamp> {
        self.guard()
            .iter()
            .filter(|strike| kinds.contains(&strike.kind))
            .map(|strike| strike.at)
            .collect()
    }

    fn guard(&self) -> std::sync::MutexGuard<'_, Vec<Strike>> {
        // A push cannot leave the list half-changed, so a poisoned lock is safe to use.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
