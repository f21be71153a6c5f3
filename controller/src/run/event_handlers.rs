//! Handles watch events of runs and pods outside the reconcile loop: updates the indexes, and releases held pods that no reconcile of a run
//! will release. A relist hides what happened before it, including ends of runs and pods.

use std::sync::Arc;

use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    runtime::{
        reflector::ObjectRef,
        watcher::Event::{self, Apply, Delete, InitApply},
    },
};

use crds::TerraformRun;

use super::context::Context;
use crate::{
    cluster::index::Feed,
    gc::pods::{is_left, left_by, let_go},
    runner_pod::status::PodView,
};

/// The channel of runs to reconcile.
pub type Wake = UnboundedSender<ObjectRef<TerraformRun>>;
type Known = Option<Arc<TerraformRun>>;

/// The handler of one watch of runs.
pub struct Runs {
    ctx: Arc<Context>,
    wake: Wake,
    plans: Feed,
    line: Feed,
    slots: Feed,
}

impl Runs {
    /// For a watch of one namespace, or of all (`None`).
    pub fn new(scope: Option<String>, wake: &Wake, ctx: &Arc<Context>) -> Self {
        ctx.nodes.wakes(scope.clone(), wake.clone());
        Self {
            plans: ctx.newer_plans.feed(),
            line: ctx.queue.feed(scope.clone(), wake.clone()),
            slots: ctx.slots.feed(scope, wake.clone()),
            wake: wake.clone(),
            ctx: ctx.clone(),
        }
    }

    /// Handles an event with the untrimmed run.
    pub fn handle(&mut self, event: &Event<TerraformRun>) {
        let ctx = &self.ctx;
        ctx.queue.apply(&mut self.line, event);
        ctx.slots.apply(&mut self.slots, event);
        if let Apply(run) | Delete(run) = event
            && let Some(pod) = left_by(run, matches!(event, Delete(_)), ctx)
        {
            let_go(run.namespace().unwrap_or_default(), pod, ctx.cluster.clone());
        }
        for older in ctx.newer_plans.apply(&mut self.plans, event) {
            // The receiver is gone once the controller stops.
            let _ = self.wake.unbounded_send(older);
        }
    }
}

/// The cache is complete after a listing of runs: releases held pods whose run is gone or has a later attempt.
pub fn listed(scope: Option<&str>, known: impl Fn(&ObjectRef<TerraformRun>) -> Known, ctx: &Context) {
    for (namespace, pod) in ctx.pods.held(scope) {
        orphaned(namespace, pod, &known, ctx);
    }
}

/// The handler of one watch of pods.
pub struct Pods {
    ctx: Arc<Context>,
    wake: Wake,
    feed: Feed,
}

impl Pods {
    /// For a watch of one namespace, or of all.
    pub fn new(wake: &Wake, ctx: &Arc<Context>) -> Self {
        Self { feed: ctx.pods.feed(), wake: wake.clone(), ctx: ctx.clone() }
    }

    /// Handles an event. Returns whether it filled the cache for the first time.
    pub fn handle(&mut self, event: &Event<Pod>, known: impl Fn(&ObjectRef<TerraformRun>) -> Known) -> bool {
        let filled = self.ctx.pods.apply(&mut self.feed, event);
        if let Apply(pod) | InitApply(pod) = event
            && let (Some(namespace), Some(view)) = (pod.namespace(), PodView::of(pod))
        {
            orphaned(namespace, view, known, &self.ctx);
        }
        filled
    }

    /// After a listing of pods: reconciles those of these runs whose pod is missing. The pod may have come and gone while no watch was
    /// open, without an event.
    pub fn listed<'a>(&self, known: impl IntoIterator<Item = &'a TerraformRun>) {
        for run in known {
            let (namespace, attempt) =
                (run.namespace().unwrap_or_default(), run.status.as_ref().and_then(|s| s.attempt.as_ref()));
            if attempt.is_some_and(|attempt| self.ctx.pods.get(&namespace, &attempt.pod_name).is_none()) {
                let _ = self.wake.unbounded_send(ObjectRef::from_obj(run));
            }
        }
    }
}

/// Releases a pod whose run is not in the cache or has a later attempt.
fn orphaned(namespace: String, pod: PodView, known: impl Fn(&ObjectRef<TerraformRun>) -> Known, ctx: &Context) {
    let run = known(&ObjectRef::new(&pod.run).within(&namespace));
    if is_left(&pod, run.as_deref()) {
        let_go(namespace, pod, ctx.cluster.clone());
    }
}
