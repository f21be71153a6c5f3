//! What is done to runs and to the cluster, and what was done so far.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

/// What strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// SIGKILL to the agent, which is the pod's init: with it goes everything in the container.
    Agent,
    /// SIGKILL to the tool and what it started.
    Tool,
    /// SIGTERM to the agent.
    Terminate,
    /// The pod is deleted with its grace.
    Delete,
    /// The pod is deleted by force.
    ForceDelete,
    Evict,
    /// The kernel kills the tool for want of memory.
    OutOfMemory,
    /// The node is drained of all pods of runs.
    Drain,
    /// SIGKILL to the controller.
    Controller,
    /// SIGKILL to the datastore.
    Datastore,
    /// SIGKILL to what follows repositories.
    Sources,
    /// SIGKILL to what takes deliveries of forges.
    Server,
    /// The Git server goes, and comes back after a while.
    GitServer,
    /// SIGKILL to the API server, which is away for a while.
    ApiServer,
    /// The network between pods and API server is bad for a while; no kill.
    Network,
}

impl Kind {
    /// All kinds, in the order in which they are told.
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

    /// How it is called in the report.
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
    /// Phase of the run that was struck; none of what strikes the cluster.
    pub(super) phase: Option<String>,
    pub(super) at: Timestamp,
}

/// What was done so far.
#[derive(Debug, Default)]
pub(super) struct Record(Mutex<Vec<Strike>>);

impl Record {
    pub(super) fn add(&self, kind: Kind, phase: Option<String>) {
        self.guard().push(Strike { kind, phase, at: Timestamp::now() });
    }

    pub(super) fn all(&self) -> Vec<Strike> {
        self.guard().clone()
    }

    /// Kills so far; bad network is none.
    pub(super) fn kills(&self) -> u64 {
        self.guard().iter().filter(|strike| strike.kind != Kind::Network).count() as u64
    }

    /// When the API server was killed.
    pub(super) fn gaps(&self) -> Vec<Timestamp> {
        self.guard().iter().filter(|strike| strike.kind == Kind::ApiServer).map(|strike| strike.at).collect()
    }

    /// When something that a journal passes on its way was struck.
    pub(super) fn outages(&self) -> Vec<Timestamp> {
        let on_the_way = [Kind::Datastore, Kind::ApiServer, Kind::Network];
        self.guard().iter().filter(|strike| on_the_way.contains(&strike.kind)).map(|strike| strike.at).collect()
    }

    fn guard(&self) -> std::sync::MutexGuard<'_, Vec<Strike>> {
        // Strikes are pushed whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
