//! The cluster of the benchmark, and the two alternatives compared on it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use crds::{Phase, TerraformRun, names, pod_env};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt as _};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use xtask::root;

use super::CLUSTER;
use super::containers::Containers;
use super::former::Former;
use harness::cluster::chart::{PawlImages, Values};
use harness::cluster::gobuild::{IN_PODS, Toolset};
use harness::cluster::images::Profile;
use harness::cluster::{Audit, Cluster, NAMESPACE, node, objects};
use harness::wait;
use scripted_tool::{BACKEND_FILE, script::SCRIPT_FILE};
use servers::state::StateServer;

/// A longer wait indicates a defect, not a slow machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// The version of the scripted tool in the tests' runner.
const SCRIPTED: &str = "0.0.1";

/// A stack, and the tool that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// Real OpenTofu on one `terraform_data`.
    Tiny,
    /// The scripted tool with almost no work, to measure the overhead.
    Nothing,
    /// The scripted tool, busy for three seconds.
    ThreeSeconds,
}

impl Stack {
    /// Name in the table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tiny => "OpenTofu, tiny stack",
            Self::Nothing => "scripted tool, 0 s",
            Self::ThreeSeconds => "scripted tool, 3 s",
        }
    }

    /// The configuration, and additions to the script.
    pub(super) fn code(self) -> (&'static str, Value) {
        match self {
            Self::Tiny => (
                "resource \"terraform_data\" \"a\" {\n  input = \"a\"\n}\n",
                Value::Null,
            ),
            Self::Nothing => (PLAYED, json!({})),
            Self::ThreeSeconds => (
                PLAYED,
                json!({"apply_ms": 1500, "commands": {"plan": [{"sleep_ms": 1500}]}}),
            ),
        }
    }
}

/// The configuration of a stack that the scripted tool plays.
const PLAYED: &str = "# played by a script\n";

/// The commands of a bare pod, as a user without Pawl would write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commands {
    /// init, plan, apply.
    Plain,
    /// The same, and the plan shown as text and as JSON, as the agent does for reviewers and counts.
    WithShow,
}

impl Commands {
    /// The script for `sh -e -c`; `$TOOL` is the tool, and each file is in `$FILE_n`.
    fn script(self, files: &Map<String, Value>) -> String {
        let stack = format!("{}/stack", pod_env::WORK_DIR);
        let mut lines = vec![format!("mkdir -p {stack}"), format!("cd {stack}")];
        lines.extend(
            files
                .keys()
                .enumerate()
                .map(|(n, path)| format!("printf %s \"$FILE_{n}\" > {path}")),
        );
        let show = ["show -json plan.bin > plan.json", "show -no-color plan.bin"];
        let show = if self == Self::WithShow {
            &show[..]
        } else {
            &[]
        };
        let first = [
            "init -input=false -no-color",
            "plan -input=false -no-color -out=plan.bin",
        ];
        let all = first
            .iter()
            .chain(show)
            .chain(&["apply -input=false -no-color plan.bin"]);
        lines.extend(all.map(|command| format!("\"$TOOL\" {command}")));
        lines.join("\n")
    }
}

/// A namespace for some measurements.
pub(super) struct Namespace<'a> {
    lab: &'a Lab,
    pub(super) name: String,
    pub(super) runs: Api<TerraformRun>,
    pub(super) pods: Api<Pod>,
}

