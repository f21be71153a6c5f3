//! Reads run and pod: from the cache to see whether anything is to be done, live before it is done.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;

use crds::TerraformRun;

use super::{
    Context,
    actions::{Notes, Observed, PodState, PodView, Proof},
    decide::asked,
    lease::{self, Nodes},
    locks::Left,
    node::{self, NodeState},
    start,
};
use crate::{cluster::node_watch, error::Error, runner_pod::account, state_queue::queue::Ahead};

/// The number in a resourceVersion, 0 when it is none.
pub(super) fn version(run: &TerraformRun) -> u64 {
    run.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// From the cache. `None` when the cache does not show this process's own last write yet.
pub(super) fn cached(run: Arc<TerraformRun>, ctx: &Context, now: Timestamp) -> Option<Observed> {
    let uid = run.uid().unwrap_or_default();
    let notes = notes(&run, &uid, ctx, now);
    if version(&run) < notes.version {
        return None;
    }
    let namespace = run.namespace().unwrap_or_default();
    let attempt = run.status.as_ref().and_then(|status| status.attempt.as_ref());
    let pod = match attempt {
        None => PodState::Absent,
        Some(attempt) => match ctx.pods.get(&namespace, &attempt.pod_name) {
            Some(view) => PodState::Present(view),
            None if attempt.open && start::just_created(notes.created, attempt.number, now) => PodState::Unknown,
            None => PodState::Absent,
        },
    };
    let notes = placed(notes, &uid, &pod, ctx);
    let node = node::name(attempt, &pod, &notes).map_or(NodeState::Unknown, |name| ctx.nodes.get(name));
    let gate = ctx.gate.state(&namespace, now);
    let newer = ctx.newer_plans.newer(&uid);
    let (ahead, applied) = (ahead(&run, ctx), ctx.queue.applied_since(&run));
    Some(Observed {
        run,
        run_live: false,
        pod,
        pod_live: false,
        gate,
        gate_live: false,
        notes,
        newer,
        applied,
        proof: Proof::Unknown,
        taken: None,
        ahead,
        node,
        nodes: Nodes::Unknown,
        unlocked: false,
        left: Left::Unknown,
    })
}

/// From the API server. `None` when the run is gone, or another has its name.
pub(super) async fn live(run: &TerraformRun, ctx: &Context) -> Result<Option<Observed>, Error> {
    let (uid, namespace) = (run.uid().unwrap_or_default(), run.namespace().unwrap_or_default());
    let Some(fresh) = ctx.call_opt("read run", ctx.runs(&namespace).get(&run.name_any())).await? else { return Ok(None) };
    if fresh.uid().unwrap_or_default() != uid {
        return Ok(None);
    }
    let attempt = fresh.status.as_ref().and_then(|status| status.attempt.as_ref());
    let pod = match attempt {
        None => PodState::Absent,
        Some(attempt) => match ctx.call_opt("read pod", ctx.pod_api(&namespace).get(&attempt.pod_name)).await? {
            Some(pod) if account::belongs(&pod.metadata, &uid, attempt.number) => {
                PodView::of(&pod).map_or(PodState::Absent, PodState::Present)
            }
            Some(_) | None => PodState::Absent,
        },
    };
    let now = ctx.now();
    let notes = placed(notes(&fresh, &uid, ctx, now), &uid, &pod, ctx);
    // Nothing rests on the node of a run that has ended and given everything back.
    let matters =
        fresh.status.as_ref().is_some_and(|status| status.lease.is_some()) || attempt.is_some_and(|attempt| attempt.open);
    let node = match node::name(attempt, &pod, &notes).filter(|_| matters) {
        Some(name) => node_watch::live(name, attempt.and_then(|attempt| attempt.boot_id.as_deref()), ctx).await?,
        None => NodeState::Unknown,
    };
    let gate = ctx.gate.state(&namespace, now);
    let newer = ctx.newer_plans.newer(&uid);
    let (ahead, applied) = (ahead(&fresh, ctx), ctx.queue.applied_since(&fresh));
    let run = Arc::new(fresh);
    Ok(Some(Observed {
        run,
        run_live: true,
        pod,
        pod_live: true,
        gate,
        gate_live: false,
        notes,
        newer,
        applied,
        proof: Proof::Unknown,
        taken: None,
        ahead,
        node,
        nodes: Nodes::Unknown,
        unlocked: false,
        left: Left::Unknown,
    }))
}

/// Who comes before the run, when it wants a lease, or will as soon as its approval is recorded.
pub(super) fn ahead(run: &TerraformRun, ctx: &Context) -> Option<Ahead> {
    lease::wants(run, true, ctx.settings.has_datastore()).and_then(|want| ctx.queue.ahead(run, &want))
}

/// Remembers where the pod is: one that is gone does not say it any more.
fn placed(mut notes: Notes, uid: &str, pod: &PodState, ctx: &Context) -> Notes {
    if let PodState::Present(PodView { attempt, node: Some(node), .. }) = pod
        && notes.node.as_ref().is_none_or(|(number, name)| number != attempt || name != node)
    {
        notes.node = Some((*attempt, node.clone()));
        ctx.memory.update(uid, |kept| kept.node.clone_from(&notes.node));
    }
    notes
}

/// What is remembered, with the moment at which an end was asked for.
fn notes(run: &TerraformRun, uid: &str, ctx: &Context, now: Timestamp) -> Notes {
    let ended = run.status.as_ref().is_some_and(crds::TerraformRunStatus::is_terminal);
    if !ended && asked(run).is_some() {
        return ctx.memory.update(uid, |notes| {
            notes.asked_at.get_or_insert(now);
            notes.clone()
        });
    }
    ctx.memory.get(uid)
}
