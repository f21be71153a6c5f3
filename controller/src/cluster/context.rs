//! The cluster as this process reaches it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{Api, Client, Resource};

use crds::{TerraformRun, clock::ServerClock};

use super::{freeze::Freezes, nodes::Nodes, pods::Pods};
use crate::{
    error::{self, Error},
    metrics::Metrics,
    settings::Settings,
};

/// The API server, what its watches have shown, and what the operator said about both.
pub struct Cluster {
    pub client: Client,
    pub settings: Settings,
    /// The cache of held pods.
    pub pods: Pods,
    pub nodes: Nodes,
    pub freezes: Freezes,
    pub metrics: Arc<Metrics>,
    /// The API server's clock, by which everything waits that stands in its objects.
    pub clock: ServerClock,
}

impl Cluster {
    /// With caches that are still to be filled.
    pub fn new(client: Client, settings: Settings, clock: ServerClock) -> Self {
        let (pods, nodes, freezes) = (Pods::default(), Nodes::default(), Freezes::new(settings.freeze));
        Self { client, settings, pods, nodes, freezes, metrics: Arc::new(Metrics::new()), clock }
    }

    /// Now, by the API server's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The objects of a kind in a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The same in a namespace that is watched, or in all of them.
    pub fn scoped<K>(&self, scope: Option<&str>) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        scope.map_or_else(|| Api::all(self.client.clone()), |namespace| self.api(namespace))
    }

    pub fn runs(&self, namespace: &str) -> Api<TerraformRun> {
        self.api(namespace)
    }

    pub fn pod_api(&self, namespace: &str) -> Api<Pod> {
        self.api(namespace)
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
