//! Finds the process that left the lock of a state. Reads live: removing the lock of a live process costs the state.

use std::sync::PoisonError;

use kube::ResourceExt;

use crds::{Attempt, StateLock, TerraformRun, TerraformRunStatus, reason};

use crate::{
    cluster::{node_watch, nodes::over},
    error::Error,
    run::{context::Context, decide::stale_lock, observed::PodState},
    runner_pod::{
        account,
        status::{Ended, PodView},
    },
    state_queue::lease,
};

/// `Ok` with the owner of the lock if its process has ended for certain, otherwise the reason why the lock remains.
///
/// # Errors
/// A request failed, or its answer proves nothing.
pub(super) async fn left_by(
    run: &TerraformRun,
    lock: &StateLock,
    ctx: &Context,
) -> Result<Result<String, String>, Error> {
    let Some((name, hash, number)) = stale_lock::pod_of(lock) else {
        return Ok(Err("its holder is not a pod of Pawl".to_owned()));
    };
    let Some(holder) = find(run, name, hash, ctx).await? else {
        return Ok(Err(format!("there is no run {name} of that pod")));
    };
    let (namespace, uid) = (
        holder.namespace().unwrap_or_default(),
        holder.uid().unwrap_or_default(),
    );
    let attempt = holder
        .status
        .as_ref()
        .and_then(|status| status.attempt.as_ref())
        .filter(|attempt| attempt.number == number);
    let pod = crds::names::attempt_name(name, &uid, number);
    let pod = match ctx
        .cluster
        .call_opt(
            "read the lock holder's pod",
            ctx.cluster.pod_api(&namespace).get(&pod),
        )
        .await?
    {
        Some(pod) if account::belongs(&pod.metadata, &uid, number) => match PodView::of(&pod) {
            Some(view) => PodState::Present(judged(view, attempt, ctx).await?),
            None => PodState::Unknown,
        },
        Some(_) => PodState::Unknown,
        None => PodState::Absent,
    };
    let recorded = holder
        .status
        .as_ref()
        .and_then(|status| recorded(status, number));
    let pod = match pod {
        PodState::Present(pod) if recorded != Some(&pod.uid) => PodState::Absent,
        pod => pod,
    };
    let whose = match stale_lock::is_over(&holder, number, &pod, ctx.cluster.now()) {
        Err(why) => return Ok(Err(why)),
        Ok(stale_lock::Over::Ended(whose)) => whose,
        Ok(stale_lock::Over::Gone(whose)) => {
            match lease::node(
                &holder,
                stale_lock::node_of(&holder, number),
                attempt,
                &ctx.cluster,
            )
            .await?
            {
                Ok(()) => whose,
                Err(why) => return Ok(Err(why)),
            }
        }
    };
    if let Some(other) = told(run, lock, ctx).await? {
        return Ok(Err(format!("{other} releases it")));
    }
    Ok(Ok(whose))
}

/// The UID of that attempt's pod.
fn recorded(status: &TerraformRunStatus, number: u32) -> Option<&str> {
    let attempt = status.attempt.as_ref()?;
    if attempt.number == number {
        return attempt.pod(status.adopted.as_ref());
    }
    let mut former = attempt.former.iter();
    former
        .find(|former| former.number == number)?
        .pod_uid
        .as_deref()
}

/// Marks a pod as ended if its node proves the end and the pod itself cannot report it.
async fn judged(
    mut pod: PodView,
    attempt: Option<&Attempt>,
    ctx: &Context,
) -> Result<PodView, Error> {
    if let (Some(node), None) = (&pod.node, &pod.ended) {
        let state = node_watch::live(
            node,
            attempt.and_then(|attempt| attempt.boot_id.as_deref()),
            &ctx.cluster,
        )
        .await?;
        pod.ended = over(node, attempt, &state).map(|text| Ended {
            message: None,
            reason: reason::POD_LOST,
            text,
        });
    }
    Ok(pod)
}

/// The run of that name and hash, in a namespace that shares states with the namespace of `run`. The lock's text comes from the backend,
/// which the author of the spec chooses: a wider search would reveal other tenants' runs.
async fn find(
    run: &TerraformRun,
    name: &str,
    hash: &str,
    ctx: &Context,
) -> Result<Option<TerraformRun>, Error> {
    let (own, scopes) = (
        run.namespace().unwrap_or_default(),
        ctx.cluster.settings.scopes(),
    );
    let watched = |namespace: &str| {
        scopes
            .iter()
            .any(|scope| scope.as_deref().is_none_or(|scope| scope == namespace))
    };
    for namespace in ctx
        .cluster
        .settings
        .shared_states
        .group(&own)
        .into_iter()
        .filter(|namespace| watched(namespace))
    {
        let found = ctx
            .cluster
            .call_opt(
                "read the lock holder's run",
                ctx.cluster.runs(namespace).get(name),
            )
            .await?;
        if let Some(run) = found.filter(|run| stale_lock::is_run(run, name, hash)) {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// Another run that was told to release this lock and may still do so; `None` registers this run as the one that releases it.
async fn told(
    run: &TerraformRun,
    lock: &StateLock,
    ctx: &Context,
) -> Result<Option<String>, Error> {
    let own = (
        run.namespace().unwrap_or_default(),
        run.name_any(),
        run.uid().unwrap_or_default(),
    );
    // The ID comes from the backend too. The scope keeps a forged ID from blocking other tenants' runs.
    let id = format!(
        "{}/{}",
        ctx.cluster.settings.shared_states.scope(&own.0),
        lock.id
    );
    let before = ctx
        .released
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&id)
        .cloned();
    if let Some((namespace, name, uid)) = before.filter(|before| *before != own) {
        let other = ctx
            .cluster
            .call_opt(
                "read the run that releases the lock",
                ctx.cluster.runs(&namespace).get(&name),
            )
            .await?;
        let works = other
            .filter(|other| other.uid().as_deref() == Some(&uid))
            .and_then(|other| other.status)
            .is_some_and(|status| {
                status.attempt.is_some_and(|attempt| attempt.open)
                    && status.state_lock.is_some_and(|waits| waits.id == lock.id)
            });
        if works {
            return Ok(Some(format!("{namespace}/{name}")));
        }
    }
    let mut released = ctx
        .released
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if released.len() >= 1000 {
        released.clear();
    }
    released.insert(id, own);
    Ok(None)
}
