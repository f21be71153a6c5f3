//! One cluster with Pawl, a git server, a state server and a ledger; a namespace for each test.

use std::{
    collections::BTreeMap,
    future::Future,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    pin::Pin,
    process::{Command, Output},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use crds::{Phase, RunResult, TerraformRun, TerraformRunStatus, names};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tests::{
    cluster::{Cluster, victims},
    ledger::{self, Entry},
    servers::{git::GitServer, objects::ObjectServer, state::StateServer, webhook},
};

use crate::releases::Releases;

pub(crate) type Body = Box<dyn FnOnce(Scene) -> Pin<Box<dyn Future<Output = Result<()>>>> + Send>;

/// A test.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) body: Body,
}

impl Test {
    pub(crate) fn new<F>(name: &'static str, body: impl FnOnce(Scene) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<()>> + 'static,
    {
        Self { name, body: Box::new(|scene| Box::pin(body(scene))) }
    }
}

/// Why the suite cannot run here, or `None`. Under `CI=true` nothing is left out: a lack is a failure.
pub(crate) fn left_out() -> Option<&'static str> {
    let wanted = std::env::var("CI").is_ok_and(|v| v == "true") || std::env::var_os("PAWL_SUITES").is_some();
    (!wanted).then_some("run `cargo ci` as root on Linux")
}

/// What all tests share.
pub(crate) struct Suite {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    pub(crate) git: GitServer,
    pub(crate) state: StateServer,
    pub(crate) objects: ObjectServer,
    pub(crate) releases: Releases,
    _files: tempfile::TempDir,
    prefix: String,
    next: AtomicU32,
    took: Mutex<Vec<(Duration, String)>>,
}

/// How long anything that should take a second may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(120);
/// The same for what involves a retry or a wait of Pawl's own.
pub(crate) const LATER: Duration = Duration::from_secs(180);

/// A command that lasts until [`Scene::open`], so that no test has to be faster than what it looks at.
pub(crate) const GATE: &str = "until [ -e /tmp/open ]; do sleep 0.2; done";

/// The same as a step of a script. An interrupt does not end it.
pub(crate) fn gate() -> Value {
    json!({"exec": ["sh", "-c", GATE]})
}

/// So many resources of a script, as their number alone gives them, of which the last waits at a gate.
pub(crate) fn gated(count: usize) -> Value {
    let steps = |n: usize| if n + 1 == count { vec![gate()] } else { Vec::new() };
    (0..count).map(|n| json!({"address": format!("terraform_data.r[{n}]"), "steps": steps(n)})).collect()
}

impl Suite {
    pub(crate) async fn up(name: &str) -> Result<Self> {
        let cluster = Cluster::up(name).await?;
        let files = tempfile::tempdir()?;
        let releases = Releases::start(&cluster, files.path()).await?;
        // A cluster that was kept has the namespaces of the time before.
        let prefix = format!("t{:x}", jiff::Timestamp::now().as_second() % 0xf_ffff);
        let mut values = releases.values();
        values.insert("sharedStates".to_owned(), serde_json::to_string(&[["a", "b"].map(|word| sharing(&prefix, word))])?);
        values.extend(webhook::values());
        // What others change is repaired while a test waits.
        values.insert("outputs".to_owned(), json!({"repairSeconds": 2}).to_string());
        cluster.install(&values).await?;
        let host = SocketAddr::new(IpAddr::V4(cluster.host()), 0);
        let git = GitServer::start(host, files.path()).await?;
        let state = StateServer::start(host).await?;
        let objects = ObjectServer::start(host).await?;
        Ok(Self {
            client: cluster.client().await?,
            cluster,
            git,
            state,
            objects,
            releases,
            _files: files,
            prefix,
            next: AtomicU32::new(0),
            took: Mutex::default(),
        })
    }

    /// A further namespace of a test.
    pub(crate) async fn beside(&self, scene: &Scene, word: &str) -> Result<Scene> {
        self.made(scene, format!("{}-{word}", scene.namespace)).await
    }

