//! The kinds of strikes, and a record of strikes so far.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

/// Kind of a fault that the loop injects (a strike).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// SIGKILL to the agent, the init process of the pod, which ends all processes of the container.
    Agent,
    /// SIGKILL to the tool and its children.
    Tool,
    /// SIGTERM to the agent.
    Terminate,
    /// The pod is deleted with its grace period.
    Delete,
    /// The pod is force-deleted.
    ForceDelete,
    Evict,
    /// The kernel's OOM killer ends the tool.
    OutOfMemory,
    /// All pods of runs are drained from the node.
    Drain,
    /// SIGKILL to the controller.
    Controller,
    /// SIGKILL to the datastore.
    Datastore,
    /// SIGKILL to `sources`, which follows repositories.
    Sources,
    /// SIGKILL to `server`, which receives webhooks.
    Server,
    /// The Git server stops and restarts after a while.
    GitServer,
    /// SIGKILL to the API server, which is restarted after a while.
    ApiServer,
    /// The network between pods and API server degrades for a while; not a kill.
    Network,
}

impl Kind {
    /// All kinds, in the order of the report.
    pub(super) const ALL: [Self; 15] = [
        Self::Agent,
        Self::Tool,
        Self::Terminate,
        Self::Delete,
        Self::ForceDelete,
        Self::Evict,
        Self::OutOfMemory,
        Self::Drain,
        Self::Controller,
        Self::Datastore,
        Self::Sources,
        Self::Server,
        Self::GitServer,
        Self::ApiServer,
        Self::Network,
    ];

    /// Name in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent, SIGKILL",
            Self::Tool => "tool, SIGKILL",
            Self::Terminate => "agent, SIGTERM",
            Self::Delete => "pod deleted",
            Self::ForceDelete => "pod deleted by force",
            Self::Evict => "pod evicted",
            Self::OutOfMemory => "tool out of memory",
            Self::Drain => "node drained",
            Self::Controller => "controller, SIGKILL",
            Self::Datastore => "datastore, SIGKILL",
            Self::Sources => "sources, SIGKILL",
            Self::Server => "server, SIGKILL",
            Self::GitServer => "Git server away",
            Self::ApiServer => "API server, SIGKILL",
            Self::Network => "bad network",
        }
    }
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
        self.guard().push(Strike { kind, phase, at: Timestamp::now() });
    }

    pub(super) fn all(&self) -> Vec<Strike> {
        self.guard().clone()
    }

    /// Number of kills so far, without network faults.
    pub(super) fn kills(&self) -> u64 {
        self.guard().iter().filter(|strike| strike.kind != Kind::Network).count() as u64
    }

    /// Times at which the API server was killed.
    pub(super) fn gaps(&self) -> Vec<Timestamp> {
        self.guard().iter().filter(|strike| strike.kind == Kind::ApiServer).map(|strike| strike.at).collect()
    }

    /// Times of kills and network faults between an agent and the datastore, which may interrupt a journal.
    pub(super) fn outages(&self) -> Vec<Timestamp> {
        let on_the_way = [Kind::Datastore, Kind::ApiServer, Kind::Network];
        self.guard().iter().filter(|strike| on_the_way.contains(&strike.kind)).map(|strike| strike.at).collect()
    }

    fn guard(&self) -> std::sync::MutexGuard<'_, Vec<Strike>> {
        // A push cannot leave the list half-changed, so a poisoned lock is safe to use.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
