//! A namespace of the cluster, and what is done in it.

use std::{
    collections::BTreeMap,
    process::{Command, Output},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRun, TerraformRunStatus, names};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tests::{
    cluster::victims,
    ledger::{self, Entry},
};

use super::{LATER, SOON, Suite, merge};

/// Entries of a test: its scripts and states carry its namespace.
pub(super) fn belongs(entry: &Entry, namespace: &str) -> bool {
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