/// A cluster with Pawl and a state server.
pub(super) struct Lab {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
    pub(super) state: StateServer,
    containers: Containers,
    /// The installed version: the checkout with the chart, and its images.
    checkout: PathBuf,
    images: PawlImages,
    tofu: String,
    next: AtomicU32,
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
            None => (
                root().to_owned(),
                PawlImages::build(IN_PODS, Profile::Dist)?,
            ),
        };
        cluster
            .install_images_of(&checkout, &images, &Values::new())
            .await?;
        Ok(Self {
            client: cluster.client().await?,
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
        self.cluster
            .install_images_of(&self.checkout, &self.images, values)
            .await
    }

    /// A new namespace.
    pub(super) async fn namespace(&self) -> Result<Namespace<'_>> {
        let second = Timestamp::now().as_second();
        let name = format!("b{second}-{}", self.next.fetch_add(1, Ordering::Relaxed));
        objects::namespace(&self.client, &name).await?;
        // A controller creates the account of bare pods; until then they are refused.
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &name);
        let account = async || Ok(accounts.get_opt("default").await?);
        wait::until("the account of bare pods is there", PATIENCE, account).await?;
        let (runs, pods) = (
            Api::namespaced(self.client.clone(), &name),
            Api::namespaced(self.client.clone(), &name),
        );
        Ok(Namespace {
            lab: self,
            name,
            runs,
            pods,
        })
    }

    pub(super) fn system_pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The pod of a component of Pawl.
    pub(super) async fn component(&self, component: &str) -> Result<Pod> {
        let params =
            ListParams::default().labels(&format!("app.kubernetes.io/component={component}"));
        let pods = self.system_pods().list(&params).await?.items;
        let mut there = pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        there
            .next()
            .with_context(|| format!("no pod of the {component}"))
    }

    /// The version of a stack's tool. A stack without a script is run by real OpenTofu.
    fn version(&self, script: &Value) -> &str {
        if script.is_null() {
            &self.tofu
        } else {
            SCRIPTED
        }
    }

    /// The files of a stack. `id` is the name of its script.
    fn files(&self, id: &str, code: &str, script: &Value) -> Map<String, Value> {
        let mut files = Map::from_iter([("main.tf".to_owned(), code.into())]);
        if !script.is_null() {
            let mut whole = json!({"name": id, "ledger": self.state.ledger_url(), "resources": 1});
            json_patch::merge(&mut whole, script);
            files.insert(SCRIPT_FILE.to_owned(), whole.to_string().into());
        }
        files
    }

    /// Approves a plan as the client's user.
    pub(super) async fn approve(
        runs: &Api<TerraformRun>,
        name: &str,
        checksum: &str,
        by: &str,
    ) -> Result<TerraformRun> {
        let annotations = json!({names::APPROVE: checksum, names::APPROVED_BY: by});
        let patch = json!({"metadata": {"annotations": annotations}});
        objects::merge(runs, name, &patch)
            .await
            .context("the approval was refused")
    }
}

