//! etcd and kube-apiserver: enough for everything that the API server itself decides. It needs no root.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::access::Access;
use super::cache;
use super::gobuild::{CONTROL_PLANE, Toolset};
use super::pki::{self, Identity, Pair, Pki};
use super::processes::{self, Processes, Record};

/// What of each request is written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audit {
    /// Who asked for what; of our own API the whole objects as well, for whoever checks their history. No Secret gets into the log.
    #[default]
    Objects,
    /// Who asked for what: so that a request for a run costs what one for a pod does, where both are measured.
    Requests,
}

impl Audit {
    const fn policy(self) -> &'static str {
        match self {
            Self::Objects => {
                "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                 rules:\n- {level: RequestResponse, resources: [{group: pawl.run}]}\n- {level: Metadata}\n"
            }
            Self::Requests => {
                "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: Metadata}\n"
            }
        }
    }
}

/// Controllers that have nothing to do on such a cluster. Each would fetch a token of its own before the rest may begin.
const IDLE_CONTROLLERS: &[&str] = &[
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "cloud-node-lifecycle-controller",
    "endpointslice-mirroring-controller",
    "horizontal-pod-autoscaler-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "node-ipam-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "podcertificaterequest-cleaner-controller",
    "replicationcontroller-controller",
    "resourceclaim-controller",
    "service-cidr-controller",
    "service-lb-controller",
    "storage-version-migrator-controller",
    "ttl-controller",
    "volumeattributesclass-protection-controller",
];

/// What a lone control plane is to be like.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Run kube-controller-manager too: garbage collection, namespaces, service accounts.
    pub controllers: bool,
    /// Where requests are written down; by default in the control plane's own directory, which goes with it.
    pub audit_log: Option<PathBuf>,
    pub apiserver_flags: Vec<String>,
}

/// An API server of its own, on the loopback address. Its processes end with this value.
#[derive(Debug)]
pub struct ControlPlane {
    access: Access,
    state: PathBuf,
    processes: Processes,
}

impl ControlPlane {
    /// Starts etcd and kube-apiserver and waits until they are ready, about four seconds.
    pub async fn start(options: Options) -> Result<Self> {
        let mut names = CONTROL_PLANE.to_vec();
        if options.controllers {
            names.push("kube-controller-manager");
        }
        let tools = Toolset::ensure(&names)?;
        let state = claim_directory()?;
        let processes = Processes::new(&state, None);
        let free = free_ports(4)?;
        let ports = Ports { etcd: free[0], peers: free[1], apiserver: free[2], controllers: free[3] };
        let place = Place {
            state: &state,
            address: Ipv4Addr::LOCALHOST,
            bind: Ipv4Addr::LOCALHOST,
            services: "10.96.0.0/16".to_owned(),
            first_service: Ipv4Addr::new(10, 96, 0, 1),
            ports,
            audit_log: options.audit_log.clone().unwrap_or_else(|| state.join("log/audit.jsonl")),
            audit: Audit::default(),
        };
        let pki = Pki::create(&state.join("pki"))?;
        let access = place.access(&tools)?;
        // From here on an early return ends what runs.
        let plane = Self { access, state: state.clone(), processes };
        let mut flags = options.apiserver_flags;
        // Nothing could reach a loopback address by the `kubernetes` service.
        flags.push("--endpoint-reconciler-type=none".to_owned());
        let started = place.start(&tools, &pki, &plane.processes, &flags)?;
        if options.controllers {
            place.start_controllers(&tools, &pki, &plane.processes, &[])?;
        }
        plane.access.wait_ready(&plane.processes, &started).await?;
        Ok(plane)
    }

    /// Ends the processes and removes their directory.
    pub fn stop(self) {
        drop(self);
    }

    /// The directory of its files and logs.
    pub fn state(&self) -> &Path {
        &self.state
    }
}

/// A control plane is used by the ways into it.
impl Deref for ControlPlane {
    type Target = Access;

