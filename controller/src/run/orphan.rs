//! Pods of runs that are gone: a creation may land after everything of its run was tidied up, and nobody looks at that run again.

use kube::{ResourceExt, api::DeleteParams, api::Preconditions};

use crds::TerraformRun;

use super::{
    actions::PodView,
    execute::{delete_account, release_pod},
    reconcile::Context,
};
use crate::error::Error;

/// How long to wait after each try that failed, in seconds; after the last one the next list of pods shows the pod again.
const WAITS: [u64; 5] = [1, 5, 15, 60, 300];

/// Lets go of a pod whose run the cache does not know, once it has ended and a live read says that the run is gone. A pod that
/// runs is left alone: its agent ends by itself when it finds no run, and an apply is never cut off from here.
pub async fn let_go(namespace: &str, run: &str, run_uid: &str, pod: &PodView, ctx: &Context) {
    for wait in WAITS {
        match release(namespace, run, run_uid, pod, ctx).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, pod = pod.name, "the pod of a run that is gone is still held"),
        }
        tokio::time::sleep(std::time::Duration::from_secs(wait)).await;
    }
}

async fn release(namespace: &str, run: &str, run_uid: &str, pod: &PodView, ctx: &Context) -> Result<(), Error> {
    if !pod.held || pod.ended.is_none() {
        return Ok(());
    }
    let there: Option<TerraformRun> = ctx.call_opt("read run", ctx.runs(namespace).get(run)).await?;
    if there.is_some_and(|there| there.uid().as_deref() == Some(run_uid)) {
        return Ok(());
    }
    tracing::info!(pod = pod.name, run, "the pod's run is gone");
    delete_account(namespace, &pod.name, ctx).await?;
    if !pod.deleting {
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let params = DeleteParams::background().preconditions(preconditions);
        ctx.call_opt("delete pod", ctx.pod_api(namespace).delete(&pod.name, &params)).await?;
    }
    release_pod(namespace, &pod.name, &pod.uid, ctx).await?;
    ctx.pods.release(namespace, &pod.name, &pod.uid);
    Ok(())
}