impl Namespace<'_> {
    /// The name of a state, and of the script of a run.
    pub(super) fn id(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    /// A run of a stack; `mode` is its approval mode.
    pub(super) fn run(&self, name: &str, stack: Stack, mode: &str) -> Result<TerraformRun> {
        let more = json!({"approval": {"mode": mode}, "runner": {"resources": resources()}});
        let (code, script) = stack.code();
        self.made(name, code, &script, &more)
    }

    /// Creates a run of the scripted tool, with additions to its script and its spec.
    pub(super) async fn create(&self, name: &str, script: &Value, more: &Value) -> Result<()> {
        let run = self.made(name, PLAYED, script, more)?;
        self.runs.create(&PostParams::default(), &run).await?;
        Ok(())
    }

    fn made(&self, name: &str, code: &str, script: &Value, more: &Value) -> Result<TerraformRun> {
        let id = self.id(name);
        let version = self.lab.version(script);
        let mut spec = json!({
            "source": {"inline": {"files": self.lab.files(&id, code, script)}},
            "tool": {"name": "OpenTofu", "version": version},
            "backend": {"type": "http", "config": self.lab.state.backend_config(&id)},
        });
        json_patch::merge(&mut spec, more);
        let mut run = TerraformRun::new(name, serde_json::from_value(spec)?);
        run.metadata.namespace = Some(self.name.clone());
        Ok(run)
    }

    /// Reads from the datastore as administrator, by path below a run.
    pub(super) fn read(&self, run: &str, path: &str) -> std::process::Command {
        let path = format!(
            "/apis/read.pawl.run/v1alpha1/namespaces/{}/terraformruns/{run}/{path}",
            self.name
        );
        self.lab.cluster.kubectl_command(&["get", "--raw", &path])
    }

    /// A bare pod that does the same with a script.
    pub(super) fn bare_pod(&self, name: &str, stack: Stack, commands: Commands) -> Result<Pod> {
        let id = self.id(name);
        let (code, script) = stack.code();
        let tool = format!(
            "{}/opentofu/{}/tofu",
            pod_env::TOOLS_DIR,
            self.lab.version(&script)
        );
        let mut files = self.lab.files(&id, code, &script);
        let backend =
            json!({"terraform": {"backend": {"http": self.lab.state.backend_config(&id)}}});
        files.insert(BACKEND_FILE.to_owned(), backend.to_string().into());
        let mut env = vec![
            json!({"name": "TOOL", "value": tool}),
            json!({"name": "HOME", "value": "/tmp"}),
        ];
        env.extend(
            files
                .values()
                .enumerate()
                .map(|(n, text)| json!({"name": format!("FILE_{n}"), "value": text})),
        );
        let pod = json!({
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "restartPolicy": "Never",
                "enableServiceLinks": false,
                "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": "script",
                    "image": self.lab.images.runner.name,
                    "command": ["sh", "-e", "-c", commands.script(&files)],
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
        let (created, seen, run) = watched(&self.runs, run, run_succeeded).await?;
        let pod = run
            .status
            .and_then(|status| status.attempt)
            .context("a run without an attempt")?
            .pod_name;
        self.timing(pod, created, seen).await
    }

    /// Creates a bare pod and waits until its success is observed.
    pub(super) async fn time_pod(&self, pod: &Pod) -> Result<Timing> {
        let (created, seen, pod) = watched(&self.pods, pod, pod_succeeded).await?;
        self.timing(pod.name_any(), created, seen).await
    }

    async fn timing(&self, pod: String, created: Timestamp, seen: Timestamp) -> Result<Timing> {
        let container = async || {
            let status = self
                .pods
                .get(&pod)
                .await?
                .status
                .and_then(|status| status.container_statuses)
                .unwrap_or_default();
            let ended = status.first().filter(|s| {
                s.state
                    .as_ref()
                    .is_some_and(|state| state.terminated.is_some())
            });
            let id = ended
                .and_then(|s| s.container_id.as_deref())
                .and_then(|id| id.rsplit_once("//"));
            Ok(id.map(|(_, id)| id.to_owned()))
        };
        let id = wait::until(
            format!("the pod {}/{pod} ends", self.name),
            PATIENCE,
            container,
        )
        .await?;
        let (start, end) = self.lab.containers.ended(&id).await?;
        let between = |from: Timestamp, to: Timestamp| {
            Duration::try_from(to.duration_since(from)).unwrap_or_default()
        };
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
        bail!(
            "the run {} ended {:?}: {:?} {:?}",
            run.name_any(),
            status.result,
            status.message,
            status.failure
        );
    }
    Ok(status.phase == Some(Phase::Succeeded))
}

/// Whether a pod succeeded. Fails if it failed.
pub(super) fn pod_succeeded(pod: &Pod) -> Result<bool> {
    match pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
    {
        Some("Failed") => bail!(
            "the pod {} failed; look at its log with --keep",
            pod.name_any()
        ),
        phase => Ok(phase == Some("Succeeded")),
    }
}

/// Whether a run waits for its approval. Fails if it ended.
pub(super) fn run_waits(run: &TerraformRun) -> Result<bool> {
    let status = run.status.clone().unwrap_or_default();
    if status.is_terminal() {
        bail!(
            "the run {} ended {:?} in place of waiting: {:?}",
            run.name_any(),
            status.result,
            status.failure
        );
    }
    Ok(status.phase == Some(Phase::AwaitingApproval))
}

/// A kind of object that can be created and watched.
pub(super) trait Object:
    kube::Resource<DynamicType = ()>
    + Clone
    + DeserializeOwned
    + Serialize
    + std::fmt::Debug
    + Send
    + 'static
{
}

impl Object for Pod {}
impl Object for TerraformRun {}

/// Creates an object under an established watch. Returns when the creation was sent, when `done` held, and the object.
pub(super) async fn watched<K: Object>(
    api: &Api<K>,
    object: &K,
    done: fn(&K) -> Result<bool>,
) -> Result<(Timestamp, Timestamp, K)> {
    let name = object.meta().name.clone().unwrap_or_default();
    let mut stream = watch_object(api.clone(), &name).boxed();
    stream
        .next()
        .await
        .context("the watch ended")?
        .context("cannot watch")?;
    let created = Timestamp::now();
    api.create(&PostParams::default(), object)
        .await
        .with_context(|| format!("cannot create {name}"))?;
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
    tokio::time::timeout(PATIENCE, wait)
        .await
        .with_context(|| format!("{name} is not where it should be after {PATIENCE:?}"))?
}
