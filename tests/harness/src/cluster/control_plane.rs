//! etcd and kube-apiserver, for tests of what the API server itself decides. Needs no root.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::access::{AUTHENTICATION, Access, authentication_config};
use super::cache;
use super::gobuild::{CONTROL_PLANE, Toolset};
use super::pki::{self, Identity, Pair, Pki};
use super::processes::{self, Processes, Record};

/// Level of the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audit {
    /// Logs metadata of all requests, and the whole objects of Pawl's own API, for tests that check their history. Secrets are never
    /// logged.
    #[default]
    Objects,
    /// Logs metadata only, so that a request for a run costs the same as one for a pod. For benches that compare both.
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

/// Controllers without work in such a cluster. Each would fetch its own token and so delay the others.
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

/// A private API server on the loopback address. Drop ends its processes.
#[derive(Debug)]
pub struct ControlPlane {
    access: Access,
    state: PathBuf,
    processes: Processes,
}

impl ControlPlane {
    /// Starts etcd and kube-apiserver, with more flags and issuers of ID tokens ([`Access::trust`]), and waits until they are ready, which
    /// takes about 4 s.
    pub async fn start(flags: &[&str], issuers: &[Value]) -> Result<Self> {
        let tools = Toolset::ensure(CONTROL_PLANE)?;
        let state = claim_directory()?;
        let processes = Processes::new(&state, None);
        let free = free_ports(4)?;
        let ports = Ports {
            etcd: free[0],
            peers: free[1],
            apiserver: free[2],
            controllers: free[3],
        };
        let place = Place {
            state: &state,
            address: Ipv4Addr::LOCALHOST,
            bind: Ipv4Addr::LOCALHOST,
            services: "10.96.0.0/16".to_owned(),
            first_service: Ipv4Addr::new(10, 96, 0, 1),
            ports,
            audit_log: state.join("log/audit.jsonl"),
            audit: Audit::default(),
        };
        let pki = Pki::create(&state.join("pki"))?;
        let access = place.access(&tools)?;
        // From here on, drop ends the processes on an early return.
        let plane = Self {
            access,
            state: state.clone(),
            processes,
        };
        plane.access.trust(issuers)?;
        // The `kubernetes` service cannot forward to a loopback address.
        let started = place.start(
            &tools,
            &pki,
            &plane.processes,
            &[flags, &["--endpoint-reconciler-type=none"]].concat(),
        )?;
        plane.access.wait_ready(&plane.processes, &started).await?;
        Ok(plane)
    }

    /// The directory of its files and logs.
    pub fn state(&self) -> &Path {
        &self.state
    }
}

/// Gives access to the API server.
impl Deref for ControlPlane {
    type Target = Access;

    fn deref(&self) -> &Access {
        &self.access
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Err(error) = end(&self.processes).and_then(|()| cache::remove(&self.state)) {
            eprintln!(
                "a control plane was left behind in {}: {error:#}",
                self.state.display()
            );
        }
    }
}

fn end(processes: &Processes) -> Result<()> {
    for name in ["kube-apiserver", "etcd"] {
        // Kill at once: no data is needed.
        processes.end(name, Duration::ZERO)?;
    }
    Ok(())
}

/// Creates a new directory. First removes the directories, and ends the processes, of owners that were killed.
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
    let state = root.join(format!(
        "{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    ));
    cache::remove(&state)?;
    cache::write(
        &state.join("owner.json"),
        serde_json::to_vec(&processes::this_process()?)?,
    )?;
    Ok(state)
}

/// Unused loopback ports for servers that take the port as an option.
///
/// They are below the ephemeral range. The kernel assigns ephemeral ports to connections and to binds of port 0, so it could take one of
/// these before the server starts, or while a killed server restarts.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let below = ephemeral_ports_begin();
    // Begin at random, so that a second test process gets other ports.
    let begin = rand::random_range(FIRST_PORT..below);
    let candidates = (begin..below).chain(FIRST_PORT..begin);
    let free = |port: &u16| {
        !given.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
    };
    let ports: Vec<u16> = candidates.filter(free).take(count).collect();
    ensure!(
        ports.len() == count,
        "no free port on the loopback address from {FIRST_PORT} to {below}"
    );
    given.extend(&ports);
    Ok(ports)
}

/// Ports that `free_ports` returned in this process. Their servers may not listen yet.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Ports below are in use by people and well-known servers.
const FIRST_PORT: u16 = 20_000;

