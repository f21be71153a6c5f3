//! Executes decided actions and returns the updated observation.

mod datastore;
mod lock_holder;
mod patch;
pub(super) mod pod;
mod runs;
pub(super) mod status;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Resource as _, ResourceExt,
    api::{DeleteParams, Patch, Preconditions},
};
use serde_json::json;

use super::{
    context::Context,
    decide::{recovery, rerun, state_queue},
    decision::{Action, Kind, Write},
    observe::ahead,
    observed::{LockHolder, Observed, PodState},
    run_view::RunView,
};
use crate::{
    cluster::patch_params,
    error::{Error, ErrorKind},
    gc::delete,
    slots::Slot,
    state_queue::lease::{self, Taken},
};
use crds::{TerraformRun, names, version};
pub(super) use patch::{TRIES, annotate};
use patch::{metadata_patch, take_off};
use status::Basis;

/// The observation after the actions.
pub(super) enum Executed {
    Seen(Box<Observed>),
    /// The run is gone, or about to be.
    Gone,
}

/// Executes the actions in order; the first error ends it. `basis` is set if the previous write failed.
pub(super) async fn execute(
    actions: Vec<Action>,
    mut seen: Observed,
    basis: Option<Basis>,
    ctx: &Context,
) -> Result<Executed, Error> {
    let namespace = seen.run.namespace().unwrap_or_default();
    for action in actions {
        match action {
            // The reconciler has read the run before.
            Action::Read => {}
            Action::AddFinalizer { prove } => {
                let run = seen.run.clone();
                let (probed, added) = tokio::join!(
                    async {
                        if prove {
                            Some(ctx.policies.prove(&namespace, &ctx.cluster).await)
                        } else {
                            None
                        }
                    },
                    add_finalizer(&run, ctx)
                );
                wrote(&mut seen, added?, ctx);
                if let Some(probed) = probed.transpose()? {
                    seen.policies = probed;
                }
            }
            Action::ProbePolicies => {
                seen.policies = ctx.policies.prove(&namespace, &ctx.cluster).await?;
                // A revocation may have changed the run meanwhile.
                seen.run_live = false;
            }
            Action::AskDatastore => datastore::ask(&mut seen, ctx).await,
            Action::AskSource => datastore::ask_source(&mut seen, ctx).await,
            Action::TakeLease { key } => take_lease(&mut seen, key, ctx).await?,
            Action::TakeSlot { class } => {
                if let Some(run) = seen.run.whole() {
                    seen.slot = ctx.slots.take(run, class);
                }
            }
            Action::AskNodes => ask_nodes(&mut seen, ctx).await?,
            Action::ReleaseLock => datastore::release_lock(&mut seen, ctx).await,
            Action::AskLock => ask_lock(&mut seen, ctx).await?,
            Action::Write(mut write) => {
                let (opens, leases) =
                    (write.kind == Kind::Open, write.status.contains_key("lease"));
                let node = write
                    .status
                    .get("attempt")
                    .is_some_and(|attempt| attempt["nodeName"].is_string());
                let basis = basis.unwrap_or(Basis::of(write.kind));
                let pod = if opens {
                    Some(pod::before_opening(&mut seen, &mut write, ctx).await)
                } else {
                    None
                };
                let uses_slot = matches!(seen.slot, Slot::Taken(_)) && (opens || leases);
                let run = if uses_slot {
                    with_slot(&seen.run, &write, basis, ctx).await?
                } else {
                    status::write(&seen.run, &write, basis, ctx).await?
                };
                if node {
                    let number = seen.status().attempt.as_ref().map(|attempt| attempt.number);
                    ctx.memory.update(&run.uid().unwrap_or_default(), |notes| {
                        notes.node_told = number;
                    });
                    seen.notes.node_told = number;
                }
                status::report(&run, write, ctx);
                wrote(&mut seen, run, ctx);
                if uses_slot {
                    seen.slot = Slot::Unasked;
                }
                // A write that tests fields may meet another version of the run than the one for which the lease was taken.
                if leases || basis == Basis::Fields {
                    seen.taken = None;
                }
                if let Some(pod) = pod {
                    (seen.pod, seen.pod_live) = (pod, true);
                }
            }
            Action::CreatePod => {
                if let Some(attempt) = seen.status().attempt.clone()
                    && let Some(pod) = pod::create(&mut seen, &attempt, ctx).await?
                {
                    (seen.pod, seen.pod_live) = (PodState::Present(pod), true);
                }
            }
            Action::TakeOff(keys) => take_off(seen.run.meta(), keys, ctx).await?,
            Action::DeletePod { name, uid } => {
                delete::object::<Pod>("delete pod", &namespace, &name, Some(uid), &ctx.cluster)
                    .await?;
                tracing::info!(pod = name, "pod deleted");
                if let PodState::Present(pod) = &mut seen.pod {
                    pod.deleting = true;
                }
            }
            Action::DeleteAccount { name } => {
                delete::account(&namespace, &name, &ctx.cluster).await?;
            }
            Action::ReleasePod { name, uid, lingers } => {
                delete::release_pod(&namespace, &name, &uid, lingers, &ctx.cluster).await?;
                if let PodState::Present(pod) = &mut seen.pod {
                    pod.held = false;
                }
            }
            Action::Cleanup => {
                let uid = seen.run.uid().unwrap_or_default();
                let (cleaned, leases, ()) = tokio::join!(
                    delete::all_of(&seen.run, &ctx.cluster),
                    lease::remove(&uid, &ctx.cluster),
                    datastore::forget(&seen.run, ctx)
                );
                match cleaned {
                    // The rights of a listed namespace go with it, and so does all that would be deleted.
                    Err(error)
                        if error.kind() == ErrorKind::Forbidden
                            && ctx.cluster.freezes.goes(&namespace) =>
                    {
                        tracing::info!(%error, "left to the deletion of the namespace");
                    }
                    cleaned => cleaned?,
                }
                leases?;
            }
            Action::RemoveFinalizer => {
                let rest: Vec<_> = seen
                    .run
                    .finalizers()
                    .iter()
                    .filter(|f| *f != names::RUN_FINALIZER)
                    .cloned()
                    .collect();
                let patch = metadata_patch(&seen.run, json!({"finalizers": rest}));
                ctx.cluster
                    .call_opt(
                        "remove finalizer",
                        ctx.cluster.runs(&namespace).patch(
                            &seen.run.name_any(),
                            &patch_params(),
                            &Patch::Merge(patch),
                        ),
                    )
                    .await?;
                return Ok(Executed::Gone);
            }
            Action::CreateRerun => {
                runs::create(&seen.run, rerun::fresh_run, names::RERUN_OF, ctx).await?;
            }
            Action::CreateRecovery => {
                runs::create(&seen.run, recovery::fresh_run, names::RECOVERY_OF, ctx).await?;
            }
            Action::Prune => {
                let preconditions = Preconditions {
                    uid: seen.run.uid(),
                    resource_version: seen.run.resource_version(),
                };
                let params = DeleteParams::background().preconditions(preconditions);
                ctx.cluster
                    .call_opt(
                        "delete run",
                        ctx.cluster
                            .runs(&namespace)
                            .delete(&seen.run.name_any(), &params),
                    )
                    .await?;
                tracing::info!("run pruned");
                ctx.events.pruned(&seen.run);
                return Ok(Executed::Gone);
            }
        }
    }
    Ok(Executed::Seen(Box::new(seen)))
}

