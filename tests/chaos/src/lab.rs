//! The cluster of the kill loop, its servers, and its view of the runs.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use crds::{TerraformLayer, TerraformRun};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    CLUSTER,
    kinds::Record,
    shelf::{self, Shelf},
};
use harness::cluster::{Audit, Cluster, NAMESPACE, chart::Values, objects, rights::Log, victims};
use harness::wait;
pub(super) use played::patch::merge;
use servers::{proxy::Proxy, state::StateServer};

/// A secret that every run gets from a Secret and prints. It must appear in no status, event, log or request.
pub(super) const SECRET: &str = "kept-by-a-pawl-8341-2207";
/// Keeps the API server from replacing the proxy's address by its own.
pub(super) const FLAG: &str = "--endpoint-reconciler-type=none";

/// Shared state of the loop.
pub(super) struct Lab {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
    /// The requests of this loop.
    pub(super) audit: Log,
    pub(super) state: StateServer,
    pub(super) proxy: Proxy,
    pub(super) namespace: String,
    pub(super) record: Record,
    /// Data read from runs that have ended.
    pub(super) shelf: Shelf,
    /// Stops further runs and strikes.
    pub(super) over: AtomicBool,
    /// A watch cache of the runs.
    pub(super) seen: reflector::Store<TerraformRun>,
}

impl Lab {
    pub(super) async fn up(seed: u64, values: &Values) -> Result<Self> {
        // The loop has its own cluster, since it kills the API server and the controllers, and the checker reads the whole audit log.
        let cluster = Cluster::up(CLUSTER, Audit::Objects).await?;
        let audit = Log::begin(&cluster);
        let mut config = cluster.config().await?;
        // A killed API server may leave a request or a watch without an end.
        config.read_timeout = Some(Duration::from_secs(30));
        let client = Client::try_from(config)?;
        let host = SocketAddr::new(IpAddr::V4(cluster.host()), 0);
        let state = StateServer::start(host).await?;
        let target = cluster
            .server
            .strip_prefix("https://")
            .context("the API server's address is no URL")?
            .parse()?;
        let proxy = Proxy::start(host, target).await?;
        cluster
            .restart_apiserver(Duration::ZERO, &[FLAG.to_owned()])
            .await?;
        // Do this first: in a cluster from an earlier run, pods still use the address of that run's proxy.
        behind(&cluster, proxy.addr())?;
        cluster.install(values).await?;
        let second = jiff::Timestamp::now().as_second() % 0xf_ffff;
        let namespace = format!("kills-{seed}-{second:x}");
        objects::namespace(&client, &namespace).await?;
        let secret: Secret = serde_json::from_value(
            json!({"metadata": {"name": "password"}, "stringData": {"value": SECRET}}),
        )?;
        Api::namespaced(client.clone(), &namespace)
            .create(&PostParams::default(), &secret)
            .await?;
        let (seen, writer) = reflector::store();
        let watching = Api::<TerraformRun>::namespaced(client.clone(), &namespace);
        let events = watcher(watching, watcher::Config::default().timeout(20));
        let mut events = events.default_backoff().reflect(writer).boxed();
        tokio::spawn(async move { while events.next().await.is_some() {} });
        let over = AtomicBool::new(false);
        let (record, shelf) = (Record::default(), Shelf::default());
        Ok(Self {
            cluster,
            client,
            audit,
            state,
            proxy,
            namespace,
            record,
            shelf,
            over,
            seen,
        })
    }

    pub(super) fn runs(&self) -> Api<TerraformRun> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Lists all objects. Retries while the API server is away.
    pub(super) async fn all<K: Clone + DeserializeOwned + Debug>(
        &self,
        of: &Api<K>,
    ) -> Result<Vec<K>> {
        let list = async || Ok(of.list(&ListParams::default()).await);
        Ok(
            wait::until("a list at the end", Duration::from_secs(120), list)
                .await?
                .items,
        )
    }

