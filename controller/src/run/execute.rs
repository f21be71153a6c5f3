//! Carries out what was decided, and returns what is known afterwards.

mod stale_lock;

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Namespace, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

use crds::{Attempt, TerraformRun, names, reason, text::clip};

use super::{
    Context,
    actions::{Action, Kind, Observed, PodState, PodView, Trouble, Write},
    decide::{recovery, rerun},
    lease::{self, Nodes},
    locks::Left,
    node,
    observe::{ahead, version},
    start, stored, tested, void,
};
use crate::{
    error::{Error, ErrorKind},
    gc::delete,
    runner_pod::{
        self, Handout,
        account::{self, Account},
        tools,
    },
    state_queue::lease as leases,
};

/// What is known afterwards.
pub(super) enum Outcome {
    /// This.
    Seen(Box<Observed>),
    /// The run is gone, or about to.
    Gone,
}

/// Carries out the actions in their order; the first error ends it. A run that is `contended` changed under the write before this one.
pub(super) async fn execute(actions: Vec<Action>, mut seen: Observed, contended: bool, ctx: &Context) -> Result<Outcome, Error> {
    let namespace = seen.run.namespace().unwrap_or_default();
    for action in actions {
        match action {
            Action::AddFinalizer { prove } => {
                let run = seen.run.clone();
                let (gate, added) = tokio::join!(
                    async { if prove { Some(ctx.gate.prove(&namespace, ctx).await) } else { None } },
                    add_finalizer(&run, ctx)
                );
                wrote(&mut seen, added?, ctx);
                if let Some(gate) = gate.transpose()? {
                    (seen.gate, seen.gate_live) = (gate, true);
                }
            }
            Action::ProveGate => {
                (seen.gate, seen.gate_live) = (ctx.gate.prove(&namespace, ctx).await?, true);
                // What stood on it may have been taken away.
                seen.run_live = false;
            }
            Action::AskProof => stored::ask_proof(&mut seen, ctx).await,
            Action::TakeLease { key } => take_lease(&mut seen, key, ctx).await?,
            Action::AskNodes => ask_nodes(&mut seen, ctx).await?,
            Action::ReleaseLock => stored::release_lock(&mut seen, ctx).await,
            Action::AskLock => ask_lock(&mut seen, ctx).await?,
            Action::Write(write) => {
                let (opens, leases) = (write.kind == Kind::Open, write.status.contains_key("lease"));
                let node = write.status.get("attempt").is_some_and(|attempt| attempt["nodeName"].is_string());
                let run = write_status(&seen.run, &write, contended, ctx).await?;
                if node {
                    let number = seen.status().attempt.as_ref().map(|attempt| attempt.number);
                    ctx.memory.update(&run.uid().unwrap_or_default(), |notes| notes.node_told = number);
                    seen.notes.node_told = number;
                }
                report(&run, write, ctx);
                wrote(&mut seen, run, ctx);
                // Under tests of fields the run may be another version than the one that the lease was taken for.
                if leases || contended {
                    seen.taken = None;
                }
                if opens {
                    // Nobody has created the pod of an attempt that was opened just now.
                    (seen.pod, seen.pod_live) = (PodState::Absent, true);
                }
            }
            Action::CreatePod => create_pod(&mut seen, ctx).await?,
            Action::TakeOff(keys) => void::take_off(&seen.run.metadata, keys, ctx).await?,
            Action::DeletePod { name, uid } => {
                let preconditions = Preconditions { uid: Some(uid), resource_version: None };
                let params = DeleteParams::default().preconditions(preconditions);
                ctx.call_opt("delete pod", ctx.pod_api(&namespace).delete(&name, &params)).await?;
                tracing::info!(pod = name, "pod deleted");
                if let PodState::Present(pod) = &mut seen.pod {
                    pod.deleting = true;
                }
            }
            Action::DeleteAccount { name } => delete::account(&namespace, &name, ctx).await?,
            Action::ReleasePod { name, uid } => {
                delete::release_pod(&namespace, &name, &uid, ctx).await?;
                if let PodState::Present(pod) = &mut seen.pod {
                    pod.held = false;
                }
            }
            Action::Cleanup => {
                let (cleaned, leases, ()) =
                    tokio::join!(delete::all_of(&seen.run, ctx), leases::remove(&seen.run, ctx), stored::forget(&seen.run, ctx));
                cleaned?;
                leases?;
            }
            Action::RemoveFinalizer => {
                let rest: Vec<_> = seen.run.finalizers().iter().filter(|f| *f != names::RUN_FINALIZER).cloned().collect();
                let patch = metadata_patch(&seen.run, json!({"finalizers": rest}));
                ctx.call_opt(
                    "remove finalizer",
                    ctx.runs(&namespace).patch(&seen.run.name_any(), &params(), &Patch::Merge(patch)),
                )
                .await?;
                return Ok(Outcome::Gone);
            }
            Action::CreateRerun => create_run(&seen.run, &rerun::fresh_run(&seen.run), ctx).await?,
            Action::CreateRecovery => create_run(&seen.run, &recovery::fresh_run(&seen.run), ctx).await?,
            Action::Prune => {
                let preconditions =
                    Preconditions { uid: seen.run.uid(), resource_version: seen.run.metadata.resource_version.clone() };
                let params = DeleteParams::background().preconditions(preconditions);
                ctx.call_opt("prune run", ctx.runs(&namespace).delete(&seen.run.name_any(), &params)).await?;
                tracing::info!("run pruned");
                ctx.events.pruned(&seen.run);
                return Ok(Outcome::Gone);
            }
        }
    }
    Ok(Outcome::Seen(Box::new(seen)))
}

