//! Handles watch events of runs and pods outside the reconcile loop: releases held pods that no reconcile of a run will release, and wakes
//! the runs of pods. A relist hides what happened before it, including ends of runs and pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use watching::{Index, Key, Name};

use crds::TerraformRun;

use super::context::Context;
use crate::{
    cluster::cached::Store,
    gc::leftover_pods::{is_left, let_go},
    runner_pod::status::PodView,
};

/// Releases the held pods of deleted runs and of replaced attempts: a pod's creation may be seen before the end of its attempt.
pub struct LeftPods(pub Arc<Context>);

impl LeftPods {
    fn check(&self, name: &Name, run: Option<&TerraformRun>) {
        for pod in self.0.cluster.pods.of_run(name) {
            release_if_left(&name.0, pod, run, &self.0);
        }
    }
}

impl Index<TerraformRun> for LeftPods {
    fn apply(&self, key: &Key, run: &TerraformRun) {
        self.check(key, Some(run));
    }

    fn delete(&self, key: &Key) {
        self.check(key, None);
    }
}

/// Fills the cache of pods, and wakes their runs.
pub struct Pods {
    pub ctx: Arc<Context>,
    pub runs: Arc<Store<TerraformRun>>,
}

impl Index<Pod> for Pods {
    fn apply(&self, key: &Key, pod: &Pod) {
        let view = PodView::of(pod);
        self.ctx.cluster.pods.put(key, view.clone());
        let Some(view) = view else { return };
        let run = Key::new((key.0.clone(), view.run.as_str().into()));
        release_if_left(&key.0, view, self.runs.get(&run).as_deref(), &self.ctx);
        self.runs.wake(&run);
    }

    fn delete(&self, key: &Key) {
        if let Some(view) = self.ctx.cluster.pods.remove(key) {
            self.runs
                .wake(&Key::new((key.0.clone(), view.run.as_str().into())));
        }
    }

    /// Wakes the runs whose pod is missing: it may have come and gone while no watch was open, without an event.
    fn reset(&self) {
        let pod = |run: &TerraformRun| {
            Some((
                run.metadata.namespace.clone()?,
                run.status.as_ref()?.attempt.as_ref()?.pod_name.clone(),
            ))
        };
        let pods = &self.ctx.cluster.pods;
        let is_missing = |run: &TerraformRun| {
            pod(run).is_some_and(|(namespace, name)| pods.get(&namespace, &name).is_none())
        };
        for run in self.runs.all(|run| run.at_hand().is_some_and(is_missing)) {
            self.runs.wake(&run);
        }
    }
}

/// Releases a pod whose run is gone or has a later attempt.
fn release_if_left(namespace: &str, pod: PodView, run: Option<&TerraformRun>, ctx: &Context) {
    if is_left(&pod, run) {
        let_go(namespace.to_owned(), pod, ctx.cluster.clone());
    }
}
