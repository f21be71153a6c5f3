//! What watches of runs and of their pods tell everybody but the loop that looks at runs: the indexes, and whoever lets go of pods that no look
//! at a run will see to. A watch that lists anew has missed what happened meanwhile, ends of runs and of pods among it.

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

/// Where runs are sent that are to be looked at.
pub type Wake = UnboundedSender<ObjectRef<TerraformRun>>;
type Known = Option<Arc<TerraformRun>>;

/// One watch of runs.
pub struct Runs {
    ctx: Arc<Context>,
    wake: Wake,
    plans: Feed,
    line: Feed,
    slots: Feed,
}

impl Runs {
    /// A watch of one namespace, or of all.
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

    /// Takes an event, whole as the API server sent it.
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
            // Nobody listens any more when the controller ends.
            let _ = self.wake.unbounded_send(older);
        }
    }
}

/// The cache has what a listing of runs has shown: looks after pods whose run has gone meanwhile, or come to a later attempt.
pub fn listed(scope: Option<&str>, known: impl Fn(&ObjectRef<TerraformRun>) -> Known, ctx: &Context) {
    for (namespace, pod) in ctx.pods.held(scope) {
        orphaned(namespace, pod, &known, ctx);
    }
}

/// One watch of pods.
pub struct Pods {
    ctx: Arc<Context>,
    wake: Wake,
    feed: Feed,
}

impl Pods {
    /// A watch of one namespace, or of all.
    pub fn new(wake: &Wake, ctx: &Arc<Context>) -> Self {
        Self { feed: ctx.pods.feed(), wake: wake.clone(), ctx: ctx.clone() }
    }

    /// Takes an event. Returns whether it has filled the cache for the first time.
    pub fn handle(&mut self, event: &Event<Pod>, known: impl Fn(&ObjectRef<TerraformRun>) -> Known) -> bool {
        let filled = self.ctx.pods.apply(&mut self.feed, event);
        if let Apply(pod) | InitApply(pod) = event
            && let (Some(namespace), Some(view)) = (pod.namespace(), PodView::of(pod))
        {
            orphaned(namespace, view, known, &self.ctx);
        }
        filled
    }

    /// A listing of pods has ended: of these runs those are looked at whose pod it did not show. It may have come, and gone, while nobody
    /// watched, of which no event tells.
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

/// Looks after a pod whose run the cache does not know, or knows at a later attempt.
fn orphaned(namespace: String, pod: PodView, known: impl Fn(&ObjectRef<TerraformRun>) -> Known, ctx: &Context) {
    let run = known(&ObjectRef::new(&pod.run).within(&namespace));
    if is_left(&pod, run.as_deref()) {
        let_go(namespace, pod, ctx.cluster.clone());
    }
}
