//! The cluster of the benchmark, and the two alternatives compared on it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use crds::{Phase, TerraformRun, TerraformRunStatus, pod_env};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use xtask::root;

use super::CLUSTER;
use super::containers::Containers;
use super::former::Former;
use super::stacks::{Commands, Stack};
use harness::cluster::chart::{PawlImages, Values};
use harness::cluster::gobuild::{IN_PODS, Toolset};
use harness::cluster::images::Profile;
use harness::cluster::{Audit, Cluster, node, objects};
use scripted_tool::BACKEND_FILE;
use servers::state::StateServer;

/// A longer wait indicates a defect, not a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster with Pawl and a state server.
#[derive(Debug)]
pub(super) struct Lab {
    pub(super) cluster: Cluster,
    pub(super) client: ClientBox,
    pub(super) state: StateServer,
    pub(super) containers: Containers,
    /// The installed version: the checkout with the chart, and its images.
    checkout: PathBuf,
    images: PawlImages,
    tofu: String,
    next: AtomicU32,
}

/// A client with a `Debug` implementation.
#[derive(Clone)]
pub(super) struct ClientBox(pub(super) Client);

impl std::fmt::Debug for ClientBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

#[derive(Clone, Debug)]
pub(super) struct Timing {
    /// From creation until its success was observed.
    pub(super) outside: Duration,
    /// From the start of its container to its end.
    pub(super) inside: Duration,
    /// From creation to the start of its container.
    pub(super) before: Duration,
    pub(super) pod: String,
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
}

impl Lab {
    /// Starts it with Pawl of that commit, or of this checkout.
    pub(super) async fn up(commit: Option<&str>) -> Result<Self> {
        // Not shared: others would affect the figures, and requests are counted in its audit log.
        let cluster = Cluster::up(CLUSTER, Audit::Requests).await?;
        let (checkout, images) = match commit.map(Former::build).transpose()? {
            Some(former) => (former.checkout, former.images),
            None => (root().to_owned(), PawlImages::build(IN_PODS, Profile::Dist)?),
        };
        cluster.install_images_of(&checkout, &images, &Values::new()).await?;
        Ok(Self {
            client: ClientBox(cluster.client().await?),
            state: StateServer::start(SocketAddr::new(IpAddr::V4(cluster.host()), 0)).await?,
            containers: Containers::listen(&node::socket(cluster.state()))?,
            checkout,
            images,
            tofu: Toolset::ensure(IN_PODS)?.version("tofu")?.to_owned(),
            next: AtomicU32::new(0),
            cluster,
        })
    }

    /// Installs the same Pawl with other values.
    pub(super) async fn install(&self, values: &Values) -> Result<()> {
        self.cluster.install_images_of(&self.checkout, &self.images, values).await
    }

    /// A new namespace.
    pub(super) async fn namespace(&self) -> Result<String> {
        let second = Timestamp::now().as_second();
        let name = format!("b{second}-{}", self.next.fetch_add(1, Ordering::Relaxed));
        objects::namespace(&self.client.0, &name).await?;
        // A controller creates the account of bare pods; until then they are refused.
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(self.client.0.clone(), &name);
        while accounts.get_opt("default").await?.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(name)
    }

    pub(super) fn runs(&self, namespace: &str) -> Api<TerraformRun> {
        Api::namespaced(self.client.0.clone(), namespace)
    }

