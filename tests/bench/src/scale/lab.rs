//! The environment of the figures: a real API server with the whole chart, a Git server, and controller, sources and datastore as processes
//! of this machine, each with its account in the chart. There is no node.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::Client;
use serde_json::{Value, json};

use super::process::Process;
use crate::usage::total;
use harness::cluster::control_plane::free_ports;
use harness::cluster::gobuild::Toolset;
use harness::cluster::pki::{Identity, Pki};
use harness::cluster::{ControlPlane, NAMESPACE, command, images, report};
use servers::git::GitServer;

/// The controller's limit of open attempts.
pub(super) const SLOTS: u32 = 40;
/// A longer wait indicates a defect, not a slow machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Logs metadata of the requests of Pawl's processes; the requests of this program, which simulates all other clients, are not logged.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ['system:serviceaccounts:pawl-system']}
- {level: None}
";

/// All processes. Drop ends them, dependents first.
pub(super) struct Lab {
    controller: Option<Process>,
    pub(super) sources: Process,
    datastore: Process,
    pub(super) git: GitServer,
    pub(super) admin: Client,
    pub(super) plane: ControlPlane,
    place: Place,
    http: reqwest::Client,
    _directory: tempfile::TempDir,
}

/// Files and ports for the processes.
struct Place {
    program: PathBuf,
    directory: PathBuf,
    datastore: u16,
    /// Metrics ports of datastore, sources and controller.
    metrics: [u16; 3],
}

impl Place {
    fn path(&self, file: &str) -> String {
        self.directory.join(file).display().to_string()
    }

    /// Starts a process with options in which `{}` is the directory of the files.
    fn start(&self, name: &'static str, options: &str) -> Result<Process> {
        let options = options.replace("{}", &self.directory.display().to_string());
        let arguments: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        // As in the chart, except for the kubeconfig that replaces a pod's account.
        let variables = [
            ("KUBECONFIG", self.path(&format!("{name}.kubeconfig"))),
            ("RUST_LOG", "info".to_owned()),
            ("MALLOC_ARENA_MAX", "2".to_owned()),
            ("HOSTNAME", format!("pawl-{name}")),
        ];
        let log = self.directory.join(format!("{name}.log"));
        Process::start(name, &self.program, &arguments, &variables, &log)
    }

    fn start_datastore(&self) -> Result<Process> {
        let account = format!("system:serviceaccount:{NAMESPACE}:pawl");
        let (port, metrics) = (self.datastore, self.metrics[0]);
        let options = format!(
            "datastore --store=file://{{}}/store --keys={{}}/keys --tls-cert={{}}/tls.crt --tls-key={{}}/tls.key --no-read-api \
             --controller-account={account}-controller --sources-account={account}-sources \
             --listen=127.0.0.1:{port} --metrics-listen=127.0.0.1:{metrics}"
        );
        self.start("datastore", &options)
    }

    /// Starts a client of the datastore.
    fn start_client(&self, name: &'static str, metrics: u16, options: &str) -> Result<Process> {
        let port = self.datastore;
        let options = format!(
            "{options} --datastore-url=https://127.0.0.1:{port} --datastore-ca={{}}/ca.crt \
             --datastore-token={{}}/{name}.datastore-token --listen=127.0.0.1:{metrics}"
        );
        self.start(name, &options)
    }

    fn start_sources(&self) -> Result<Process> {
        let options = "sources --mirrors={}/mirrors --allow-local-addresses";
        self.start_client("sources", self.metrics[1], options)
    }

    fn start_controller(&self) -> Result<Process> {
        let options = format!(
            "run --runner-image=pawl.invalid/runner-agent --runner-image-pull-policy=IfNotPresent \
             --runner-ephemeral-storage=1Gi --max-concurrent-runs={SLOTS}"
        );
        self.start_client("controller", self.metrics[2], &options)
    }
}

impl Lab {
    /// Starts everything, and waits until it is ready.
    pub(super) async fn up() -> Result<Self> {
        let program = tokio::task::block_in_place(|| {
            images::programs(&["controller"], images::Profile::Same)
        })?
        .remove(0);
        let step = report::step(
            "scale",
            "etcd, kube-apiserver, datastore, sources and controller",
        );
        let held = tempfile::tempdir().context("no directory for the processes")?;
        let directory = held.path().to_owned();
        let policy = directory.join("audit-policy.yaml");
        fs::write(&policy, AUDIT_POLICY)
            .with_context(|| format!("cannot write {}", policy.display()))?;
        // The last value of a flag applies.
        let flag = format!("--audit-policy-file={}", policy.display());
        // Not shared: it has thousands of layers, and its own audit policy to count requests.
        let plane = ControlPlane::start(&[&flag], &[]).await?;
        tokio::task::block_in_place(|| install(&plane))?;
        let admin = plane.client().await?;
        let ports = free_ports(4)?;
        let place = Place {
            program,
            directory,
            datastore: ports[0],
            metrics: [ports[1], ports[2], ports[3]],
        };
        tokio::task::block_in_place(|| identities(&plane, &place))?;
        let git = GitServer::start(
            "127.0.0.1:0".parse()?,
            &place.directory.join("repositories"),
        )
        .await?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10))
            .build()?;
        let mut lab = Self {
            controller: None,
            datastore: place.start_datastore()?,
            sources: place.start_sources()?,
            git,
            admin,
            plane,
            place,
            http,
            _directory: held,
        };
        lab.start_controller().await?;
        step.done();
        Ok(lab)
    }

    /// Starts the controller, and waits until it is ready; returns the time that took.
    pub(super) async fn start_controller(&mut self) -> Result<Duration> {
        ensure!(self.controller.is_none(), "the controller runs");
        let started = Instant::now();
        self.controller = Some(self.place.start_controller()?);
        let ready = format!("http://127.0.0.1:{}/readyz", self.place.metrics[2]);
        loop {
            let answer = self.http.get(&ready).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            self.check()?;
            ensure!(started.elapsed() < PATIENCE, "the controller is not ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(started.elapsed())
    }

    /// Ends the controller with SIGTERM, like the kubelet.
    pub(super) async fn stop_controller(&mut self) -> Result<()> {
        match self.controller.take() {
            Some(controller) => controller.stop().await,
            None => Ok(()),
        }
    }

    pub(super) fn controller(&self) -> Result<&Process> {
        self.controller
            .as_ref()
            .context("the controller is not running")
    }

    /// Fails when one of the processes has ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        self.sources.check()?;
        self.datastore.check()?;
        self.controller.as_mut().map_or(Ok(()), Process::check)
    }

    pub(super) async fn controller_metrics(&self) -> Result<String> {
        self.metrics(self.place.metrics[2]).await
    }

    /// Number of looks of sources at repositories so far.
    pub(super) async fn looks(&self) -> Result<f64> {
        let metrics = self.metrics(self.place.metrics[1]).await?;
        Ok(total(&metrics, "pawl_sources_looks_total", ""))
    }

    async fn metrics(&self, port: u16) -> Result<String> {
        let url = format!("http://127.0.0.1:{port}/metrics");
        Ok(self
            .http
            .get(&url)
            .send()
            .await
            .with_context(|| format!("no answer from {url}"))?
            .text()
            .await?)
    }
}

