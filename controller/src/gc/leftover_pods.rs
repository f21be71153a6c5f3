//! Deletes pods of deleted runs, of replaced attempts, and of attempts that an ended run never opened: a creation may take
//! effect after the cleanup, when no reconcile follows.

use std::{cmp::Ordering, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crds::{TerraformRun, TerraformRunStatus, names};

use super::{delete, owner};
use crate::{cluster::Cluster, error::Error, runner_pod::status::PodView};

/// Waits after failed tries, in seconds. After the last one, the next list of pods shows the pod again.
const WAITS: [u64; 5] = [1, 5, 15, 60, 300];

/// Whether no reconcile of the run, as cached, will handle the pod.
pub fn is_left(pod: &PodView, known: Option<&TerraformRun>) -> bool {
    // The pod is created before its attempt is opened, so only an ended run proves that the opening does not follow.
    let is_over = |run: &TerraformRun| match pod.attempt.cmp(&number(run)) {
        Ordering::Less => true,
        Ordering::Equal => false,
        Ordering::Greater => run
            .status
            .as_ref()
            .is_some_and(TerraformRunStatus::is_terminal),
    };
    // Anyone may label a pod. Its release deletes Role and binding of its name, so the name has to be one of an attempt.
    pod.name == names::attempt_name(&pod.run, &pod.run_uid, pod.attempt)
        && owner(&pod.run_uid, known).is_none_or(is_over)
}

fn number(run: &TerraformRun) -> u32 {
    run.status
        .as_ref()
        .and_then(|status| status.attempt.as_ref())
        .map_or(0, |attempt| attempt.number)
}

/// Releases a leftover pod, once a live read confirms it. A pod with a running
/// container is left alone until the container ends: its agent exits when it finds its attempt closed, and an apply is
/// never killed from here. A pod whose container never started, for lack of an image or a node, would remain forever
/// and is deleted.
pub fn let_go(namespace: String, pod: PodView, ctx: Arc<Cluster>) {
    if !is_over(&pod) {
        return;
    }
    tokio::spawn(async move {
        for wait in WAITS {
            match Box::pin(release(&namespace, &pod, &ctx)).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(%error, pod = pod.name, "a leftover pod is not released yet");
                }
            }
            tokio::time::sleep(std::time::Duration::from_secs(wait)).await;
        }
    });
}

/// It has the finalizer, and none of its containers runs.
fn is_over(pod: &PodView) -> bool {
    pod.held && (pod.ended.is_some() || !pod.started)
}

async fn release(namespace: &str, pod: &PodView, ctx: &Cluster) -> Result<(), Error> {
    let there: Option<TerraformRun> = ctx
        .call_opt("read run", ctx.runs(namespace).get(&pod.run))
        .await?;
    if !is_left(pod, there.as_ref()) {
        return Ok(());
    }
    let pod = ctx
        .call_opt("read pod", ctx.pod_api(namespace).get(&pod.name))
        .await?
        .filter(|live| live.uid().as_deref() == Some(&pod.uid));
    let Some(pod) = pod.as_ref().and_then(PodView::of).filter(is_over) else {
        return Ok(());
    };
    tracing::info!(
        pod = pod.name,
        run = pod.run,
        "the pod's run is gone, has ended, or is at a later attempt"
    );
    delete::account(namespace, &pod.name, ctx).await?;
    if !pod.deleting {
        delete::object::<Pod>(
            "delete pod",
            namespace,
            &pod.name,
            Some(pod.uid.clone()),
            ctx,
        )
        .await?;
    }
    delete::release_pod(namespace, &pod.name, &pod.uid, pod.lingers, ctx).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        runner_pod::status::Ended,
        testing::{UID, run},
    };
    use crds::{Attempt, Phase};

    #[test]
    fn pod_of_an_unopened_attempt_is_left_once_its_run_ended() {
        let pod = |attempt| PodView {
            name: names::attempt_name("net", UID, attempt),
            run: "net".into(),
            run_uid: UID.into(),
            attempt,
            ..PodView::default()
        };
        let at = |phase| {
            let mut run = run();
            run.status = Some(TerraformRunStatus {
                phase: Some(phase),
                attempt: Some(Attempt {
                    number: 2,
                    ..Attempt::default()
                }),
                ..TerraformRunStatus::default()
            });
            run
        };
        let left = |pod: &PodView, phase| is_left(pod, Some(&at(phase)));
        for (number, phase, wanted) in [
            (1, Phase::Plan, true),
            (2, Phase::Plan, false),
            (3, Phase::Plan, false),
            (2, Phase::Failed, false),
            (3, Phase::Failed, true),
        ] {
            assert_eq!(left(&pod(number), phase), wanted, "{number} in {phase}");
        }
        assert!(is_left(&pod(2), None), "its run is gone");
        let foreign = PodView {
            name: "deployer".into(),
            ..pod(1)
        };
        assert!(!is_left(&foreign, None), "a name of no attempt");
    }

    #[test]
    fn leftover_pod_is_released_when_nothing_of_it_runs() {
        let pod = |held, started, ended: bool| PodView {
            held,
            started,
            ended: ended.then(Ended::default),
            ..PodView::default()
        };
        assert!(
            !is_over(&pod(true, true, false)),
            "its agent ends by itself"
        );
        assert!(is_over(&pod(true, true, true)), "it has ended");
        assert!(
            is_over(&pod(true, false, false)),
            "its container never started, and would never end"
        );
        assert!(!is_over(&pod(false, false, false)), "nobody holds it");
    }
}