/// The first ephemeral port (ip(7), `ip_local_port_range`), or 32768 if it cannot be read.
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

/// Addresses, ports and directory of a control plane.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) state: &'a Path,
    /// The address at which clients reach the API server.
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
        Ok(Access::new(
            self.state,
            self.server(),
            self.audit_log.clone(),
            tools.path("kubectl")?,
        ))
    }

    /// Writes a kubeconfig for another component and returns its path.
    pub(super) fn identity(&self, pki: &Pki, identity: Identity<'_>) -> Result<PathBuf> {
        let pair = pki.issue(identity)?;
        self.kubeconfig(pki, identity.file, &pair)
    }

    fn kubeconfig(&self, pki: &Pki, name: &str, pair: &Pair) -> Result<PathBuf> {
        let path = self.state.join(format!("pki/{name}.kubeconfig"));
        write_private(
            &path,
            &pki::kubeconfig(&self.server(), &pki.authority(), pair),
        )?;
        Ok(path)
    }

    /// Starts etcd and kube-apiserver, and writes the administrator's kubeconfig.
    pub(super) fn start(
        &self,
        tools: &Toolset,
        pki: &Pki,
        processes: &Processes,
        more: &[&str],
    ) -> Result<Vec<Record>> {
        let (address, first) = (self.address.to_string(), self.first_service.to_string());
        let hosts = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "127.0.0.1",
        ];
        let hosts: Vec<&str> = hosts
            .into_iter()
            .chain([address.as_str(), first.as_str()])
            .collect();
        pki.issue(Identity {
            file: "apiserver",
            user: "kube-apiserver",
            group: "system:masters",
            hosts: &hosts,
        })?;
        let admin = pki.issue(Identity {
            file: "admin",
            user: "admin",
            group: "system:masters",
            hosts: &[],
        })?;
        write_private(
            &self.state.join("kubeconfig"),
            &pki::kubeconfig(&self.server(), &pki.authority(), &admin),
        )?;
        let authentication = self.state.join(AUTHENTICATION);
        if !authentication.exists() {
            cache::write(&authentication, authentication_config(&[]).to_string())?;
        }
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
                // The data does not outlive the cluster, so it need not survive a crash.
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
            format!("--authentication-config={}", authentication.display()),
            format!("--service-account-key-file={}", pki.path("sa.pub")),
            format!("--service-account-signing-key-file={}", pki.path("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-cluster-ip-range={}", self.services),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--kubelet-client-certificate={}", pki.path("admin.crt")),
            format!("--kubelet-client-key={}", pki.path("admin.key")),
            // No DNS server resolves the node's name.
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            // The aggregation layer: the API server forwards requests to extension API servers on behalf of the user.
            format!(
                "--requestheader-client-ca-file={}",
                pki.path("front-proxy-ca.crt")
            ),
            format!("--requestheader-allowed-names={}", pki::FRONT_PROXY),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!(
                "--proxy-client-cert-file={}",
                pki.path(&format!("{}.crt", pki::FRONT_PROXY))
            ),
            format!(
                "--proxy-client-key-file={}",
                pki.path(&format!("{}.key", pki::FRONT_PROXY))
            ),
            // Route directly to pods: this machine reaches them, but not always services.
            "--enable-aggregator-routing=true".to_owned(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", self.audit_log.display()),
            // Never rotate, so that readers can use one file for the cluster's lifetime.
            "--audit-log-maxsize=100000".to_owned(),
        ];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let apiserver = processes.spawn("kube-apiserver", tools.path("kube-apiserver")?, &flags)?;
        Ok(vec![etcd, apiserver])
    }

    /// Starts kube-controller-manager.
    pub(super) fn start_controllers(
        &self,
        tools: &Toolset,
        pki: &Pki,
        processes: &Processes,
    ) -> Result<Record> {
        let user = "system:kube-controller-manager";
        let kubeconfig = self.identity(
            pki,
            Identity {
                file: "controllers",
                user,
                group: "pawl",
                hosts: &[],
            },
        )?;
        let flags = [
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
        processes.spawn(
            "kube-controller-manager",
            tools.path("kube-controller-manager")?,
            &flags,
        )
    }
}

fn write_private(path: &Path, content: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    cache::write(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("cannot protect {}", path.display()))
}
