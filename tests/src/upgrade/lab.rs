//! The cluster of an upgrade, and what people do in it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{RunResult, TerraformRun, TerraformRunStatus, names};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::CLUSTER;
use harness::cluster::victims::{self, has_ended};
use harness::cluster::{Audit, Cluster, NAMESPACE, objects};
use harness::wait;

/// How long anything may take on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(180);
/// The namespace of the runs.
const TEAM: &str = "team";

/// The cluster, and the namespace of the runs.
pub(super) struct Lab {
    pub(super) cluster: Cluster,
    client: Client,
}

impl Lab {
    /// A new cluster with nothing in it.
    pub(super) async fn up() -> Result<Self> {
        // One that was kept is upgraded already.
        Cluster::down_by_name(CLUSTER)?;
        let cluster = Cluster::up(CLUSTER, Audit::Objects).await?;
        let client = cluster.client().await?;
        objects::namespace(&client, TEAM).await?;
        Ok(Self { cluster, client })
    }

    fn runs(&self) -> Api<TerraformRun> {
        Api::namespaced(self.client.clone(), TEAM)
    }

    /// Creates a run of real OpenTofu whose state is managed.
    pub(super) async fn create(&self, name: &str, stack: &str, main: &str, approval: Value) -> Result<()> {
        let spec = json!({"source": {"inline": {"files": {"main.tf": main}}}, "stack": stack, "approval": approval,
            "tool": {"name": "OpenTofu", "version": "1.10.6"}});
        let run = json!({"metadata": {"name": name}, "spec": spec});
        objects::create(&self.runs(), run).await.map(drop).with_context(|| format!("cannot create the run {name}"))
    }

    pub(super) async fn status(&self, name: &str) -> Result<TerraformRunStatus> {
        let run = self.runs().get(name).await.with_context(|| format!("cannot read the run {name}"))?;
        Ok(run.status.unwrap_or_default())
    }

    /// Waits until a run is as asked; fails at once when it has ended otherwise.
    pub(super) async fn until(
        &self,
        name: &str,
        what: &str,
        done: impl Fn(&TerraformRunStatus) -> bool,
    ) -> Result<TerraformRunStatus> {
        let look = async || {
            let status = self.status(name).await?;
            if done(&status) {
                return Ok(Ok(status));
            }
            let said = format!("{:?} {:?}: {:?} {:?}", status.phase, status.result, status.message, status.failure);
            ensure!(!status.is_terminal(), "{name} is not {what}; it is {said}");
            Ok(Err(said))
        };
        wait::until(format!("{name} is {what}"), SOON, look).await
    }

    pub(super) async fn ends(&self, name: &str, result: RunResult) -> Result<TerraformRunStatus> {
        self.until(name, result.as_str(), |status| status.result == Some(result)).await
    }

    /// Approves as a person does, by the line that the status has; again when that was removed, as the status says then.
    pub(super) async fn approve(&self, name: &str) -> Result<()> {
        let look = async || {
            let run = self.runs().get(name).await?;
            let approved = run.annotations().contains_key(names::APPROVE);
            let status = run.status.unwrap_or_default();
            if status.approval.is_some() || status.claim.is_some() || status.is_terminal() {
                return Ok(Ok(()));
            }
            if !approved {
                let line = status.next_step.with_context(|| format!("{name} says not how it is approved"))?;
                let output = self.cluster.shell(&line)?;
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(Err(format!("{:?}", status.message)))
        };
        wait::until(format!("the approval of {name} is recorded"), SOON, look).await
    }

    pub(super) async fn pods(&self, name: &str) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), TEAM);
        Ok(pods.list(&ListParams::default().labels(&format!("{}={name}", names::LABEL_RUN))).await?.items)
    }

    /// Waits until the pods of a run have ended, so that its log is whole.
    pub(super) async fn pods_end(&self, name: &str) -> Result<()> {
        let look = async || Ok(self.pods(name).await?.iter().all(has_ended));
        wait::until(format!("the pods of {name} end"), SOON, look).await
    }

    /// Waits until the apply of a run stands at its gate.
    pub(super) async fn gated(&self, name: &str) -> Result<()> {
        let look = async || {
            for pod in self.pods(name).await? {
                if victims::of_pod(&pod)?.iter().any(|(_, line)| line.contains("/tmp/open")) {
                    return Ok(Ok(()));
                }
            }
            Ok(Err(format!("{:?}", self.status(name).await?.message)))
        };
        wait::until(format!("the apply of {name} has begun"), SOON, look).await
    }

    /// Lets what stands at the gate in the one pod of a run go on.
    pub(super) async fn open(&self, name: &str) -> Result<()> {
        let pods = self.pods(name).await?;
        ensure!(pods.len() == 1, "{name} has {} pods", pods.len());
        ensure!(victims::open_gate(&pods[0])?, "no gate can be opened in the pod of {name}");
        Ok(())
    }

    /// What people read of runs and states, by its path below the namespace. The API server may have nobody to ask for a moment.
    pub(super) async fn read(&self, path: &str) -> Result<String> {
        let path = format!("/apis/read.pawl.run/v1alpha1/namespaces/{TEAM}/{path}");
        wait::until(&path, SOON, async || Ok(self.cluster.kubectl(&["get", "--raw", &path]))).await
    }

    /// What is in a Secret of the datastore; nothing when there is none.
    pub(super) async fn secret(&self, word: &str) -> Result<Value> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        let secret = secrets.get_opt(&format!("pawl-datastore-{word}")).await?;
        Ok(serde_json::to_value(secret.and_then(|secret| secret.data).unwrap_or_default())?)
    }

    /// What a person would look at after a failure.
    pub(super) fn evidence(&self) -> String {
        let seen = |args: &[&str]| self.cluster.kubectl(args).unwrap_or_else(|error| format!("{error:#}"));
        let log = |name: &str| seen(&["-n", NAMESPACE, "logs", &format!("deployment/pawl-{name}"), "--tail=40"]);
        let runs = [seen(&["-n", TEAM, "describe", "terraformruns"]), seen(&["-n", TEAM, "get", "pods,events"])];
        [runs.concat(), seen(&["-n", NAMESPACE, "get", "pods"]), log("controller"), log("datastore")].join("\n")
    }
}
