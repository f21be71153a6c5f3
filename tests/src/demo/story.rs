//! The run itself: created, planned, approved or denied, applied.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crds::{Phase, RunResult, TerraformRun, TerraformRunStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _};

use super::approve::{self, Answer};
use super::follow::Follower;
use super::screen::{self, Step};
use super::servers::Servers;
use super::stack::{self, NAMESPACE};
use super::{Approval, NOT_APPROVED, log};
use crate::cluster::{Cluster, report};

/// Long enough for a busy machine: on a quiet one the plan is there after two seconds.
const PLANNED_WITHIN: Duration = Duration::from_secs(300);
const APPLIED_WITHIN: Duration = Duration::from_secs(600);

const ENV: &str = "eval \"$(cargo demo --env)\"";

/// What the story is about.
struct Scene<'a> {
    cluster: &'a Cluster,
    client: Client,
    runs: Api<TerraformRun>,
    pods: Api<Pod>,
    name: String,
    begun: Instant,
}

/// Tells it to its end.
pub(super) async fn tell(cluster: &Cluster, servers: &Servers, approval: Approval, begun: Instant) -> Result<u8> {
    let client = cluster.client().await?;
    let step = Step::begin(4, "run");
    stack::namespace(&client).await?;
    let number = stack::next_number(&client).await?;
    let commit = stack::commit(servers, number)?;
    let run = stack::create_run(&client, servers, number).await?;
    let scene = Scene {
        cluster,
        runs: Api::namespaced(client.clone(), NAMESPACE),
        pods: Api::namespaced(client.clone(), NAMESPACE),
        client,
        name: run.name_any(),
        begun,
    };
    let mut follower = Follower::start(scene.runs.clone(), &run);
    step.done(&format!("{NAMESPACE}/{} created, for {} at {}", scene.name, stack::origin(servers), &commit[..8]));
    scene.play(&mut follower, approval).await
}

impl Scene<'_> {
    async fn play(&self, follower: &mut Follower, approval: Approval) -> Result<u8> {
        let waits = |s: &TerraformRunStatus| s.phase == Some(Phase::AwaitingApproval) || s.is_terminal();
        let planned = follower.until(PLANNED_WITHIN, waits).await?;
        if planned.is_terminal() {
            screen::say("The run ended before a plan waited; describe says why, and what to do next.");
            self.describe()?;
            return Ok(1);
        }
        let pod = planned.attempt.as_ref().map(|attempt| attempt.pod_name.clone()).context("a plan without a pod")?;
        let plan = planned.plan.as_ref().context("a run that waits without a plan")?;
        match log::plan(&self.pods, &pod).await {
            Some(text) => screen::block(&text),
            // The log is a help; the status has the changes as well.
            None => screen::block(&plan.changes.join("\n")),
        }
        screen::say(&format!("Plan {}  {}", plan.summary, plan.checksum));
        screen::say(&format!("Approve with:\n\n  {}\n", planned.next_step.as_deref().unwrap_or_default()));

        if approval == Approval::ByItself {
            screen::say("Approved by the demo itself, as --yes says.");
            approve::approve(&self.client, &self.runs, &self.name, &plan.checksum).await?;
        } else if approve::somebody_is_there() {
            screen::say(&format!("in another terminal (after {ENV}),"));
            match approve::ask(follower).await? {
                Answer::Yes => approve::approve(&self.client, &self.runs, &self.name, &plan.checksum).await?,
                Answer::No => approve::deny(&self.runs, &self.name).await?,
                Answer::Elsewhere => screen::say("Answered in another terminal."),
                Answer::Left => return Ok(self.leave("It goes on waiting.")),
            }
        } else {
            return Ok(self.leave("There is no terminal to ask at, and --yes was not given, so nothing was approved."));
        }
        self.apply(follower, &pod).await
    }

    /// Shows the apply, and the end.
    async fn apply(&self, follower: &mut Follower, pod: &str) -> Result<u8> {
        let step = Step::begin(5, "apply");
        let printed = log::lines(&self.pods, pod).await.map_or(0, |lines| lines.len());
        let words = tokio::spawn(log::follow(self.pods.clone(), pod.to_owned(), printed, move |line| {
            if !line.trim().is_empty() {
                screen::line(line);
            }
        }));
        let ended = follower.until(APPLIED_WITHIN, TerraformRunStatus::is_terminal).await;
        // The log ends with the pod, a moment after the run.
        let _ = tokio::time::timeout(Duration::from_secs(3), words).await;
        let ended = ended?;
        step.done(&ended.message.clone().unwrap_or_default());
        let result = ended.result;
        if result == Some(RunResult::Applied) {
            let step = Step::begin(6, "outputs");
            let outputs = stack::outputs(self.cluster, &self.runs.get(&self.name).await?)?;
            let all: Vec<_> = outputs.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            step.done(&format!("{}: {}", RunResult::Applied, all.join("  ")));
        }
        self.describe()?;
        screen::say(&format!(
            "All of it took {}. The cluster stays up: {ENV}; kubectl get tfrun -A.   End it: cargo demo --down",
            report::duration(self.begun.elapsed())
        ));
        Ok(u8::from(!matches!(result, Some(RunResult::Applied | RunResult::Rejected))))
    }

    /// Ends without an answer: everything stays as it is.
    fn leave(&self, why: &str) -> u8 {
        screen::say(&format!(
            "{why}\nTo approve it, paste the line above into a shell that uses the cluster: {ENV}\n\
             Then: kubectl describe -n {NAMESPACE} terraformrun {}   (cargo demo --yes approves by itself; cargo demo --down ends all)",
            self.name
        ));
        NOT_APPROVED
    }

    fn describe(&self) -> Result<()> {
        let text = self.cluster.kubectl(&["describe", "-n", NAMESPACE, "terraformrun", &self.name])?;
        screen::say(&format!("$ kubectl describe -n {NAMESPACE} terraformrun {}", self.name));
        screen::block(&text);
        Ok(())
    }
}
