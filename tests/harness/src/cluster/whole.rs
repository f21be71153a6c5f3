//! A whole cluster: up, attach and down.

use std::fs;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use super::access::Access;
use super::cache::{self, Lock};
use super::control_plane::{Audit, Place, Ports};
use super::gobuild::{NODE, Toolset};
use super::network::Network;
use super::node::{NAMES_GROUP, Node};
use super::pki::Pki;
use super::processes::{Processes, Record};
use super::{images, leftovers, packages, report};
use crate::wait;

/// The namespace of the chart's release.
pub const NAMESPACE: &str = "pawl-system";

/// The port of etcd in the cluster's network.
pub(super) const ETCD: u16 = 2379;

/// The usual ports: each cluster has its own network namespace.
const PORTS: Ports = Ports {
    etcd: ETCD,
    peers: 2380,
    apiserver: 6443,
    controllers: 10257,
};

/// A cluster with one node. It stays up after drop; [`Cluster::down`] removes it.
#[derive(Clone, Debug)]
pub struct Cluster {
    name: String,
    state: PathBuf,
    network: Network,
    tools: Toolset,
    access: Access,
    processes: Processes,
}

#[derive(Debug)]
pub struct Status {
    pub state: PathBuf,
    pub ready: bool,
    /// Running processes, without containers.
    pub running: Vec<Record>,
    /// Components that were started and have ended.
    pub ended: Vec<String>,
}

impl Cluster {
    /// Starts the cluster of that name, or attaches to it if it is up and complete. Removes what a killed one left behind first.
    pub async fn up(name: &str, audit: Audit) -> Result<Self> {
        packages::ensure()?;
        let tools = Toolset::ensure(NODE)?;
        let state = directory(name)?;
        let _lock = lock(name)?;
        if let Ok(cluster) = Self::open(name, &state).await {
            report::note("cluster", &format!("{name} is up already"));
            return Ok(cluster);
        }
        if state.exists() {
            let step = report::step("cluster", "clearing away what a killed one left behind");
            leftovers::clear(&state)?;
            step.done_with("cleared away what a killed one left behind");
        }
        let pause = images::Builder::new()?.pause()?;
        let step = report::step("cluster", format!("starting {name}"));
        let cluster = Self::start(name, &state, audit, tools, &pause)
            .await
            .with_context(|| {
                format!(
                    "cluster {name} did not come up; its logs are in {}, and `up` tries afresh",
                    state.join("log").display()
                )
            })?;
        step.done_with(format!("{name}: node ready in"));
        Ok(cluster)
    }

    /// Attaches to a running cluster.
    pub async fn attach(name: &str) -> Result<Self> {
        let state = directory(name)?;
        Self::open(name, &state).await.with_context(|| {
            format!("cluster {name} is not up; bring it up with `cluster up --name {name}`")
        })
    }

    /// Removes the cluster of that name. It is no error if there is none.
    pub fn down_by_name(name: &str) -> Result<()> {
        let state = directory(name)?;
        let _lock = lock(name)?;
        leftovers::clear(&state)
            .with_context(|| format!("cluster {name} is not down yet; try again"))
    }

    /// Removes this cluster.
    pub fn down(self) -> Result<()> {
        Self::down_by_name(&self.name)
    }

    pub async fn status(name: &str) -> Result<Status> {
        let state = directory(name)?;
        let processes = Processes::new(&state, None);
        let mut running = processes.living();
        running.retain(|record| record.name != "containerd-shim-runc-v2");
        running.sort_by_key(|record| record.started);
        let ended = processes
            .recorded()
            .into_iter()
            .filter(|record| !record.is_alive())
            .map(|record| record.name)
            .collect();
        Ok(Status {
            ready: Self::open(name, &state).await.is_ok(),
            state,
            running,
            ended,
        })
    }

    async fn open(name: &str, state: &Path) -> Result<Self> {
        let network = Network::of(state).context("it has no network")?;
        let mark = fs::read_to_string(state.join("complete")).context("it never came up whole")?;
        let tools: Toolset =
            serde_json::from_str(&mark).context("it is of another version of this program")?;
        let processes = Processes::new(state, Some(network.netns()));
        for record in processes.recorded() {
            processes.check(&record)?;
        }
        let access = place(state, network, Audit::default()).access(&tools)?;
        if !access.is_ready().await {
            bail!("its API server does not answer");
        }
        Ok(Self {
            name: name.to_owned(),
            state: state.to_owned(),
            network,
            tools,
            access,
            processes,
        })
    }

