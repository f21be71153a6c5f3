//! Reads run and pod: from the cache to check for work, live before the work is done.

use std::sync::Arc;

use kube::ResourceExt;

use super::{
    context::Context,
    expectations::Notes,
    observed::{Observed, PodState, node_name, own_pod},
    run_view::RunView,
};
use crate::{
    cluster::{node_watch, nodes::NodeState},
    error::Error,
    policies::Enforcement,
    run_requests,
    runner_pod::{account, status::PodView},
    state_queue::{lease_request::requested_lease, queue::Ahead},
};
use crds::{Adopted, Attempt, TerraformRun, version};

/// From the cache. `None` if the cache does not show this process's last write yet.
pub(super) fn cached(run: &TerraformRun, ctx: &Context) -> Option<Observed> {
    let policies = policies(run, ctx);
    let notes = notes(run, ctx);
    if version(&run.metadata) < notes.version {
        return None;
    }
    let (attempt, adopted) = attempt(run);
    let pod = match attempt {
        None => PodState::Absent,
        Some(attempt) => match ctx
            .cluster
            .pods
            .get(&run.namespace().unwrap_or_default(), &attempt.pod_name)
        {
            Some(view) => PodState::Present(view),
            None if attempt.open && notes.just_created(attempt.number, ctx.cluster.now()) => {
                PodState::Unknown
            }
            None => PodState::Absent,
        },
    };
    let own = own_pod(attempt, adopted, &pod);
    let notes = placed(notes, run, own, ctx);
    let node = node_name(attempt, adopted, own, &notes)
        .map_or(NodeState::Unknown, |name| ctx.cluster.nodes.get(name));
    // Without a plan the spec names the run's state, and the cache drops that part.
    let planned = run
        .status
        .as_ref()
        .and_then(|status| status.plan.as_ref())
        .is_some_and(|plan| plan.state_key.is_some());
    let ahead = if planned { ahead(run, ctx) } else { None };
    Some(Observed {
        policies,
        ahead,
        ..observed(run, RunView::cached(run), pod, notes, node, ctx)
    })
}

/// From the API server. `None` if the run is gone or another run has its name.
pub(super) async fn live(run: &TerraformRun, ctx: &Context) -> Result<Option<Observed>, Error> {
    let (uid, namespace) = (
        run.uid().unwrap_or_default(),
        run.namespace().unwrap_or_default(),
    );
    // Before the read: a revocation that ends meanwhile may have changed the run.
    let policies = policies(run, ctx);
    let Some(fresh) = ctx
        .cluster
        .call_opt(
            "read run",
            ctx.cluster.runs(&namespace).get(&run.name_any()),
        )
        .await?
    else {
        return Ok(None);
    };
    if fresh.uid().unwrap_or_default() != uid {
        return Ok(None);
    }
    let (attempt, adopted) = attempt(&fresh);
    let pod = match attempt {
        None => PodState::Absent,
        Some(attempt) => match ctx
            .cluster
            .call_opt(
                "read pod",
                ctx.cluster.pod_api(&namespace).get(&attempt.pod_name),
            )
            .await?
        {
            Some(pod) if account::belongs(&pod.metadata, &uid, attempt.number) => {
                PodView::of(&pod).map_or(PodState::Absent, PodState::Present)
            }
            Some(_) | None => PodState::Absent,
        },
    };
    let own = own_pod(attempt, adopted, &pod);
    let notes = placed(notes(&fresh, ctx), &fresh, own, ctx);
    // The node does not matter once the run has ended and returned its lease.
    let matters = fresh
        .status
        .as_ref()
        .is_some_and(|status| status.lease.is_some())
        || attempt.is_some_and(|attempt| attempt.open);
    let node = match node_name(attempt, adopted, own, &notes).filter(|_| matters) {
        Some(name) => {
            node_watch::live(
                name,
                attempt.and_then(|attempt| attempt.boot_id.as_deref()),
                &ctx.cluster,
            )
            .await?
        }
        None => NodeState::Unknown,
    };
    let (ahead, fresh) = (ahead(&fresh, ctx), Arc::new(fresh));
    let seen = observed(&fresh, RunView::live(fresh.clone()), pod, notes, node, ctx);
    Ok(Some(Observed {
        run_live: true,
        pod_live: true,
        policies,
        ahead,
        ..seen
    }))
}

/// The newest attempt, and the process that adopted an attempt.
fn attempt(run: &TerraformRun) -> (Option<&Attempt>, Option<&Adopted>) {
    run.status.as_ref().map_or((None, None), |status| {
        (status.attempt.as_ref(), status.adopted.as_ref())
    })
}

/// Adds the facts about other runs from the indexes. Facts that need a request stay unknown.
fn observed(
    run: &TerraformRun,
    view: RunView,
    pod: PodState,
    notes: Notes,
    node: NodeState,
    ctx: &Context,
) -> Observed {
    let (slot, slot_wanted) = ctx.slots.look(run);
    Observed {
        pod,
        notes,
        newer: ctx.newer_plans.newer(run),
        applied: ctx.queue.applied_since(run),
        slot,
        slot_wanted,
        frozen: ctx.cluster.freezes.of(&run.namespace().unwrap_or_default()),
        datastore_away: ctx.outage.now(),
        node,
        ..Observed::of(view)
    }
}

/// Whether the policies are proven now.
pub(super) fn policies(run: &TerraformRun, ctx: &Context) -> Enforcement {
    ctx.policies
        .state(&run.namespace().unwrap_or_default(), ctx.cluster.now())
}

/// The runs ahead of this one, if it needs a lease now or as soon as its approval is recorded.
pub(super) fn ahead(run: &TerraformRun, ctx: &Context) -> Option<Ahead> {
    requested_lease(run, true, ctx.cluster.settings.has_datastore())
        .and_then(|want| ctx.queue.ahead(run, &want))
}

/// Remembers the node of the pod, for after the pod is gone.
fn placed(mut notes: Notes, run: &TerraformRun, pod: Option<&PodView>, ctx: &Context) -> Notes {
    if let Some(PodView {
        attempt,
        node: Some(node),
        ..
    }) = pod
        && notes
            .node
            .as_ref()
            .is_none_or(|(number, name)| number != attempt || name != node)
    {
        notes.node = Some((*attempt, node.clone()));
        ctx.memory.update(&run.uid().unwrap_or_default(), |kept| {
            kept.node.clone_from(&notes.node);
        });
    }
    notes
}

/// The notes, with the time of a first observed request to end.
fn notes(run: &TerraformRun, ctx: &Context) -> Notes {
    let (uid, now) = (run.uid().unwrap_or_default(), ctx.cluster.now());
    let ended = run
        .status
        .as_ref()
        .is_some_and(crds::TerraformRunStatus::is_terminal);
    if !ended && run_requests::asked(run).is_some() {
        return ctx.memory.update(&uid, |notes| {
            notes.asked_at.get_or_insert(now);
            notes.clone()
        });
    }
    ctx.memory.get(&uid)
}