    fn deref(&self) -> &Access {
        &self.access
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Err(error) = end(&self.processes).and_then(|()| cache::remove(&self.state)) {
            eprintln!("a control plane was left behind in {}: {error:#}", self.state.display());
        }
    }
}

fn end(processes: &Processes) -> Result<()> {
    for name in ["kube-controller-manager", "kube-apiserver", "etcd"] {
        // Nothing in it is to be kept.
        processes.end(name, Duration::ZERO)?;
    }
    Ok(())
}

/// A new directory, after those whose owners were killed are cleared away with what still runs of them.
fn claim_directory() -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let root = cache::state_root()?.join("control-planes");
    for entry in std::fs::read_dir(&root).into_iter().flatten().flatten() {
        let path = entry.path();
        let owner = std::fs::read_to_string(path.join("owner.json")).unwrap_or_default();
        if !owner.is_empty() && !processes::owner_alive(&owner) {
            end(&Processes::new(&path, None))?;
            cache::remove(&path)?;
        }
    }
    let state = root.join(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    cache::remove(&state)?;
    cache::write(&state.join("owner.json"), serde_json::to_vec(&processes::this_process()?)?)?;
    Ok(state)
}

/// Ports of the loopback address that nobody listens on, for servers that are told theirs.
///
/// They lie below those that the kernel gives to connections and to whoever binds port 0: one of these could be taken
/// between this answer and the server's start, or while a server that was struck starts again.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let below = ephemeral_ports_begin();
    // Where to begin is by chance, so that another process of the tests finds others.
    let begin = rand::random_range(FIRST_PORT..below);
    let candidates = (begin..below).chain(FIRST_PORT..begin);
    let free = |port: &u16| !given.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let ports: Vec<u16> = candidates.filter(free).take(count).collect();
    ensure!(ports.len() == count, "no free port on the loopback address from {FIRST_PORT} to {below}");
    given.extend(&ports);
    Ok(ports)
}

/// What `free_ports` gave in this process: its servers may not listen yet.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Below are ports that people and well-known servers use.
const FIRST_PORT: u16 = 20_000;

/// The first port that the kernel chooses by itself (ip(7), `ip_local_port_range`); 32768 where it does not say.
fn ephemeral_ports_begin() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|first| *first > FIRST_PORT + 1_000)
        .unwrap_or(32_768)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) etcd: u16,
    pub(super) peers: u16,
    pub(super) apiserver: u16,
    pub(super) controllers: u16,
}

/// Where a control plane runs.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) state: &'a Path,
    /// The address that others know the API server by.
    pub(super) address: Ipv4Addr,
    pub(super) bind: Ipv4Addr,
    pub(super) services: String,
    pub(super) first_service: Ipv4Addr,
    pub(super) ports: Ports,
    pub(super) audit_log: PathBuf,
    pub(super) audit: Audit,
}

