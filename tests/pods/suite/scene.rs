//! A namespace of the cluster, and helpers for tests in it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRun, TerraformRunStatus, names};
use harness::{
    cluster::{
        NAMESPACE, objects,
        victims::{self, has_ended},
    },
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use ledger::Entry;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use servers::state::LockInfo;

use super::{LATER, SOON, Suite, stderr, with};

/// Whether an entry belongs to a test: its scripts and states have its namespace as prefix.
pub(super) fn belongs(entry: &Entry, namespace: &str) -> bool {
    let prefix = format!("{namespace}/");
    ["script", "path", "state"].iter().any(|key| {
        entry
            .text(key)
            .is_some_and(|text| text.trim_start_matches('/').starts_with(&prefix))
    })
}

/// A namespace and helpers for tests in it.
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

    /// Creates a Secret.
    pub(crate) fn secret(&self, name: &str, texts: &[(&str, &str)]) -> Result<()> {
        self.keys(&["create", "secret", "generic", name], texts)
    }

    /// Creates a ConfigMap.
    pub(crate) fn config_map(&self, name: &str, texts: &[(&str, &str)]) -> Result<()> {
        self.keys(&["create", "configmap", name], texts)
    }

    fn keys(&self, create: &[&str], texts: &[(&str, &str)]) -> Result<()> {
        let literals: Vec<_> = texts
            .iter()
            .map(|(key, text)| format!("--from-literal={key}={text}"))
            .collect();
        let args: Vec<_> = create
            .iter()
            .copied()
            .chain(literals.iter().map(String::as_str))
            .collect();
        self.kubectl(&args).map(drop)
    }

    /// Reads from the datastore's read API, by path below the namespace. Retries, because on a busy machine its readiness probe may be
    /// late, so that the API server has no endpoint for a moment.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        let path = format!(
            "/apis/read.pawl.run/v1alpha1/namespaces/{}/{path}",
            self.namespace
        );
        let started = Instant::now();
        loop {
            let read = self.kubectl(&["get", "--raw", &path]);
            match read {
                Err(error)
                    if format!("{error:#}").contains("ServiceUnavailable")
                        && started.elapsed() < SOON =>
                {
                    std::thread::sleep(Duration::from_millis(500));
                }
                read => return read,
            }
        }
    }

    /// The name of a state, a repository or a script of this test on the servers that all tests share.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace)
    }

    /// The http backend for a stack of this test.
    pub(crate) fn backend(&self, stack: &str) -> Value {
        json!({"type": "http", "config": self.suite.state.backend_config(&self.path(stack))})
    }

    /// The state of a stack on the state server.
    pub(crate) fn state(&self, stack: &str) -> Result<Value> {
        self.suite
            .state
            .current(&self.path(stack))
            .context("no state was written")
    }

    /// The lock of that state.
    pub(crate) fn lock(&self, stack: &str) -> Option<LockInfo> {
        self.suite.state.lock(&self.path(stack))
    }

    /// Fails unless the state has all objects that the tool created, and no lock.
    pub(crate) fn saved(&self, stack: &str) -> Result<()> {
        let forgotten = ledger::forgotten(&self.ledger(stack), &self.state(stack)?);
        ensure!(
            forgotten.is_empty(),
            "objects that the state does not have: {forgotten:?}"
        );
        ensure!(self.lock(stack).is_none(), "the lock is still held");
        Ok(())
    }

    /// Creates a run; `spec` is merged over the tests' default, a state in the state server.
    pub(crate) async fn create(&self, name: &str, spec: Value) -> Result<TerraformRun> {
        self.create_bare(name, with(json!({"backend": self.backend(name)}), spec))
            .await
    }

    /// Creates a run without that default.
    pub(crate) async fn create_bare(&self, name: &str, spec: Value) -> Result<TerraformRun> {
        let run = json!({"metadata": {"name": name}, "spec": spec});
        objects::create(&self.runs(), run)
            .await
            .with_context(|| format!("cannot create the run {name}"))
    }

    /// A script for the scripted tool, with its name and the suite's ledger.
    pub(crate) fn script(&self, name: &str, script: Value) -> Value {
        with(
            json!({"name": self.path(name), "ledger": self.suite.state.ledger_url()}),
            script,
        )
    }

    /// Creates a run of the scripted tool. `script` defines its behaviour; its ledger is the suite's.
    pub(crate) async fn scripted(
        &self,
        name: &str,
        script: Value,
        spec: Value,
    ) -> Result<TerraformRun> {
        let script = self.script(name, script);
        let declared = spec["variables"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|variable| format!("variable {} {{}}\n", variable["name"]));
        let main = declared.fold("# played by a script\n".to_owned(), |main, variable| {
            main + &variable
        });
        let files = json!({"main.tf": main, "pawl-script.json": script.to_string()});
        let whole = json!({"source": {"inline": {"files": files}}, "tool": {"name": "OpenTofu", "version": "0.0.1"}});
        self.create(name, with(whole, spec)).await
    }

    /// Creates a run of real OpenTofu with one file.
    pub(crate) async fn real(&self, name: &str, main: &str, spec: Value) -> Result<TerraformRun> {
        let whole = json!({"source": {"inline": {"files": {"main.tf": main}}}, "tool": {"name": "OpenTofu", "version": "1.10.6"}});
        self.create(name, with(whole, spec)).await
    }

    pub(crate) async fn get(&self, name: &str) -> Result<TerraformRun> {
        self.runs()
            .get(name)
            .await
            .with_context(|| format!("cannot read the run {name}"))
    }

    pub(crate) async fn status(&self, name: &str) -> Result<TerraformRunStatus> {
        Ok(self.get(name).await?.status.unwrap_or_default())
    }

    /// Waits until `done` holds for the status, and returns it.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        within: Duration,
        done: impl Fn(&TerraformRunStatus) -> bool,
    ) -> Result<TerraformRunStatus> {
        let look = async || {
            let status = self.status(name).await?;
            let text = format!(
                "{:?} {:?}: {:?}",
                status.phase, status.result, status.message
            );
            Ok(if done(&status) { Ok(status) } else { Err(text) })
        };
        wait::until(format!("{name} is {what}"), within, look).await
    }

    /// Waits for a phase. Fails at once if the run ends in another.
    pub(crate) async fn phase(&self, name: &str, phase: Phase) -> Result<TerraformRunStatus> {
        let reached = |s: &TerraformRunStatus| s.phase == Some(phase) || s.is_terminal();
        let status = self.until(name, phase.as_str(), SOON, reached).await?;
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

    /// The log of the last pod of an ended run. Waits for the pod, whose end the kubelet reports after the run's.
    pub(crate) async fn log(&self, name: &str) -> Result<String> {
        let pod = self.pod_names(name).await?.pop().context("no pod")?;
        wait::object(&self.pods(), &pod, "at its end", SOON, has_ended).await?;
        self.kubectl(&["logs", &pod])
    }

    pub(crate) async fn ends_within(
        &self,
        name: &str,
        result: RunResult,
        within: Duration,
    ) -> Result<TerraformRunStatus> {
        let status = self
            .until(name, "at its end", within, TerraformRunStatus::is_terminal)
            .await?;
        ensure!(
            status.result == Some(result),
            "{name} ended {:?} in place of {result}: {:?}",
            status.result,
            status.failure
        );
        ensure!(
            crds::status_limit::size(&status) <= crds::status_limit::MAX_STATUS_BYTES,
            "the status of {name} is too large"
        );
        Ok(status)
    }

    /// Waits for the end, whatever the result.
    pub(crate) async fn ended(&self, name: &str) -> Result<TerraformRunStatus> {
        self.until(name, "ended", LATER, TerraformRunStatus::is_terminal)
            .await
    }

    /// Like [`Self::ended`], until the attempt is closed: no process of the run works, and only the controller writes its fields.
    pub(crate) async fn closed(&self, name: &str) -> Result<TerraformRunStatus> {
        let closed = |s: &TerraformRunStatus| {
            s.is_terminal() && s.attempt.as_ref().is_some_and(|attempt| !attempt.open)
        };
        self.until(name, "closed", LATER, closed).await
    }

    /// Asks for another run of an ended one; returns its name.
    pub(crate) async fn rerun(&self, name: &str) -> Result<String> {
        self.annotate(name, &[(names::RERUN, Some("true"))]).await?;
        self.rerun_of(name).await
    }

    /// The name of the run that answers such a request.
    pub(crate) async fn rerun_of(&self, name: &str) -> Result<String> {
        self.until(name, "answered", SOON, |s| s.rerun.is_some())
            .await?
            .rerun
            .context("no rerun")
    }

    /// The name of the run that recovers this one.
    pub(crate) async fn recovery_of(&self, name: &str) -> Result<String> {
        self.until(name, "answered", SOON, |s| s.recovery.is_some())
            .await?
            .recovery
            .context("no recovery")
    }

    /// Deletes the newest pod of a run at once, like one of a node that is gone.
    pub(crate) async fn delete_by_force(&self, name: &str) -> Result<()> {
        let pod = self.pod(name).await?.name_any();
        self.kubectl(&[
            "delete",
            "pod",
            &pod,
            "--force",
            "--grace-period=0",
            "--wait=false",
        ])
        .map(drop)
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
        let failure = status
            .failure
            .as_ref()
            .with_context(|| format!("{name} failed without a failure"))?;
        ensure!(
            failure.class == class && failure.reason == reason,
            "{name} failed with {failure:?} in place of {class:?}/{reason}"
        );
        ensure!(
            !failure.message.is_empty() && status.step().is_some(),
            "{name} says not what to do: {status:?}"
        );
        Ok(status)
    }

    /// Runs the command that `describe` prints, as a user who pastes it.
    pub(crate) async fn approve(&self, name: &str) -> Result<()> {
        let status = self.phase(name, Phase::AwaitingApproval).await?;
        self.paste(&status.next_step.context("no next step")?)
            .map(drop)
    }

    /// Approves, and waits until it is applied.
    pub(crate) async fn approved(&self, name: &str) -> Result<TerraformRunStatus> {
        self.approve(name).await?;
        self.ends(name, RunResult::Applied).await
    }

    /// Runs a command that must succeed; returns its output.
    pub(crate) fn paste(&self, line: &str) -> Result<String> {
        let output = self.suite.cluster.shell(line)?;
        ensure!(
            output.status.success(),
            "{line}\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            stderr(&output)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a command that must be refused; returns its error.
    pub(crate) fn refused(&self, line: &str) -> Result<String> {
        let output = self.suite.cluster.shell(line)?;
        ensure!(
            !output.status.success(),
            "it was let through: {line}\n{}",
            String::from_utf8_lossy(&output.stdout)
        );
        Ok(stderr(&output))
    }

    /// The command that posts to a path of the datastore's API, below the namespace.
    pub(crate) fn post(&self, path: &str, body: &Value) -> String {
        let base = format!("/apis/read.pawl.run/v1alpha1/namespaces/{}", self.namespace);
        format!("echo '{body}' | kubectl create --raw '{base}/{path}' -f -")
    }

    pub(crate) async fn annotate(
        &self,
        name: &str,
        annotations: &[(&str, Option<&str>)],
    ) -> Result<TerraformRun> {
        let map: BTreeMap<_, _> = annotations.iter().copied().collect();
        let patch = Patch::Merge(json!({"metadata": {"annotations": map}}));
        Ok(self
            .runs()
            .patch(name, &PatchParams::default(), &patch)
            .await?)
    }

    /// Ledger entries of a run's script and state.
    pub(crate) fn ledger(&self, name: &str) -> Vec<Entry> {
        let of = self.path(name);
        let is = |entry: &Entry| {
            ["script", "path", "state"].iter().any(|key| {
                entry
                    .text(key)
                    .is_some_and(|t| t.trim_start_matches('/') == of)
            })
        };
        self.suite.state.ledger().into_iter().filter(is).collect()
    }

    /// How often a command of the scripted tool was started.
    pub(crate) fn starts(&self, name: &str, command: &str) -> usize {
        ledger::select(
            &self.ledger(name),
            ledger::what::COMMAND_START,
            Some(command),
        )
        .len()
    }

    pub(crate) async fn until_ledger(
        &self,
        name: &str,
        what: &str,
        command: Option<&str>,
    ) -> Result<()> {
        let look = async || Ok(!ledger::select(&self.ledger(name), what, command).is_empty());
        wait::until(
            format!("the ledger of {name} has a {what} of {command:?}"),
            SOON,
            look,
        )
        .await
    }

    /// The newest pod of a run.
    pub(crate) async fn pod(&self, name: &str) -> Result<Pod> {
        let pods = self
            .pods()
            .list(&ListParams::default().labels(&format!("{}={name}", names::LABEL_RUN)))
            .await?;
        let newest = pods.items.into_iter().max_by_key(|p| {
            p.labels()
                .get(names::LABEL_ATTEMPT)
                .and_then(|n| n.parse::<u32>().ok())
        });
        newest.with_context(|| format!("{name} has no pod"))
    }

    pub(crate) async fn pod_names(&self, name: &str) -> Result<Vec<String>> {
        let pods = self
            .pods()
            .list(&ListParams::default().labels(&format!("{}={name}", names::LABEL_RUN)))
            .await?;
        Ok(pods.items.iter().map(ResourceExt::name_any).collect())
    }

    /// Waits until the run and all its objects are deleted.
    pub(crate) async fn gone(&self, name: &str) -> Result<()> {
        wait::gone(&self.runs(), name, LATER).await?;
        let label = format!("{}={name}", names::LABEL_RUN);
        wait::until(
            format!("all that was made for {name} is gone"),
            LATER,
            async || {
                let rest = self.kubectl(&[
                    "get",
                    "pods,serviceaccounts,roles,rolebindings",
                    "-l",
                    &label,
                    "-o",
                    "name",
                ])?;
                Ok(if rest.trim().is_empty() {
                    Ok(())
                } else {
                    Err(rest)
                })
            },
        )
        .await
    }

    /// Processes of a pod on this machine, by its cgroup: `(pid, command line)`.
    pub(crate) fn processes(pod: &Pod) -> Result<Vec<(i32, String)>> {
        victims::of_pod(pod)
    }

    /// Kills the processes of a pod whose command line contains `text`, like a crash.
    pub(crate) fn kill(pod: &Pod, text: &str) -> Result<()> {
        let killed = victims::signal_in_pod(
            &pod.uid().context("a pod without UID")?,
            text,
            Signal::SIGKILL,
        )?;
        ensure!(killed > 0, "no process with `{text}` in {}", pod.name_any());
        Ok(())
    }

    fn release(&self) -> Api<Pod> {
        Api::namespaced(self.suite.client.clone(), NAMESPACE)
    }

    /// Pods of the release with these labels.
    pub(crate) async fn system_pods(&self, labels: &str) -> Result<Vec<Pod>> {
        Ok(self
            .release()
            .list(&ListParams::default().labels(labels))
            .await?
            .items)
    }

    /// Kills the processes of those pods and returns their number. Deletes the pods, because a new pod has no restart backoff.
    pub(crate) async fn crash(&self, labels: &str) -> Result<usize> {
        // The last one may still be terminating, and the next not exist yet.
        let pods = wait::until(
            format!("the release has a pod with {labels}"),
            SOON,
            async || {
                let mut pods = self.system_pods(labels).await?;
                pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
                Ok((!pods.is_empty()).then_some(pods))
            },
        )
        .await?;
        let mut killed = 0;
        for pod in pods {
            killed += victims::signal_in_pod(
                &pod.uid().context("a pod without UID")?,
                "/controller",
                Signal::SIGKILL,
            )?;
            self.release()
                .delete(&pod.name_any(), &DeleteParams::default().grace_period(1))
                .await?;
        }
        Ok(killed)
    }

    /// Opens the gate in the newest pod of a run, now or before it is reached.
    pub(crate) async fn open(&self, name: &str) -> Result<()> {
        let open = async || {
            let Ok(pod) = self.pod(name).await else {
                return Ok(false);
            };
            victims::open_gate(&pod)
        };
        wait::until(format!("a gate of {name} can be opened"), SOON, open).await
    }

    /// Serves files as a repository; returns its URL and commit.
    pub(crate) fn repository(
        &self,
        name: &str,
        files: &[(&str, &str)],
    ) -> Result<(String, String)> {
        let sha = self
            .suite
            .git
            .create(&self.path(name))?
            .commit("main", files)?;
        Ok((self.suite.git.url(&self.path(name)), sha))
    }
}
