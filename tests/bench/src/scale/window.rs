//! Requests to the API server, and processor time, within a time window.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::agents::Agents;
use super::lab::Lab;
use super::process::Process;
use crate::audit::{self, Kind, Request};
use crate::table::number;
use harness::cluster::{NAMESPACE, report};

const CLIENTS: [&str; 3] = ["controller", "sources", "datastore"];

/// An open window.
pub(super) struct Window {
    begun: Instant,
    log: u64,
    agents: u64,
    controller: Duration,
    sources: Duration,
}

/// A closed window.
pub(super) struct Spent {
    pub(super) seconds: f64,
    /// Requests of agents.
    pub(super) agents: u64,
    /// Processor seconds; those of sources include its git processes.
    pub(super) controller: f64,
    pub(super) sources: f64,
    requests: BTreeMap<&'static str, Vec<Request>>,
}

impl Window {
    pub(super) fn begin(lab: &Lab, agents: &Agents) -> Result<Self> {
        let log = audit::end(&lab.plane.audit_log)?;
        let (controller, sources) = (cpu(lab.controller()?)?, cpu(&lab.sources)?);
        Ok(Self {
            begun: Instant::now(),
            log,
            agents: agents.requests(),
            controller,
            sources,
        })
    }

    pub(super) fn end(self, lab: &Lab, agents: &Agents) -> Result<Spent> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let spent = |now: Duration, before: Duration| now.saturating_sub(before).as_secs_f64();
        let controller = spent(cpu(lab.controller()?)?, self.controller);
        let sources = spent(cpu(&lab.sources)?, self.sources);
        let mut requests: BTreeMap<&'static str, Vec<Request>> = BTreeMap::new();
        for request in tokio::task::block_in_place(|| audit::since(&lab.plane.audit_log, self.log))?
        {
            let account = request
                .user
                .strip_prefix(&format!("system:serviceaccount:{NAMESPACE}:pawl-"));
            if let Some(client) =
                account.and_then(|account| CLIENTS.into_iter().find(|client| *client == account))
            {
                requests.entry(client).or_default().push(request);
            }
        }
        Ok(Spent {
            seconds,
            agents: agents.requests() - self.agents,
            controller,
            sources,
            requests,
        })
    }
}

impl Spent {
    /// Requests of a client, without watches and its own.
    pub(super) fn of(&self, client: &str) -> Vec<&Request> {
        let asked = |request: &&Request| !matches!(request.kind, Kind::Watch | Kind::Own);
        self.requests
            .get(client)
            .into_iter()
            .flatten()
            .filter(asked)
            .collect()
    }

    pub(super) fn count(&self) -> usize {
        CLIENTS.iter().map(|client| self.of(client).len()).sum()
    }

    /// Requests per second, by client.
    pub(super) fn rates(&self) -> String {
        let rate = |count: u64| format!("{:.1}", number(count) / self.seconds.max(0.001));
        let clients =
            CLIENTS.map(|client| format!("{client} {}", rate(self.of(client).len() as u64)));
        format!("{}, agents {}", clients.join(", "), rate(self.agents))
    }

    /// Prints the requests, to find expensive ones.
    pub(super) fn details(&self, what: &str) {
        for client in CLIENTS {
            let requests = self.of(client);
            if !requests.is_empty() {
                report::note(
                    "scale",
                    &format!("{what}: {client}: {}", audit::counted(requests)),
                );
            }
        }
    }
}

fn cpu(of: &Process) -> Result<Duration> {
    Ok(of.work()?.cpu)
}