/// Writes with the slot that is reserved for the run. Retains the slot after an unanswered write, which may still take effect.
async fn with_slot(
    run: &RunView,
    write: &Write,
    basis: Basis,
    ctx: &Context,
) -> Result<TerraformRun, Error> {
    ctx.slots.sends(run, ctx.cluster.now());
    let written = status::write(run, write, basis, ctx).await;
    match &written {
        Ok(run) => ctx.slots.heard(run, Some(version(&run.metadata))),
        Err(error) if error.kind().is_refusal() => ctx.slots.heard(run, None),
        Err(_) => {}
    }
    written
}

/// Takes the lease. The result is valid only for the version of the run that was read, and is not remembered longer.
async fn take_lease(seen: &mut Observed, key: String, ctx: &Context) -> Result<(), Error> {
    let Some(run) = seen.run.whole() else {
        return Ok(());
    };
    let name = ctx
        .cluster
        .settings
        .shared_states
        .lease_name(&run.namespace().unwrap_or_default(), &key);
    let taken = lease::take(run, &name, &ctx.cluster).await?;
    if let Taken::Behind(holder) = &taken {
        ctx.queue.names(&name, holder);
    }
    let waits = state_queue::refused(&taken, key.clone(), ctx.cluster.now());
    seen.taken = waits.is_none().then_some((key, name));
    ctx.memory
        .update(&seen.run.uid().unwrap_or_default(), |notes| {
            notes.waits.clone_from(&waits);
        });
    seen.notes.waits = waits;
    Ok(())
}

