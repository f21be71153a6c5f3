//! What everything works with that calls the API server.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};

use super::memory::Memory;
use crate::{
    datastore_client::Datastore,
    error::{self, Error},
    events::Events,
    gate::Gatekeeper,
    locks::Released,
    metrics::Metrics,
    nodes::Nodes,
    pods::Pods,
    queue::Queue,
    settings::Settings,
    workspaces::Workspaces,
};
use crds::{TerraformRun, clock::ServerClock};

/// What the reconciler works with.
pub struct Context {
    /// The client.
    pub client: Client,
    /// Settings.
    pub settings: Settings,
    /// The cache of held pods.
    pub pods: Pods,
    /// The cache of nodes.
    pub nodes: Nodes,
    /// Notes on runs.
    pub memory: Memory,
    /// Proofs of the admission policies.
    pub gate: Gatekeeper,
    /// Runs by workspace.
    pub workspaces: Workspaces,
    /// Runs by the state that they apply to.
    pub queue: Queue,
    /// Locks that runs were told to release.
    pub released: Released,
    /// The datastore, when there is one.
    pub datastore: Option<Arc<Datastore>>,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// The API server's clock, by which everything waits that stands in its objects.
    pub clock: ServerClock,
}

impl Context {
    /// Now, by the API server's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The runs of a namespace.
    pub fn runs(&self, namespace: &str) -> Api<TerraformRun> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The pods of a namespace.
    pub fn pod_api(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Calls the API server; failures are counted.
    pub async fn call<T>(&self, what: &'static str, request: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
        let answer = error::call(what, request).await;
        if let Err(error) = &answer {
            self.metrics.failed(error);
        }
        answer
    }

    /// As [`Self::call`], where "not found" is an answer.
    pub async fn call_opt<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<Option<T>, Error> {
        let answer = error::call_opt(what, request).await;
        if let Err(error) = &answer {
            self.metrics.failed(error);
        }
        answer
    }
}