/// What was taken is known of the run as it was read, and no longer than that: it is not remembered.
async fn take_lease(seen: &mut Observed, key: String, ctx: &Context) -> Result<(), Error> {
    let name = ctx.settings.shared_states.lease_name(&seen.run.namespace().unwrap_or_default(), &key);
    let taken = leases::take(&seen.run, &name, ctx).await?;
    let waits = lease::refused(&taken, key.clone(), ctx.now());
    seen.taken = waits.is_none().then_some((key, name));
    ctx.memory.update(&seen.run.uid().unwrap_or_default(), |notes| notes.waits.clone_from(&waits));
    seen.notes.waits = waits;
    Ok(())
}

async fn ask_nodes(seen: &mut Observed, ctx: &Context) -> Result<(), Error> {
    match leases::node(&seen.run, node::name_of(seen), ctx).await? {
        Ok(()) => seen.nodes = Nodes::Quiet,
        Err(text) => {
            let asked = Some((ctx.now(), text));
            ctx.memory.update(&seen.run.uid().unwrap_or_default(), |notes| notes.nodes_asked.clone_from(&asked));
            seen.notes.nodes_asked = asked;
        }
    }
    Ok(())
}

async fn ask_lock(seen: &mut Observed, ctx: &Context) -> Result<(), Error> {
    let Some(lock) = seen.status().state_lock.clone() else { return Ok(()) };
    match Box::pin(stale_lock::left_by(&seen.run, &lock, ctx)).await? {
        Ok(holder) => seen.left = Left::Behind(holder),
        Err(why) => tracing::info!(lock = lock.id, who = lock.who, why, "the lock stays"),
    }
    let asked = Some((lock.id, ctx.now()));
    ctx.memory.update(&seen.run.uid().unwrap_or_default(), |notes| notes.lock_asked.clone_from(&asked));
    seen.notes.lock_asked = asked;
    Ok(())
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() }
}

fn create_params() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(names::CONTROLLER_MANAGER.into()) }
}

/// The answer to a write is a live read of the run; of the pod it says nothing.
fn wrote(seen: &mut Observed, run: TerraformRun, ctx: &Context) {
    let version = version(&run);
    ctx.memory.update(&run.uid().unwrap_or_default(), |notes| notes.version = version);
    seen.notes.version = version;
    // The cached run is small, and does not say which state it is of.
    seen.ahead = ahead(&run, ctx);
    (seen.run, seen.run_live) = (Arc::new(run), true);
}

fn metadata_patch(run: &TerraformRun, mut metadata: Value) -> Value {
    metadata["uid"] = json!(run.metadata.uid);
    metadata["resourceVersion"] = json!(run.metadata.resource_version);
    json!({"metadata": metadata})
}