    /// One of the two namespaces that share states, `a` or `b`, for one test.
    pub(crate) async fn sharing(&self, scene: &Scene, word: &str) -> Result<Scene> {
        self.made(scene, sharing(&self.prefix, word)).await
    }

    async fn made(&self, scene: &Scene, namespace: String) -> Result<Scene> {
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}))?;
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await?;
        Ok(Scene { suite: scene.suite.clone(), namespace })
    }

    /// Files of the store whose path holds all of these texts.
    pub(crate) fn stored(&self, texts: &[&str]) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut dirs = vec![self.cluster.datastore()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    dirs.push(entry.path());
                } else if texts.iter().all(|text| entry.path().to_string_lossy().contains(text)) {
                    found.push(entry.path());
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// The tests that took longest, for whoever wants the suite to take less.
    pub(crate) fn slowest(&self) -> String {
        let mut took = self.took.lock().unwrap_or_else(PoisonError::into_inner).clone();
        took.sort_by(|a, b| b.cmp(a));
        let seconds = |(took, name): &(Duration, String)| format!("{name} {:.0}", took.as_secs_f64());
        let sum: f64 = took.iter().map(|(took, _)| took.as_secs_f64()).sum();
        let longest = took.iter().take(25).map(seconds).collect::<Vec<_>>().join(", ");
        format!("slowest of {} tests, in seconds of {sum:.0}: {longest}", took.len())
    }

    pub(crate) fn down(&self) -> Result<()> {
        if std::env::var_os("PAWL_KEEP").is_some() {
            println!("the cluster stays up: {}", self.cluster.env());
            return Ok(());
        }
        Cluster::down_by_name(self.cluster.name())
    }

    /// Runs a test in a namespace of its own, then looks at the ledgers for what must never happen.
    pub(crate) async fn run(self: &Arc<Self>, name: &str, body: Body) -> Result<()> {
        let namespace = format!("{}-{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed));
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}))?;
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await?;
        let scene = Scene { suite: self.clone(), namespace: namespace.clone() };
        let begun = Instant::now();
        let result = body(scene).await;
        self.took.lock().unwrap_or_else(PoisonError::into_inner).push((begun.elapsed(), name.to_owned()));
        let entries: Vec<Entry> = self.state.ledger().into_iter().filter(|e| belongs(e, &namespace)).collect();
        let violations = ledger::violations(&entries);
        let result = result.and_then(|()| {
            ensure!(violations.is_empty(), "must never happen: {violations:?}");
            Ok(())
        });
        result.with_context(|| {
            let seen = self.cluster.kubectl(&["-n", &namespace, "describe", "terraformruns"]).unwrap_or_default();
            let pods = self.cluster.kubectl(&["-n", &namespace, "get", "pods,events"]).unwrap_or_default();
            let ledger: Vec<_> = entries.iter().map(Entry::line).collect();
            format!("{name} in namespace {namespace}\n{seen}\n{pods}\n{}", ledger.concat())
        })
    }
}

fn sharing(prefix: &str, word: &str) -> String {
    format!("{prefix}-share-{word}")
}

/// Entries of a test: its scripts and states carry its namespace.
fn belongs(entry: &Entry, namespace: &str) -> bool {
    let prefix = format!("{namespace}/");
    ["script", "path", "state"]
        .iter()
        .any(|key| entry.text(key).is_some_and(|text| text.trim_start_matches('/').starts_with(&prefix)))
}

/// A namespace and what is done in it.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) suite: Arc<Suite>,
    pub(crate) namespace: String,
}

