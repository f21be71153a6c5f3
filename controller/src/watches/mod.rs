//! The watches that fill the indexes of several reconcilers. The reconcilers do not know each other; what feeds both is
//! composed here, a list of indexes for each kind.

mod run_cache;

use std::sync::Arc;

use futures::{channel::mpsc::unbounded, future::join};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::watcher::Config,
};
use serving::health::Readiness;
use tokio::sync::watch;
use watching::{Index, Indexes, Key, Listings, first, follow};

use crate::{
    cluster::{cached::Store, watch::until},
    layer::{self, Layers},
    run::{
        self,
        event_handlers::{LeftPods, Pods},
    },
};
use crds::{TerraformLayer, TerraformRepository, TerraformRun, names};

use run_cache::RunCache;

/// The contexts of both reconcilers.
#[derive(Clone)]
pub struct Watches {
    pub runs: Arc<run::Context>,
    pub layers: Arc<layer::Context>,
}

impl Watches {
    /// Builds the context of layers on the cluster and Events of the runs' context.
    pub fn new(runs: Arc<run::Context>) -> Self {
        let (cluster, events) = (runs.cluster.clone(), runs.events.clone());
        let layers = Arc::new(Layers::new(&cluster.settings, cluster.metrics.clone()));
        let layers = Arc::new(layer::Context::new(cluster, layers, events));
        Self { runs, layers }
    }

    /// The indexes of runs. From the call on, runs and layers wait for the first listing.
    pub fn of_runs(&self, store: &Arc<Store<TerraformRun>>) -> Indexes<TerraformRun> {
        let (ctx, layers) = (&self.runs, &self.layers.layers);
        let cache = RunCache {
            layers: layers.clone(),
            store: store.clone(),
            cluster: ctx.cluster.clone(),
        };
        vec![
            ctx.queue.clone(),
            ctx.slots.clone(),
            ctx.newer_plans.clone(),
            Arc::new(cache),
            Arc::new(LeftPods(ctx.clone())),
            ctx.cluster.listings.add(),
            layers.listings.add(),
        ]
    }

    /// The indexes of pods. From the call on, runs wait for the first listing.
    pub fn of_pods(&self, runs: &Arc<Store<TerraformRun>>) -> Indexes<Pod> {
        let pods = Pods {
            ctx: self.runs.clone(),
            runs: runs.clone(),
        };
        vec![Arc::new(pods), self.runs.cluster.listings.add()]
    }

    /// The indexes of repositories. From the call on, runs and layers wait for the first listing.
    pub fn of_repositories(&self) -> Indexes<TerraformRepository> {
        let (ctx, layers) = (&self.runs, &self.layers.layers);
        vec![
            layers.clone(),
            ctx.slots.clone(),
            layers.listings.add(),
            ctx.cluster.listings.add(),
        ]
    }

    /// The indexes of namespaces. From the call on, nothing starts before the first listing.
    pub fn of_namespaces(&self) -> Indexes<PartialObjectMeta<Namespace>> {
        let listings = [&self.runs.cluster.listings, &self.layers.layers.listings];
        let [runs, layers] = listings.map(Listings::add);
        vec![
            Arc::new(Namespaces {
                runs: self.runs.clone(),
                layers: self.layers.layers.clone(),
            }),
            runs,
            layers,
        ]
    }

    /// Watches the runs of one namespace, or of all, and their pods, and reconciles them until `stop`.
    pub fn run(
        &self,
        scope: Option<String>,
        readiness: &Arc<Readiness>,
        stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (ctx, (wake, woken)) = (self.runs.clone(), unbounded());
        let store = Store::new(wake.clone());
        let (mut of_runs, mut of_pods) = (self.of_runs(&store), self.of_pods(&store));
        of_runs.push(filled(readiness));
        of_pods.push(filled(readiness));
        let runs: Api<DeserializeGuard<TerraformRun>> = ctx.cluster.scoped(scope.as_deref());
        let pods: Api<Pod> = ctx.cluster.scoped(scope.as_deref());
        ctx.cluster.wakers.add(scope, wake);
        let ours = format!(
            "{}={},!{}",
            names::LABEL_MANAGED_BY,
            names::MANAGED_BY,
            names::LABEL_RELEASED
        );
        let pods = follow("pods", pods, Config::default().labels(&ours), of_pods);
        let watching = until(
            stop.clone(),
            join(follow("runs", runs, Config::default(), of_runs), pods),
        );
        async move {
            join(watching, run::work::run(store, woken, ctx, stop)).await;
        }
    }

    /// Watches the layers of one namespace, or of all, and reconciles them until `stop`.
    pub fn layer(
        &self,
        scope: Option<String>,
        stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (ctx, (wake, woken)) = (self.layers.clone(), unbounded());
        let store = Store::new(wake.clone());
        let indexes = layer::watch::indexes(&ctx, &store);
        let api: Api<DeserializeGuard<TerraformLayer>> = ctx.cluster.scoped(scope.as_deref());
        ctx.layers.wakers.add(scope, wake);
        async move {
            let watching = until(
                stop.clone(),
                follow("layers", api, Config::default(), indexes),
            );
            join(watching, layer::watch::run(store, woken, ctx, stop)).await;
        }
    }

    /// Watches the repositories of one namespace, or of all, until `stop`.
    pub fn repositories(
        &self,
        scope: Option<&str>,
        readiness: &Arc<Readiness>,
        stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let api: Api<DeserializeGuard<TerraformRepository>> = self.runs.cluster.scoped(scope);
        let mut indexes = self.of_repositories();
        indexes.push(filled(readiness));
        until(
            stop,
            follow("repositories", api, Config::default(), indexes),
        )
    }

    /// Watches namespaces until `stop`.
    pub fn namespaces(
        &self,
        readiness: &Arc<Readiness>,
        stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let api: Api<PartialObjectMeta<Namespace>> = Api::all(self.runs.cluster.client.clone());
        let mut indexes = self.of_namespaces();
        indexes.push(filled(readiness));
        until(stop, follow("namespaces", api, Config::default(), indexes))
    }
}

/// Takes note of a cache that has filled.
fn filled<K>(readiness: &Arc<Readiness>) -> Arc<dyn Index<K>> {
    let readiness = readiness.clone();
    first(move || readiness.filled())
}

/// Fills the freezes, and wakes the runs and layers of a namespace that was frozen, unfrozen or deleted.
struct Namespaces {
    runs: Arc<run::Context>,
    layers: Arc<Layers>,
}

impl Namespaces {
    fn show(&self, name: &str, namespace: Option<&PartialObjectMeta<Namespace>>) {
        if self.runs.cluster.freezes.show(name, namespace) {
            self.runs.slots.wake(name);
            self.layers.wake(name);
        }
    }
}

impl Index<PartialObjectMeta<Namespace>> for Namespaces {
    fn apply(&self, key: &Key, namespace: &PartialObjectMeta<Namespace>) {
        self.show(&key.1, Some(namespace));
    }

    fn delete(&self, key: &Key) {
        self.show(&key.1, None);
    }
}