async fn add_finalizer(run: &TerraformRun, ctx: &Context) -> Result<TerraformRun, Error> {
    let mut finalizers = run.finalizers().to_vec();
    finalizers.push(names::RUN_FINALIZER.into());
    let life = json!({names::LIFE: run.uid()});
    let patch = metadata_patch(run, json!({"finalizers": finalizers, "annotations": life}));
    let api = ctx.runs(&run.namespace().unwrap_or_default());
    ctx.call("add finalizer", api.patch(&run.name_any(), &params(), &Patch::Merge(patch))).await
}

async fn write_status(run: &TerraformRun, write: &Write, contended: bool, ctx: &Context) -> Result<TerraformRun, Error> {
    let api = ctx.runs(&run.namespace().unwrap_or_default());
    if let Some(operations) = contended.then(|| tested::operations(run, write)).flatten() {
        let patch = serde_json::from_value(Value::Array(operations));
        let patch = patch.map_err(|source| Error::Encode { what: "write status", source })?;
        return ctx.call("write status", api.patch_status(&run.name_any(), &params(), &Patch::Json::<()>(patch))).await;
    }
    let mut patch = metadata_patch(run, json!({}));
    patch["status"] = Value::Object(write.status.clone());
    ctx.call("write status", api.patch_status(&run.name_any(), &params(), &Patch::Merge(patch))).await
}

/// Log, metrics and Events of a write that succeeded.
pub(super) fn report(run: &TerraformRun, write: Write, ctx: &Context) {
    match write.kind {
        Kind::Open => {
            ctx.metrics.attempt_opened();
            tracing::info!("attempt opened");
        }
        Kind::Close => tracing::info!("attempt closed"),
        Kind::End => tracing::info!("run ended"),
        Kind::Approval => tracing::info!("approval settled"),
        Kind::Settled => tracing::info!("settled"),
        Kind::Begin | Kind::Start | Kind::Conditions | Kind::Gone | Kind::Rerun | Kind::Journal | Kind::Lease | Kind::Lock => {
            tracing::debug!(kind = ?write.kind, "status written");
        }
    }
    if let Some((operation, result)) = write.finished {
        ctx.metrics.run_finished(operation, result);
        stored::drop_bundles(run, ctx);
    }
    ctx.events.publish(run, write.notes);
}

/// Creates a run that was made from another, with what its spec has beyond what this version knows: a field that were dropped
/// here would make it a run of another spec.
async fn create_run(old: &TerraformRun, fresh: &TerraformRun, ctx: &Context) -> Result<(), Error> {
    let what = "create run";
    let encode = |source| Error::Encode { what, source };
    let resource = ApiResource::erase::<TerraformRun>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(ctx.client.clone(), &fresh.namespace().unwrap_or_default(), &resource);
    let whole = ctx.call("read run", api.get(&old.name_any())).await?;
    let mut wanted = serde_json::to_value(fresh).map_err(encode)?;
    if whole.uid() == old.uid() {
        wanted["spec"] = rerun::carried(&whole.data["spec"], &old.spec, &fresh.spec).map_err(encode)?;
    }
    let wanted: DynamicObject = serde_json::from_value(wanted).map_err(encode)?;
    already(ctx.call(what, api.create(&PostParams::default(), &wanted)).await).map(drop)
}