impl Scene {
    pub(crate) fn runs(&self) -> Api<TerraformRun> {
        Api::namespaced(self.suite.client.clone(), &self.namespace)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.suite.client.clone(), &self.namespace)
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut all = vec!["-n", self.namespace.as_str()];
        all.extend(args);
        self.suite.cluster.kubectl(&all)
    }

    /// What the datastore gives people to read, by its path below the namespace. On a busy machine its probe may come too late, and the
    /// API server has nobody to ask for a moment.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        let path = format!("/apis/read.pawl.run/v1alpha1/namespaces/{}/{path}", self.namespace);
        let started = Instant::now();
        loop {
            let read = self.kubectl(&["get", "--raw", &path]);
            match read {
                Err(error) if format!("{error:#}").contains("ServiceUnavailable") && started.elapsed() < SOON => {
                    std::thread::sleep(Duration::from_millis(500));
                }
                read => return read,
            }
        }
    }

    /// The http backend that keeps the state of a stack of this test.
    pub(crate) fn backend(&self, stack: &str) -> Value {
        json!({"type": "http", "config": self.suite.state.backend_config(&format!("{}/{stack}", self.namespace))})
    }

    /// Creates a run; `spec` is merged over the defaults of tests: the state in the state server.
    pub(crate) async fn create(&self, name: &str, spec: Value) -> Result<TerraformRun> {
        let mut whole = json!({"backend": self.backend(name)});
        merge(&mut whole, spec);
        let run = TerraformRun::new(name, serde_json::from_value(whole)?);
        self.runs().create(&PostParams::default(), &run).await.with_context(|| format!("cannot create the run {name}"))
    }

    /// Creates a run of the scripted tool. `script` says what the tool does; its ledger is the suite's.
    pub(crate) async fn scripted(&self, name: &str, script: Value, spec: Value) -> Result<TerraformRun> {
        let mut whole = json!({"name": format!("{}/{name}", self.namespace), "ledger": self.suite.state.ledger_url()});
        merge(&mut whole, script);
        let declared =
            spec["variables"].as_array().into_iter().flatten().map(|variable| format!("variable {} {{}}\n", variable["name"]));
        let main = declared.fold("# played by a script\n".to_owned(), |main, variable| main + &variable);
        let files = json!({"main.tf": main, "pawl-script.json": whole.to_string()});
        let mut all = json!({"source": {"inline": {"files": files}}, "tool": {"name": "OpenTofu", "version": "0.0.1"}});
        merge(&mut all, spec);
        self.create(name, all).await
    }

    /// Creates a run of real OpenTofu with one file.
    pub(crate) async fn real(&self, name: &str, main: &str, spec: Value) -> Result<TerraformRun> {
        let mut all =
            json!({"source": {"inline": {"files": {"main.tf": main}}}, "tool": {"name": "OpenTofu", "version": "1.10.6"}});
        merge(&mut all, spec);
        self.create(name, all).await
    }

    pub(crate) async fn get(&self, name: &str) -> Result<TerraformRun> {
        self.runs().get(name).await.with_context(|| format!("cannot read the run {name}"))
    }

    pub(crate) async fn status(&self, name: &str) -> Result<TerraformRunStatus> {
        Ok(self.get(name).await?.status.unwrap_or_default())
    }

    /// Waits until the run is as asked, and gives it.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        within: Duration,
        done: impl Fn(&TerraformRun) -> bool,
    ) -> Result<TerraformRun> {
        let started = Instant::now();
        loop {
            let run = self.get(name).await?;
            if done(&run) {
                return Ok(run);
            }
            let status = run.status.unwrap_or_default();
            ensure!(
                started.elapsed() < within,
                "{name} is not {what} after {within:?}; it is {:?} {:?}: {:?}",
                status.phase,
                status.result,
                status.message
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits for a phase; fails at once when the run ends in another.
    pub(crate) async fn phase(&self, name: &str, phase: Phase) -> Result<TerraformRunStatus> {
        let reached = |run: &TerraformRun| run.status.as_ref().is_some_and(|s| s.phase == Some(phase) || s.is_terminal());
        let status = self.until(name, phase.as_str(), SOON, reached).await?.status.unwrap_or_default();
        ensure!(
            status.phase == Some(phase),
            "{name} ended in place of reaching {phase}: {:?} {:?}",
            status.result,
            status.failure
        );
        Ok(status)
    }

    /// Waits for the end and checks the result.
    pub(crate) async fn ends(&self, name: &str, result: RunResult) -> Result<TerraformRunStatus> {
        self.ends_within(name, result, SOON).await
    }

    /// The log of the last pod of a run that has ended. The run says so for itself, before the kubelet says it of the pod.
    pub(crate) async fn log(&self, name: &str) -> Result<String> {
        let pod = self.pod_names(name).await?.pop().context("no pod")?;
        let started = Instant::now();
        loop {
            let phase = self.pods().get(&pod).await?.status.and_then(|s| s.phase).unwrap_or_default();
            if matches!(phase.as_str(), "Succeeded" | "Failed") {
                return self.kubectl(&["logs", &pod]);
            }
            ensure!(started.elapsed() < SOON, "the pod {pod} is {phase} after {SOON:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn ends_within(&self, name: &str, result: RunResult, within: Duration) -> Result<TerraformRunStatus> {
        let status = self
            .until(name, "at its end", within, |r| r.status.as_ref().is_some_and(TerraformRunStatus::is_terminal))
            .await?
            .status;
        let status = status.unwrap_or_default();
        ensure!(status.result == Some(result), "{name} ended {:?} in place of {result}: {:?}", status.result, status.failure);
        ensure!(crds::status_limit::size(&status) <= crds::status_limit::MAX_STATUS_BYTES, "the status of {name} is too large");
        Ok(status)
    }

    /// Waits for the end and checks class and reason of the failure.
    pub(crate) async fn fails(
        &self,
        name: &str,
        class: crds::FailureClass,
        reason: &str,
        within: Duration,
    ) -> Result<TerraformRunStatus> {
        let status = self.ends_within(name, RunResult::Failed, within).await?;
        let failure = status.failure.as_ref().with_context(|| format!("{name} failed without a failure"))?;
        ensure!(
            failure.class == class && failure.reason == reason,
            "{name} failed with {failure:?} in place of {class:?}/{reason}"
        );
        ensure!(
            !failure.message.is_empty() && status.next_step.as_ref().is_some_and(|n| !n.is_empty()),
            "{name} says not what to do: {status:?}"
        );
        Ok(status)
    }

    /// Pastes the line that `describe` prints into a shell, as a person does.
    pub(crate) async fn approve(&self, name: &str) -> Result<Output> {
        let status = self.phase(name, Phase::AwaitingApproval).await?;
        self.paste(&status.next_step.context("no next step")?)
    }

    /// Runs a line in a shell that has the cluster's `kubectl`.
    pub(crate) fn paste(&self, line: &str) -> Result<Output> {
        let path = format!("{}:{}", self.suite.cluster.programs().display(), std::env::var("PATH").unwrap_or_default());
        let output =
            Command::new("sh").args(["-c", line]).env("PATH", path).env("KUBECONFIG", &self.suite.cluster.kubeconfig).output()?;
        Ok(output)
    }

    pub(crate) async fn annotate(&self, name: &str, annotations: &[(&str, Option<&str>)]) -> Result<TerraformRun> {
        let map: BTreeMap<_, _> = annotations.iter().copied().collect();
        let patch = Patch::Merge(json!({"metadata": {"annotations": map}}));
        Ok(self.runs().patch(name, &PatchParams::default(), &patch).await?)
    }

    /// Ledger entries of a run's script and state.
    pub(crate) fn ledger(&self, name: &str) -> Vec<Entry> {
        let of = format!("{}/{name}", self.namespace);
        let is = |entry: &Entry| {
            ["script", "path", "state"].iter().any(|key| entry.text(key).is_some_and(|t| t.trim_start_matches('/') == of))
        };
        self.suite.state.ledger().into_iter().filter(is).collect()
    }

    /// How often a command of the scripted tool was started.
    pub(crate) fn starts(&self, name: &str, command: &str) -> usize {
        ledger::select(&self.ledger(name), ledger::what::COMMAND_START, Some(command)).len()
    }

    /// Waits until the ledger holds an entry.
    pub(crate) async fn until_ledger(&self, name: &str, what: &str, command: Option<&str>) -> Result<()> {
        let started = Instant::now();
        while ledger::select(&self.ledger(name), what, command).is_empty() {
            ensure!(started.elapsed() < SOON, "the ledger of {name} has no {what} of {command:?} after {SOON:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// The newest pod of a run.
    pub(crate) async fn pod(&self, name: &str) -> Result<Pod> {
        let pods = self.pods().list(&ListParams::default().labels(&format!("{}={name}", names::LABEL_RUN))).await?;
        let newest =
            pods.items.into_iter().max_by_key(|p| p.labels().get(names::LABEL_ATTEMPT).and_then(|n| n.parse::<u32>().ok()));
        newest.with_context(|| format!("{name} has no pod"))
    }

    /// Names of all pods of a run.
    pub(crate) async fn pod_names(&self, name: &str) -> Result<Vec<String>> {
        let pods = self.pods().list(&ListParams::default().labels(&format!("{}={name}", names::LABEL_RUN))).await?;
        Ok(pods.items.iter().map(ResourceExt::name_any).collect())
    }

    /// Waits until the run is gone, with everything that was made for it.
    pub(crate) async fn gone(&self, name: &str) -> Result<()> {
        let started = Instant::now();
        loop {
            let run = self.runs().get_opt(name).await?;
            let label = format!("{}={name}", names::LABEL_RUN);
            let rest = self.kubectl(&["get", "pods,serviceaccounts,roles,rolebindings", "-l", &label, "-o", "name"])?;
            if run.is_none() && rest.trim().is_empty() {
                return Ok(());
            }
            ensure!(started.elapsed() < LATER, "{name} is not gone after {LATER:?}: {rest} {:?}", run.map(|r| r.metadata));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Processes of a pod on this machine, by the pod's control group: `(pid, command line)`.
    pub(crate) fn processes(pod: &Pod) -> Result<Vec<(i32, String)>> {
        victims::processes(&pod.uid().context("a pod without UID")?)
    }

    /// Kills the processes of a pod whose command line holds a text, as a crash would.
    pub(crate) fn kill(pod: &Pod, text: &str) -> Result<()> {
        let found: Vec<_> = Self::processes(pod)?.into_iter().filter(|(_, line)| line.contains(text)).collect();
        ensure!(!found.is_empty(), "no process with `{text}` in {}", pod.name_any());
        for (pid, _) in found {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)?;
        }
        Ok(())
    }

    /// Lets what waits at a gate in the newest pod of a run go on, now or when it comes there.
    pub(crate) async fn open(&self, name: &str) -> Result<()> {
        let started = Instant::now();
        loop {
            if let Ok(pod) = self.pod(name).await
                && let Some((pid, _)) = Self::processes(&pod)?.into_iter().find(|(_, line)| line.contains("runner-agent run"))
                && std::fs::write(format!("/proc/{pid}/root/tmp/open"), "").is_ok()
            {
                return Ok(());
            }
            ensure!(started.elapsed() < SOON, "no gate of {name} can be opened");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Serves a folder of the fixtures as a repository and gives its URL.
    pub(crate) fn repository(&self, name: &str, files: &[(&str, &str)]) -> Result<(String, String)> {
        let repo = self.suite.git.create(&format!("{}/{name}", self.namespace))?;
        let sha = repo.commit("main", files)?;
        Ok((self.suite.git.url(&format!("{}/{name}", self.namespace)), sha))
    }
}

/// Merges objects, the later value wins.
pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Fails unless a text holds another.
pub(crate) fn holds(text: &str, part: &str) -> Result<()> {
    if text.contains(part) {
        return Ok(());
    }
    bail!("`{part}` is missing in:\n{text}")
}

/// The text that a command printed on its error stream.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
