//! The node of a cluster: containerd, kubelet, kube-proxy and CoreDNS.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::cache;
use super::command::sh;
use super::control_plane::Place;
use super::gobuild::Toolset;
use super::network::Network;
use super::pki::{Identity, Pki};
use super::processes::{Processes, Record};
use crate::wait;

/// Directory of pod logs, below the state directory.
pub(super) const POD_LOGS: &str = "pod-logs";
pub const NODE: &str = "node1";
/// The image of the pause container.
pub const PAUSE: &str = "localhost/pawl-pause:1";

/// Directories and network of the node.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    pub(super) state: &'a Path,
    pub(super) network: Network,
    pub(super) tools: &'a Toolset,
    pub(super) processes: &'a Processes,
}

impl Node<'_> {
    /// Starts containerd, which needs no API server.
    pub(super) fn start_containerd(&self) -> Result<Record> {
        let socket = socket(self.state);
        // The kernel limits the length of a socket's path, and containerd adds to this one.
        if socket.as_os_str().len() > 90 {
            bail!(
                "the state directory {} has too long a name; set $PAWL_STATE to a shorter one",
                self.state.display()
            );
        }
        let directory = self.state.join("containerd");
        let config = directory.join("config.toml");
        let quoted = |path: PathBuf| Value::from(path.display().to_string());
        cache::write(
            &config,
            format!(
                r#"version = 2
root = {root}
state = {run}
[grpc]
  address = {socket}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Without the right to lower it, runc would not start a container at all.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = {runc}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = {cni}
"#,
                root = quoted(directory.join("root")),
                run = quoted(directory.join("run")),
                socket = quoted(socket),
                runc = quoted(directory.join("runc")),
                cni = quoted(self.state.join("cni")),
            ),
        )?;
        let bridge = json!({
            "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": self.state.join("cni-addresses"),
                "ranges": [[{"subnet": self.network.pods()}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        });
        let ports = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let network =
            json!({"cniVersion": "0.4.0", "name": self.network.name(), "plugins": [bridge, ports]});
        cache::write(
            &self.state.join("cni/10-pawl.conflist"),
            network.to_string(),
        )?;
        let program = find("containerd")?;
        self.processes.spawn(
            "containerd",
            &program,
            &[format!("--config={}", config.display())],
        )
    }

    pub(super) async fn wait_containerd(&self, record: &Record) -> Result<()> {
        let socket = socket(self.state).display().to_string();
        let what = format!(
            "containerd answers; see {}",
            self.processes.log("containerd").display()
        );
        wait::until(what, Duration::from_secs(30), async || {
            let answer = sh("ctr", &["-a", &socket, "version"]);
            if answer.is_err() {
                self.processes.check(record)?;
            }
            Ok(answer)
        })
        .await
        .map(drop)
    }

    /// Starts CoreDNS on the node's address. It resolves services and external names.
    pub(super) fn start_names(&self, place: &Place<'_>, pki: &Pki) -> Result<Record> {
        // Needs broad read access and no write access. Only CoreDNS is in this group.
        let user = Identity {
            file: "coredns",
            user: "system:coredns",
            group: NAMES_GROUP,
            hosts: &[],
        };
        let kubeconfig = place.identity(pki, user)?;
        let forward = match upstream() {
            Some(servers) => format!("    forward . {servers}\n"),
            None => String::new(),
        };
        let config = self.state.join("coredns/Corefile");
        cache::write(
            &config,
            format!(
                ".:53 {{\n    bind {node}\n    errors\n    kubernetes cluster.local in-addr.arpa {{\n        \
                 kubeconfig {kubeconfig}\n        fallthrough in-addr.arpa\n    }}\n{forward}    cache 5\n}}\n",
                node = self.network.node(),
                kubeconfig = kubeconfig.display(),
            ),
        )?;
        self.processes.spawn(
            "coredns",
            self.tools.path("coredns")?,
            &[format!("-conf={}", config.display())],
        )
    }

    pub(super) fn start_kubelet(&self, place: &Place<'_>, pki: &Pki) -> Result<Record> {
        let address = self.network.node().to_string();
        let kubeconfig = place.identity(
            pki,
            Identity {
                file: "kubelet",
                user: &format!("system:node:{NODE}"),
                group: "system:nodes",
                hosts: &[NODE, "127.0.0.1", &address],
            },
        )?;
        let resolv = self.state.join("resolv.conf");
        cache::write(&resolv, format!("nameserver {address}\n"))?;
        let config = self.state.join("kubelet.json");
        let content = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": pki.path("ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": pki.path("kubelet.crt"),
            "tlsPrivateKeyFile": pki.path("kubelet.key"),
            "clusterDomain": "cluster.local",
            "clusterDNS": [address],
            // Keep the search domains of the machine out of pods.
            "resolvConf": resolv,
            "containerRuntimeEndpoint": format!("unix://{}", socket(self.state).display()),
            "cgroupDriver": "cgroupfs",
            // A cgroup of its own: otherwise the kubelets of two clusters would kill each other's pods.
            "cgroupRoot": format!("/{}", self.network.name()),
            "cgroupsPerQOS": true,
            "enforceNodeAllocatable": [],
            "failCgroupV1": false,
            "failSwapOn": false,
            "localStorageCapacityIsolation": false,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "maxPods": 110,
            "podLogsDir": self.state.join(POD_LOGS),
            // Images cannot be pulled again.
            "imageGCHighThresholdPercent": 100,
        });
        cache::write(&config, serde_json::to_vec_pretty(&content)?)?;
        self.processes.spawn(
            "kubelet",
            self.tools.path("kubelet")?,
            &[
                format!("--config={}", config.display()),
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--hostname-override={NODE}"),
                format!("--node-ip={address}"),
                format!("--root-dir={}", self.state.join("kubelet").display()),
            ],
        )
    }

    pub(super) fn start_proxy(&self, place: &Place<'_>, pki: &Pki) -> Result<Record> {
        let user = Identity {
            file: "proxy",
            user: "system:kube-proxy",
            group: "pawl",
            hosts: &[],
        };
        let kubeconfig = place.identity(pki, user)?;
        self.processes.spawn(
            "kube-proxy",
            self.tools.path("kube-proxy")?,
            &[
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--hostname-override={NODE}"),
                "--proxy-mode=nftables".to_owned(),
                format!("--cluster-cidr={}", self.network.pods()),
                // These limits belong to the machine, not to the namespace; do not change them.
                "--conntrack-max-per-core=0".to_owned(),
                "--conntrack-tcp-timeout-established=0".to_owned(),
                "--conntrack-tcp-timeout-close-wait=0".to_owned(),
            ],
        )
    }

    pub(super) fn start_scheduler(&self, place: &Place<'_>, pki: &Pki) -> Result<Record> {
        let user = Identity {
            file: "scheduler",
            user: "system:kube-scheduler",
            group: "pawl",
            hosts: &[],
        };
        let kubeconfig = place.identity(pki, user)?.display().to_string();
        self.processes.spawn(
            "kube-scheduler",
            self.tools.path("kube-scheduler")?,
            &[
                format!("--kubeconfig={kubeconfig}"),
                format!("--authentication-kubeconfig={kubeconfig}"),
                format!("--authorization-kubeconfig={kubeconfig}"),
                "--leader-elect=false".to_owned(),
            ],
        )
    }

    /// Waits until the node accepts pods.
    pub(super) async fn wait_ready(&self, client: Client, started: &[Record]) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(client);
        let what = format!(
            "the node is ready; see {}",
            self.processes.log("kubelet").display()
        );
        wait::until(what, Duration::from_secs(60), async || {
            let ready = nodes
                .get_opt(NODE)
                .await
                .ok()
                .flatten()
                .is_some_and(|node| is_ready(&node));
            started
                .iter()
                .filter(|_| !ready)
                .try_for_each(|record| self.processes.check(record))?;
            Ok(ready)
        })
        .await
    }
}

/// The group of CoreDNS's user, for its ClusterRoleBinding.
pub(super) const NAMES_GROUP: &str = "pawl:coredns";

/// Whether a node is Ready and has no taint that keeps pods away.
pub fn is_ready(node: &NodeObject) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let tainted = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .is_some_and(|taints| {
            taints
                .iter()
                .any(|taint| taint.effect != "PreferNoSchedule")
        });
    !tainted
        && conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The socket of the cluster's containerd.
pub fn socket(state: &Path) -> PathBuf {
    state.join("containerd/containerd.sock")
}

/// DNS servers of this machine that are reachable from the cluster's network.
fn upstream() -> Option<String> {
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    let servers: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver "))
        .map(str::trim)
        .filter(|server| !server.starts_with("127.") && !server.contains(':'))
        .collect();
    (!servers.is_empty()).then(|| servers.join(" "))
}

/// Finds a system program in `PATH`.
fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|path| path.exists())
        .with_context(|| format!("{name} is not installed"))
}