    async fn start(
        name: &str,
        state: &Path,
        audit: Audit,
        tools: Toolset,
        pause: &images::Image,
    ) -> Result<Self> {
        cache::create_dir(state)?;
        let network = Network::claim(state)?;
        network.create()?;
        leftovers::create_cgroup(&network.name())?;
        let processes = Processes::new(state, Some(network.netns()));
        let pki = Pki::create(&state.join("pki"))?;
        let place = place(state, network, audit);
        let access = place.access(&tools)?;
        let node = Node {
            state,
            network,
            tools: &tools,
            processes: &processes,
        };

        let mut started = place.start(&tools, &pki, &processes, &[])?;
        let containerd = node.start_containerd()?;
        started.push(containerd.clone());
        node.wait_containerd(&containerd).await?;
        images::import(state, pause)?;
        access.wait_ready(&processes, &started).await?;
        started.push(place.start_controllers(&tools, &pki, &processes)?);
        started.push(node.start_scheduler(&place, &pki)?);
        started.push(node.start_kubelet(&place, &pki)?);
        started.push(node.start_proxy(&place, &pki)?);
        let client = access.client().await?;
        allow_names(&client).await?;
        started.push(node.start_names(&place, &pki)?);
        node.wait_ready(client.clone(), &started).await?;
        // A namespace rejects pods until its default service account exists.
        wait_account(&client).await?;
        tools.link_into(&state.join("bin"))?;
        cache::write(&state.join("complete"), serde_json::to_vec(&tools)?)?;
        Ok(Self {
            name: name.to_owned(),
            state: state.to_owned(),
            network,
            tools,
            access,
            processes,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of its files and logs.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// A directory with `kubectl`, `helm` and the cluster's other programs, for `PATH`.
    pub fn programs(&self) -> PathBuf {
        self.state.join("bin")
    }

    /// Runs a line in a shell with the cluster's programs in `PATH`, as a user would.
    pub fn shell(&self, line: &str) -> Result<Output> {
        let path = format!(
            "{}:{}",
            self.programs().display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut shell = Command::new("sh");
        shell
            .args(["-c", line])
            .env("PATH", path)
            .env("KUBECONFIG", &self.access.kubeconfig);
        shell.output().context("cannot run a shell")
    }

    /// The logs of its pods: `NAMESPACE_POD_UID/CONTAINER/N.log`.
    pub fn pod_logs(&self) -> PathBuf {
        self.state.join(super::node::POD_LOGS)
    }

    pub fn tools(&self) -> &Toolset {
        &self.tools
    }

    /// This machine's address in the cluster's network, reachable from pods.
    pub fn host(&self) -> Ipv4Addr {
        self.network.host()
    }

    pub fn network(&self) -> Network {
        self.network
    }

    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Shell code: after `eval`, `kubectl` and `helm` use this cluster.
    pub fn env(&self) -> String {
        let quote =
            |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        format!(
            "export KUBECONFIG={}\nexport PATH={}:\"$PATH\"\n",
            quote(&self.access.kubeconfig),
            quote(&self.programs())
        )
    }
}

/// Gives access to the API server.
impl Deref for Cluster {
    type Target = Access;

    fn deref(&self) -> &Access {
        &self.access
    }
}

fn directory(name: &str) -> Result<PathBuf> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 20 || !name.chars().all(good) {
        bail!(
            "`{name}` is no name for a cluster: at most 20 lower-case letters, digits and dashes"
        );
    }
    Ok(cache::state_root()?.join("clusters").join(name))
}

/// Next to the state directory, because that is removed and created again.
fn lock(name: &str) -> Result<Lock> {
    Lock::wait(
        &cache::state_root()?
            .join("clusters")
            .join(format!(".{name}.lock")),
    )
}

fn place(state: &Path, network: Network, audit: Audit) -> Place<'_> {
    Place {
        state,
        address: network.node(),
        bind: Ipv4Addr::UNSPECIFIED,
        services: network.services(),
        first_service: network.first_service(),
        ports: PORTS,
        audit_log: state.join("log/audit.jsonl"),
        audit,
    }
}

/// Grants CoreDNS its read access.
async fn allow_names(client: &Client) -> Result<()> {
    let name = "pawl:coredns";
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [""], "resources": ["namespaces", "services", "pods"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    }))?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": NAMES_GROUP}],
    }))?;
    let parameters = PostParams::default();
    Api::all(client.clone())
        .create(&parameters, &role)
        .await
        .context("cannot give the name server its role")?;
    Api::all(client.clone())
        .create(&parameters, &binding)
        .await
        .context("cannot give the name server its role")?;
    Ok(())
}

async fn wait_account(client: &Client) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let what = "kube-controller-manager makes the account of the namespace `default`";
    wait::until(what, Duration::from_secs(15), async || {
        Ok(accounts.get_opt("default").await?)
    })
    .await
    .map(drop)
}
