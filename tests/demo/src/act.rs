//! Shows one run on the screen: follows it to its plan, approves or denies it, and follows it to its end.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use crds::{Phase, RunResult, TerraformRun, TerraformRunStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _};

use super::approve::{self, Answer};
use super::follow::Follower;
use super::screen::{self, Step};
use super::stack::NAMESPACE;
use super::{Approval, ENV, NOT_APPROVED, log, web};
use harness::cluster::Cluster;

/// Time limits for a busy machine; on an idle one the plan takes two seconds.
const PLANNED_WITHIN: Duration = Duration::from_secs(300);
const APPLIED_WITHIN: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Applied,
    /// The person denied it.
    Denied,
    /// No answer; it still waits.
    Left,
    /// Other results; the run has the reason.
    Failed,
}

impl Ended {
    /// The demo's exit code for this result.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Applied | Self::Denied => 0,
            Self::Failed => 1,
            Self::Left => NOT_APPROVED,
        }
    }
}

/// Context for playing runs.
pub(super) struct Act<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) client: Client,
    pub(super) runs: Api<TerraformRun>,
    pods: Api<Pod>,
    approval: Approval,
    /// The address of the web console.
    web: Option<SocketAddr>,
}

impl<'a> Act<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        client: Client,
        approval: Approval,
        web: Option<SocketAddr>,
    ) -> Self {
        let runs = Api::namespaced(client.clone(), NAMESPACE);
        let pods = Api::namespaced(client.clone(), NAMESPACE);
        Self {
            cluster,
            client,
            runs,
            pods,
            approval,
            web,
        }
    }

    /// Follows a run to its end; `step` is the number of its apply.
    pub(super) async fn play(&self, run: &TerraformRun, step: u8) -> Result<Ended> {
        let name = run.name_any();
        let mut follower = Follower::start(self.runs.clone(), run);
        let waits =
            |s: &TerraformRunStatus| s.phase == Some(Phase::AwaitingApproval) || s.is_terminal();
        let planned = follower.until(PLANNED_WITHIN, waits).await?;
        if planned.is_terminal() {
            screen::say("The run ended before a plan waited; `kubectl describe` tells why.");
            return Ok(Ended::Failed);
        }
        let pod = planned.attempt.context("a plan without a pod")?.pod_name;
        let plan = planned.plan.context("a run that waits without a plan")?;
        // The log is optional: the status has the changes as well.
        let text = log::plan(&self.pods, &pod).await;
        screen::block(&text.unwrap_or_else(|| plan.changes.join("\n")));
        screen::say(&format!("Plan {}  {}", plan.summary, plan.checksum));
        screen::say(&format!(
            "Approve with:\n\n  {}\n",
            planned.next_step.unwrap_or_default()
        ));
        if let (Some(web), Approval::Ask) = (self.web, self.approval) {
            let page = format!("runs/{NAMESPACE}/{name}");
            let link = web::link(&self.client, web, &page).await?;
            screen::say(&format!(
                "or in a browser (the link logs in once):\n\n  {link}\n"
            ));
        }
        let approve = || approve::approve(&self.client, &self.runs, &name, &plan.checksum);

        if self.approval == Approval::ByItself {
            screen::say("Approved by the demo itself, as --yes says.");
            approve().await?;
        } else if approve::somebody_is_there() {
            screen::say(&format!("in another terminal (after {ENV}),"));
            match approve::ask(&mut follower).await? {
                Answer::Yes => approve().await?,
                Answer::No => approve::deny(&self.runs, &name).await?,
                Answer::Elsewhere => screen::say("Answered in another terminal."),
                Answer::Left => return Ok(leave(&name, "It still waits.")),
            }
        } else {
            let why =
                "There is no terminal to ask at, and --yes was not given, so nothing was approved.";
            return Ok(leave(&name, why));
        }
        self.apply(&mut follower, &pod, step).await
    }

    /// Shows the apply and the end.
    async fn apply(&self, follower: &mut Follower, pod: &str, step: u8) -> Result<Ended> {
        let step = Step::begin(step, "apply");
        let printed = log::lines(&self.pods, pod)
            .await
            .map_or(0, |lines| lines.len());
        let words = tokio::spawn(log::follow(self.pods.clone(), pod.to_owned(), printed));
        let ended = follower
            .until(APPLIED_WITHIN, TerraformRunStatus::is_terminal)
            .await;
        // The log ends with the pod, a moment after the run.
        let _ = tokio::time::timeout(Duration::from_secs(3), words).await;
        let ended = ended?;
        step.done(&ended.message.clone().unwrap_or_default());
        Ok(match ended.result {
            Some(RunResult::Applied) => Ended::Applied,
            Some(RunResult::Rejected) => Ended::Denied,
            _ => Ended::Failed,
        })
    }

    /// Prints the output of `kubectl describe` for an object.
    pub(super) fn describe(&self, kind: &str, name: &str) -> Result<()> {
        let text = self
            .cluster
            .kubectl(&["describe", "-n", NAMESPACE, kind, name])?;
        screen::say(&format!("$ kubectl describe -n {NAMESPACE} {kind} {name}"));
        screen::block(&text);
        Ok(())
    }
}

/// Ends without an answer: everything stays as it is.
fn leave(name: &str, why: &str) -> Ended {
    screen::say(&format!(
        "{why}\nTo approve it, paste the line above into a shell that uses the cluster: {ENV}\n\
         Then: kubectl describe -n {NAMESPACE} terraformrun {name}   (cargo demo --yes approves by itself; cargo demo --down ends all)"
    ));
    Ended::Left
}