/// "It exists already" is success for objects whose names are ours.
fn already<T>(created: Result<T, Error>) -> Result<Option<T>, Error> {
    match created {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// Account first, as the API server refuses a pod whose ServiceAccount is missing; the rights at the same time.
async fn create_pod(seen: &mut Observed, ctx: &Context) -> Result<(), Error> {
    let Some(attempt) = seen.status().attempt.clone() else { return Ok(()) };
    let number = attempt.number;
    let uid = seen.run.uid().unwrap_or_default();
    match Box::pin(try_create(&seen.run, &attempt, ctx)).await {
        Ok(view) => {
            tracing::info!(pod = view.name, "pod created");
            let created = Some((number, ctx.now()));
            ctx.memory.update(&uid, |notes| (notes.created, notes.refused) = (created, None));
            (seen.notes.created, seen.notes.refused) = (created, None);
            (seen.pod, seen.pod_live) = (PodState::Present(view), true);
            Ok(())
        }
        Err(error) => {
            let named = seen.run.spec.runner.account(attempt.restores.is_some());
            let Some(trouble) = refusal(&error, &seen.run.namespace().unwrap_or_default(), named) else { return Err(error) };
            tracing::warn!(%error, "pod refused");
            let refused = ctx.memory.update(&uid, |notes| {
                let refused = start::refused_again(notes.refused.as_ref(), number, trouble, ctx.now());
                notes.refused = Some(refused.clone());
                refused
            });
            seen.notes.refused = Some(refused);
            Ok(())
        }
    }
}

async fn try_create(run: &TerraformRun, attempt: &Attempt, ctx: &Context) -> Result<PodView, Error> {
    let number = attempt.number;
    let namespace = run.namespace().unwrap_or_default();
    let Account { service_account, role, binding } = account::account(run, attempt);
    let params = create_params();
    let datastore = ctx.datastore.as_ref().map(|datastore| Handout::of(datastore)).transpose()?;
    let pod = async {
        if let Some(account) = &service_account {
            let api: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &namespace);
            already(ctx.call("create ServiceAccount", api.create(&params, account)).await)?;
        }
        let api = ctx.pod_api(&namespace);
        let mut wanted = runner_pod::runner_pod(run, attempt, &ctx.settings, datastore.as_ref());
        let wished = &ctx.settings.runner_tools;
        let nodes = wished.cache.host_path.is_some() && {
            let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
            tools::may_mount_nodes(&ctx.call("read namespace", namespaces.get(&namespace)).await?)
        };
        tools::equip(&mut wanted, wished, nodes);
        match already(ctx.call("create pod", api.create(&params, &wanted)).await)? {
            Some(pod) => Ok(pod),
            None => ctx.call("read pod", api.get(&wanted.name_any())).await,
        }
    };
    // The API server looks into the role before it lets anybody bind it.
    let rights = async {
        let roles: Api<Role> = Api::namespaced(ctx.client.clone(), &namespace);
        let bindings: Api<RoleBinding> = Api::namespaced(ctx.client.clone(), &namespace);
        already(ctx.call("create Role", roles.create(&params, &role)).await)?;
        already(ctx.call("create RoleBinding", bindings.create(&params, &binding)).await)
    };
    let (pod, rights) = tokio::join!(pod, rights);
    rights?;
    let pod = pod?;
    let foreign = || Error::Foreign { kind: "pod", name: pod.name_any() };
    if !account::belongs(&pod.metadata, &run.uid().unwrap_or_default(), number) {
        return Err(foreign());
    }
    PodView::of(&pod).ok_or_else(foreign)
}

/// A refusal that only a person or time can change, by its reason; `account` is the one that the run names for the pod. Anything
/// else says nothing.
pub(super) fn refusal(error: &Error, namespace: &str, account: Option<&str>) -> Option<Trouble> {
    let trouble = |reason, text: &str| Some(Trouble { reason, text: clip(text, 400) });
    match error.kind() {
        ErrorKind::Forbidden | ErrorKind::Invalid => {
            let status = error.status()?;
            if status.code == 401 {
                return None;
            }
            // The API server has no reason of its own for either.
            let says = |text: &str| status.code == 403 && status.message.contains(text);
            match account {
                Some(name) if says("error looking up service account") && says("not found") => trouble(
                    reason::SERVICE_ACCOUNT_NOT_FOUND,
                    &format!("there is no ServiceAccount {name} in namespace {namespace}"),
                ),
                _ if says("exceeded quota") => trouble(reason::QUOTA_EXCEEDED, &status.message),
                _ => trouble(reason::POD_REJECTED, &status.message),
            }
        }
        ErrorKind::Internal => trouble(reason::POD_REJECTED, &error.to_string()),
        ErrorKind::Conflict
        | ErrorKind::AlreadyExists
        | ErrorKind::NotFound
        | ErrorKind::Throttled
        | ErrorKind::Server
        | ErrorKind::Timeout
        | ErrorKind::Transport => None,
    }
}