/// Installs the chart.
pub(crate) fn install(plane: &ControlPlane) -> Result<()> {
    let tools = Toolset::ensure(&["helm"])?;
    let chart = xtask::root().join("charts/pawl");
    let mut helm = Command::new(tools.path("helm")?);
    helm.args(["template", "pawl"]).arg(chart).args([
        "--namespace",
        NAMESPACE,
        "--kube-version",
        "1.34.4",
    ]);
    let rendered = command::run(&mut helm).context("helm cannot render the chart")?;
    plane.kubectl(&["create", "namespace", NAMESPACE])?;
    apply(plane, &rendered)?;
    // Before it has any condition, `kubectl wait --for=condition` fails at once.
    for what in ["jsonpath={.status.conditions}", "condition=Established"] {
        let mut wait = vec!["wait", "--timeout=60s", "--for", what];
        wait.extend([
            "crd/terraformruns.pawl.run",
            "crd/terraformlayers.pawl.run",
            "crd/terraformrepositories.pawl.run",
        ]);
        plane.kubectl(&wait)?;
    }
    Ok(())
}

/// Applies manifests as administrator.
pub(crate) fn apply(plane: &ControlPlane, manifests: &str) -> Result<()> {
    let mut child = plane
        .kubectl_command(&["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    child
        .stdin
        .take()
        .context("no standard input")?
        .write_all(manifests.as_bytes())?;
    ensure!(
        child.wait()?.success(),
        "kubectl cannot apply what the chart installs"
    );
    Ok(())
}

/// A token of an account for 12 hours. `more` are further arguments of `kubectl create token`.
pub(crate) fn token(
    plane: &ControlPlane,
    namespace: &str,
    account: &str,
    more: &[&str],
) -> Result<String> {
    let create = [
        "-n",
        namespace,
        "create",
        "token",
        account,
        "--duration=12h",
    ];
    let token = plane.kubectl(&[&create, more].concat())?;
    Ok(token.trim().to_owned())
}

/// Writes the kubeconfig of an account.
pub(crate) fn kubeconfig(
    plane: &ControlPlane,
    namespace: &str,
    account: &str,
    file: &Path,
) -> Result<()> {
    let admin =
        fs::read_to_string(&plane.kubeconfig).context("no kubeconfig of the administrator")?;
    let mut kubeconfig: Value =
        serde_json::from_str(&admin).context("the administrator's kubeconfig is no JSON")?;
    kubeconfig["users"][0]["user"] = json!({"token": token(plane, namespace, account, &[])?});
    kubeconfig["contexts"][0]["context"]["namespace"] = namespace.into();
    fs::write(file, kubeconfig.to_string()).with_context(|| file.display().to_string())
}

/// Writes accounts, keys and certificates to files.
fn identities(plane: &ControlPlane, place: &Place) -> Result<()> {
    let write = |file: &str, text: &str| {
        fs::write(place.path(file), text).with_context(|| format!("cannot write {file}"))
    };
    for name in ["controller", "sources", "datastore"] {
        let account = format!("pawl-{name}");
        let file = place.directory.join(format!("{name}.kubeconfig"));
        kubeconfig(plane, NAMESPACE, &account, &file)?;
        write(
            &format!("{name}.datastore-token"),
            &token(plane, NAMESPACE, &account, &["--audience=pawl-datastore"])?,
        )?;
    }
    let pki = Pki::bare(&place.directory, "pawl-scale")?;
    pki.issue(Identity {
        file: "tls",
        user: "pawl-datastore",
        group: "pawl",
        hosts: &["127.0.0.1"],
    })?;
    for directory in ["keys", "store", "mirrors"] {
        fs::create_dir(place.path(directory))
            .with_context(|| format!("cannot make {directory}"))?;
    }
    write(
        "keys/key-1",
        &BASE64_STANDARD.encode(rand::random::<[u8; 32]>()),
    )?;
    write("keys/active", "key-1")
}