impl Place<'_> {
    pub(super) fn server(&self) -> String {
        format!("https://{}:{}", self.address, self.ports.apiserver)
    }

    pub(super) fn access(&self, tools: &Toolset) -> Result<Access> {
        Ok(Access::new(self.state, self.server(), self.audit_log.clone(), tools.path("kubectl")?))
    }

    /// A kubeconfig for one more part of the cluster, and its path.
    pub(super) fn identity(&self, pki: &Pki, identity: Identity<'_>) -> Result<PathBuf> {
        let pair = pki.issue(identity)?;
        self.kubeconfig(pki, identity.file, &pair)
    }

    fn kubeconfig(&self, pki: &Pki, name: &str, pair: &Pair) -> Result<PathBuf> {
        let path = self.state.join(format!("pki/{name}.kubeconfig"));
        write_private(&path, &pki::kubeconfig(&self.server(), &pki.authority(), pair))?;
        Ok(path)
    }

    /// Starts etcd and kube-apiserver, and writes the administrator's kubeconfig.
    pub(super) fn start(&self, tools: &Toolset, pki: &Pki, processes: &Processes, more: &[String]) -> Result<Vec<Record>> {
        let (address, first) = (self.address.to_string(), self.first_service.to_string());
        let hosts = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1"];
        let hosts: Vec<&str> = hosts.into_iter().chain([address.as_str(), first.as_str()]).collect();
        pki.issue(Identity { file: "apiserver", user: "kube-apiserver", group: "system:masters", hosts: &hosts })?;
        let admin = pki.issue(Identity { file: "admin", user: "admin", group: "system:masters", hosts: &[] })?;
        write_private(&self.state.join("kubeconfig"), &pki::kubeconfig(&self.server(), &pki.authority(), &admin))?;
        let policy = self.state.join("audit-policy.yaml");
        cache::write(&policy, self.audit.policy())?;
        if let Some(parent) = self.audit_log.parent() {
            cache::create_dir(parent)?;
        }

        let clients = format!("http://127.0.0.1:{}", self.ports.etcd);
        let peers = format!("http://127.0.0.1:{}", self.ports.peers);
        let etcd = processes.spawn(
            "etcd",
            tools.path("etcd")?,
            &[
                format!("--data-dir={}", self.state.join("etcd").display()),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=default={peers}"),
                // The data does not outlive the cluster.
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ],
        )?;
        let mut flags = vec![
            format!("--etcd-servers={clients}"),
            format!("--secure-port={}", self.ports.apiserver),
            format!("--bind-address={}", self.bind),
            format!("--advertise-address={}", self.address),
            format!("--tls-cert-file={}", pki.path("apiserver.crt")),
            format!("--tls-private-key-file={}", pki.path("apiserver.key")),
            format!("--client-ca-file={}", pki.path("ca.crt")),
            format!("--service-account-key-file={}", pki.path("sa.pub")),
            format!("--service-account-signing-key-file={}", pki.path("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-cluster-ip-range={}", self.services),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--kubelet-client-certificate={}", pki.path("admin.crt")),
            format!("--kubelet-client-key={}", pki.path("admin.key")),
            // By name would mean a look-up that nothing answers.
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            // The aggregation layer: requests for other API servers are passed on, in the name of who sent them.
            format!("--requestheader-client-ca-file={}", pki.path("front-proxy-ca.crt")),
            format!("--requestheader-allowed-names={}", pki::FRONT_PROXY),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", pki.path(&format!("{}.crt", pki::FRONT_PROXY))),
            format!("--proxy-client-key-file={}", pki.path(&format!("{}.key", pki::FRONT_PROXY))),
            // Straight to the pods, which are reached from here, services or not.
            "--enable-aggregator-routing=true".to_owned(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", self.audit_log.display()),
            // One file for the whole life of the cluster: readers need not follow a rotation.
            "--audit-log-maxsize=100000".to_owned(),
        ];
        flags.extend_from_slice(more);
        let apiserver = processes.spawn("kube-apiserver", tools.path("kube-apiserver")?, &flags)?;
        Ok(vec![etcd, apiserver])
    }

    /// Starts kube-controller-manager.
    pub(super) fn start_controllers(&self, tools: &Toolset, pki: &Pki, processes: &Processes, more: &[String]) -> Result<Record> {
        let user = "system:kube-controller-manager";
        let kubeconfig = self.identity(pki, Identity { file: "controllers", user, group: "pawl", hosts: &[] })?;
        let mut flags = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--authentication-kubeconfig={}", kubeconfig.display()),
            format!("--authorization-kubeconfig={}", kubeconfig.display()),
            format!("--service-account-private-key-file={}", pki.path("sa.key")),
            format!("--root-ca-file={}", pki.path("ca.crt")),
            "--use-service-account-credentials=true".to_owned(),
            "--leader-elect=false".to_owned(),
            format!("--controllers=*,-{}", IDLE_CONTROLLERS.join(",-")),
            format!("--bind-address={}", self.bind),
            format!("--secure-port={}", self.ports.controllers),
        ];
        flags.extend_from_slice(more);
        processes.spawn("kube-controller-manager", tools.path("kube-controller-manager")?, &flags)
    }
}

fn write_private(path: &Path, content: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    cache::write(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("cannot protect {}", path.display()))
}