    pub(super) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.0.clone(), namespace)
    }

    /// A run of a stack; `mode` is its approval mode.
    pub(super) fn run(&self, namespace: &str, name: &str, stack: Stack, mode: &str) -> Result<TerraformRun> {
        let id = format!("{namespace}/{name}");
        let files: serde_json::Map<_, _> =
            stack.files(&id, &self.state.ledger_url()).into_iter().map(|(path, text)| (path.to_owned(), json!(text))).collect();
        let spec = json!({
            "source": {"inline": {"files": files}},
            "tool": {"name": "OpenTofu", "version": stack.version(&self.tofu)},
            "backend": {"type": "http", "config": self.state.backend_config(&id)},
            "approval": {"mode": mode},
            "runner": {"resources": resources()},
        });
        let mut run = TerraformRun::new(name, serde_json::from_value(spec)?);
        run.metadata.namespace = Some(namespace.to_owned());
        Ok(run)
    }

    /// A bare pod that does the same with a script.
    pub(super) fn bare_pod(&self, namespace: &str, name: &str, stack: Stack, commands: Commands) -> Result<Pod> {
        let id = format!("{namespace}/{name}");
        let mut files = stack.files(&id, &self.state.ledger_url());
        let backend = json!({"terraform": {"backend": {"http": self.state.backend_config(&id)}}});
        files.push((BACKEND_FILE, backend.to_string()));
        let mut env = vec![
            json!({"name": "TOOL", "value": format!("{}/opentofu/{}/tofu", pod_env::TOOLS_DIR, stack.version(&self.tofu))}),
            json!({"name": "HOME", "value": "/tmp"}),
        ];
        env.extend(files.iter().enumerate().map(|(n, (_, text))| json!({"name": format!("FILE_{n}"), "value": text})));
        let pod = json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "restartPolicy": "Never",
                "enableServiceLinks": false,
                "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": "script",
                    "image": self.images.runner.name,
                    "command": ["sh", "-e", "-c", commands.script(pod_env::WORK_DIR, &files)],
                    "env": env,
                    "resources": resources(),
                    "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [{"name": "work", "mountPath": pod_env::WORK_DIR}, {"name": "tmp", "mountPath": "/tmp"}],
                }],
                "volumes": [{"name": "work", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
            },
        });
        Ok(serde_json::from_value(pod)?)
    }

    /// Creates a run and waits until its success is observed.
    pub(super) async fn time_run(&self, run: &TerraformRun) -> Result<Timing> {
        let namespace = run.namespace().unwrap_or_default();
        let (created, seen, run) = watched(self.runs(&namespace), run, run_succeeded).await?;
        let pod = run.status.and_then(|status| status.attempt).context("a run without an attempt")?.pod_name;
        self.timing(&namespace, pod, created, seen).await
    }

    /// Creates a bare pod and waits until its success is observed.
    pub(super) async fn time_pod(&self, pod: &Pod) -> Result<Timing> {
        let namespace = pod.namespace().unwrap_or_default();
        let (created, seen, pod) = watched(self.pods(&namespace), pod, pod_succeeded).await?;
        self.timing(&namespace, pod.name_any(), created, seen).await
    }

    async fn timing(&self, namespace: &str, pod: String, created: Timestamp, seen: Timestamp) -> Result<Timing> {
        let pods = self.pods(namespace);
        let mut tries = 0;
        let id = loop {
            let pod = pods.get(&pod).await?;
            let status = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
            let ended = status.first().filter(|s| s.state.as_ref().is_some_and(|state| state.terminated.is_some()));
            if let Some(id) = ended.and_then(|s| s.container_id.as_deref()).and_then(|id| id.rsplit_once("//")) {
                break id.1.to_owned();
            }
            tries += 1;
            if tries > 600 {
                bail!("the pod {namespace}/{} does not end", pod.metadata.name.unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let (start, end) = self.containers.ended(&id).await?;
        let between = |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default();
        Ok(Timing {
            outside: between(created, seen),
            inside: between(start, end),
            before: between(created, start),
            pod,
            start,
            end,
        })
    }
}

/// The same for both, and small enough for twenty in parallel.
fn resources() -> Value {
    json!({"requests": {"cpu": "10m", "memory": "64Mi"}})
}

/// Whether a run succeeded. Fails if it ended otherwise.
pub(super) fn run_succeeded(run: &TerraformRun) -> Result<bool> {
    let status = run.status.clone().unwrap_or_default();
    if status.is_terminal() && status.phase != Some(Phase::Succeeded) {
        bail!("the run {} ended {:?}: {:?} {:?}", run.name_any(), status.result, status.message, status.failure);
    }
    Ok(status.phase == Some(Phase::Succeeded))
}

/// Whether a pod succeeded. Fails if it failed.
pub(super) fn pod_succeeded(pod: &Pod) -> Result<bool> {
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Failed") => bail!("the pod {} failed; look at its log with --keep", pod.name_any()),
        phase => Ok(phase == Some("Succeeded")),
    }
}

/// Whether a run waits for its approval. Fails if it ended.
pub(super) fn run_waits(run: &TerraformRun) -> Result<bool> {
    let status: TerraformRunStatus = run.status.clone().unwrap_or_default();
    if status.is_terminal() {
        bail!("the run {} ended {:?} in place of waiting: {:?}", run.name_any(), status.result, status.failure);
    }
    Ok(status.phase == Some(Phase::AwaitingApproval))
}

/// Creates an object under an established watch. Returns when the creation was sent, when `done` held, and the object.
pub(super) async fn watched<K>(api: Api<K>, object: &K, done: fn(&K) -> Result<bool>) -> Result<(Timestamp, Timestamp, K)>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + serde::Serialize
        + std::fmt::Debug
        + Send
        + 'static,
{
    let name = object.meta().name.clone().unwrap_or_default();
    let mut stream = watch_object(api.clone(), &name).boxed();
    stream.next().await.context("the watch ended")?.context("cannot watch")?;
    let created = Timestamp::now();
    api.create(&PostParams::default(), object).await.with_context(|| format!("cannot create {name}"))?;
    let wait = async {
        while let Some(seen) = stream.next().await {
            if let Some(object) = seen?
                && done(&object)?
            {
                return Ok((created, Timestamp::now(), object));
            }
        }
        bail!("the watch of {name} ended")
    };
    tokio::time::timeout(PATIENCE, wait).await.with_context(|| format!("{name} is not where it should be after {PATIENCE:?}"))?
}