async fn ask_nodes(seen: &mut Observed, ctx: &Context) -> Result<(), Error> {
    let Some(run) = seen.run.whole() else {
        return Ok(());
    };
    match lease::node(
        run,
        seen.node_name(),
        seen.status().attempt.as_ref(),
        &ctx.cluster,
    )
    .await?
    {
        Ok(()) => seen.gone_pod_ended = true,
        Err(text) => {
            let asked = Some((ctx.cluster.now(), text));
            ctx.memory
                .update(&seen.run.uid().unwrap_or_default(), |notes| {
                    notes.nodes_asked.clone_from(&asked);
                });
            seen.notes.nodes_asked = asked;
        }
    }
    Ok(())
}

async fn ask_lock(seen: &mut Observed, ctx: &Context) -> Result<(), Error> {
    let Some((run, lock)) = seen.run.whole().zip(seen.status().state_lock.clone()) else {
        return Ok(());
    };
    match Box::pin(lock_holder::left_by(run, &lock, ctx)).await? {
        Ok(holder) => seen.lock_holder = LockHolder::Ended(holder),
        Err(why) => tracing::info!(lock = lock.id, who = lock.who, why, "the lock stays"),
    }
    let asked = Some((lock.id, ctx.cluster.now()));
    ctx.memory
        .update(&seen.run.uid().unwrap_or_default(), |notes| {
            notes.lock_asked.clone_from(&asked);
        });
    seen.notes.lock_asked = asked;
    Ok(())
}

/// The answer to a write is a live read of the run, but not of the pod.
fn wrote(seen: &mut Observed, run: TerraformRun, ctx: &Context) {
    let version = version(&run.metadata);
    ctx.memory.update(&run.uid().unwrap_or_default(), |notes| {
        notes.version = version;
    });
    seen.notes.version = version;
    // The cached run is too small to name its state.
    seen.ahead = ahead(&run, ctx);
    (seen.run, seen.run_live) = (RunView::live(Arc::new(run)), true);
}

/// Adds the finalizer and drops `managedFields` (an empty entry: `design/0002-status-ownership.md`). A status is written a dozen times, and
/// maintaining `managedFields` takes the API server a third of each write and nearly half of the object.
async fn add_finalizer(run: &RunView, ctx: &Context) -> Result<TerraformRun, Error> {
    let mut finalizers = run.finalizers().to_vec();
    finalizers.push(names::RUN_FINALIZER.into());
    let life = json!({names::LIFE: run.uid()});
    let patch = metadata_patch(
        run,
        json!({"finalizers": finalizers, "annotations": life, "managedFields": [{}]}),
    );
    let api = ctx.cluster.runs(&run.namespace().unwrap_or_default());
    ctx.cluster
        .call(
            "add finalizer",
            api.patch(&run.name_any(), &patch_params(), &Patch::Merge(patch)),
        )
        .await
}
