//! This process's access to the cluster.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{
    Api, Client, Resource,
    api::{PatchParams, PostParams},
};

use crds::{TerraformRun, clock::ServerClock, names};
use watching::{Listings, scoped};

use super::{freeze::Freezes, nodes::Nodes, pods::Pods, watch::Wakers};
use crate::{
    error::{self, Error},
    metrics::Metrics,
    settings::Settings,
};

/// Parameters of a patch by the controller.
pub(crate) fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(names::CONTROLLER_MANAGER.into()),
        ..PatchParams::default()
    }
}

/// Parameters of a creation by the controller.
pub(crate) fn create_params() -> PostParams {
    PostParams {
        field_manager: Some(names::CONTROLLER_MANAGER.into()),
        ..PostParams::default()
    }
}

/// The API server, the caches filled by its watches, and the operator's settings.
pub struct Cluster {
    pub client: Client,
    pub settings: Settings,
    /// The cache of held pods.
    pub pods: Pods,
    pub nodes: Nodes,
    pub freezes: Freezes,
    /// The watches that a reconcile of a run waits for.
    pub listings: Listings,
    /// Receivers of the runs to reconcile.
    pub wakers: Arc<Wakers>,
    pub metrics: Arc<Metrics>,
    /// The API server's clock. All waits on times in its objects use it.
    pub clock: ServerClock,
}

impl Cluster {
    /// Starts with empty caches.
    pub fn new(client: Client, settings: Settings, clock: ServerClock) -> Self {
        Self {
            client,
            pods: Pods::default(),
            nodes: Nodes::default(),
            freezes: Freezes::new(settings.freeze),
            listings: Listings::default(),
            wakers: Arc::default(),
            metrics: Arc::new(Metrics::new()),
            settings,
            clock,
        }
    }

    /// The current time of the API server's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The API for a kind in a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The API for a kind in a watched namespace, or in all.
    pub fn scoped<K>(&self, scope: Option<&str>) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        scoped(&self.client, scope)
    }

    pub fn runs(&self, namespace: &str) -> Api<TerraformRun> {
        self.api(namespace)
    }

    pub fn pod_api(&self, namespace: &str) -> Api<Pod> {
        self.api(namespace)
    }

    /// Calls the API server and counts failures.
    pub async fn call<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        error::call(what, request)
            .await
            .inspect_err(|error| self.metrics.failed(error))
    }

    /// Like [`Self::call`], but returns `None` when the object does not exist.
    pub async fn call_opt<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<Option<T>, Error> {
        error::call_opt(what, request)
            .await
            .inspect_err(|error| self.metrics.failed(error))
    }
}