    pub(super) fn layers(&self) -> Api<TerraformLayer> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn system_pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Reads from the datastore's read API, by path below the namespace.
    pub(super) async fn read(&self, path: &str) -> kube::Result<String> {
        shelf::read(&self.client, &self.namespace, path).await
    }

    /// Stores the datastore's data of a run that has ended.
    pub(super) async fn keep(&self, name: &str) {
        self.shelf
            .take(&self.client, &self.namespace, name, SECRET)
            .await;
    }

    /// A run in the watch cache.
    pub(super) fn run(&self, name: &str) -> Option<TerraformRun> {
        self.seen
            .find(|run| run.metadata.name.as_deref() == Some(name))
            .map(|run| (*run).clone())
    }

    /// Waits until all pods of runs have ended, for a minute at most.
    pub(super) async fn settle(&self) {
        let ended = async || {
            let pods = self.pods().list(&ListParams::default()).await;
            Ok(pods.is_ok_and(|pods| pods.items.iter().all(victims::has_ended)))
        };
        let _ = wait::until("the pods end", Duration::from_secs(60), ended).await;
    }

    /// A run of the scripted tool.
    pub(super) fn scripted(
        &self,
        name: &str,
        code: &str,
        script: &Value,
        more: &Value,
    ) -> Result<TerraformRun> {
        let mut whole = json!({"name": format!("{}/{name}", self.namespace), "ledger": self.state.ledger_url()});
        merge(&mut whole, script);
        let files = json!({"main.tf": format!("# played by a script\n{code}"), "pawl-script.json": whole.to_string()});
        let mut spec = json!({"source": {"inline": {"files": files}}, "tool": {"name": "OpenTofu", "version": "0.0.1"}});
        merge(&mut spec, more);
        let mut run = TerraformRun::new(name, serde_json::from_value(spec)?);
        run.metadata.namespace = Some(self.namespace.clone());
        Ok(run)
    }

    /// Container logs on this machine that contain the secret.
    pub(super) fn leaks(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut dirs = vec![self.cluster.pod_logs()];
        while let Some(dir) = dirs.pop() {
            // Pods may be deleted meanwhile.
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                let path = entry.path();
                let ours = path.to_string_lossy().contains(&self.namespace);
                if path.is_dir() {
                    dirs.push(path);
                } else if ours
                    && std::fs::read_to_string(&path).is_ok_and(|text| text.contains(SECRET))
                {
                    found.push(format!("the log {} holds the secret", path.display()));
                }
            }
        }
        let events =
            self.cluster
                .kubectl(&["-n", &self.namespace, "get", "events", "-o", "json"])?;
        found.extend(
            events
                .contains(SECRET)
                .then(|| "an event holds the secret".to_owned()),
        );
        Ok(found)
    }
}

/// The pod's memory limit. With `tight` it is much less than the tool needs, to trigger the OOM killer.
pub(super) fn runner(tight: bool) -> Value {
    let memory = if tight { "128Mi" } else { "256Mi" };
    // Each controller waits this long plus a minute for a pod that disappeared without an end, because the node is young.
    json!({"terminationGracePeriodSeconds": 60,
        "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": memory}}})
}

/// Routes pods to the API server through the proxy only.
fn behind(cluster: &Cluster, proxy: SocketAddr) -> Result<()> {
    let address = proxy.ip().to_string();
    let ports = json!([{"name": "https", "port": proxy.port(), "protocol": "TCP"}]);
    let slice = json!({"endpoints": [{"addresses": [address], "conditions": {"ready": true}}], "ports": ports});
    let endpoints = json!({"subsets": [{"addresses": [{"ip": address}], "ports": ports}]});
    for (kind, patch) in [("endpointslice", slice), ("endpoints", endpoints)] {
        let patch = patch.to_string();
        let of = [
            "-n",
            "default",
            "patch",
            kind,
            "kubernetes",
            "--type=merge",
            "-p",
        ];
        cluster.kubectl(&[&of[..], &[&patch]].concat())?;
    }
    Ok(())
}
