//! The pod of an attempt, with its account: made and taken away.

use k8s_openapi::api::{
    core::v1::{Namespace, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PostParams, Preconditions},
};
use serde_json::json;

use super::patch::{already, params};
use crate::{
    account::{self, Account},
    error::{Error, ErrorKind},
    pod,
    run::{
        context::Context,
        decide::begin::refused_again,
        observed::Observed,
        pod_status::{PodState, PodView, Trouble},
        run_view::RunView,
    },
};
use crds::{Attempt, TerraformRun, names, reason, termination::clip};

/// Account first, as the API server refuses a pod whose ServiceAccount is missing; the rights at the same time.
pub(super) async fn create(seen: &mut Observed, ctx: &Context) -> Result<(), Error> {
    let Some((run, attempt)) = seen.run.whole().zip(seen.status().attempt.clone()) else { return Ok(()) };
    let number = attempt.number;
    let uid = run.uid().unwrap_or_default();
    match Box::pin(try_create(run, &attempt, ctx)).await {
        Ok(view) => {
            tracing::info!(pod = view.name, "pod created");
            let created = Some((number, ctx.now()));
            ctx.memory.update(&uid, |notes| (notes.created, notes.refused) = (created, None));
            (seen.notes.created, seen.notes.refused) = (created, None);
            (seen.pod, seen.pod_live) = (PodState::Present(view), true);
            Ok(())
        }
        Err(error) => {
            let named = run.spec.runner.account(attempt.restores.is_some());
            let Some(trouble) = refusal(&error, &run.namespace().unwrap_or_default(), named) else { return Err(error) };
            tracing::warn!(%error, "pod refused");
            let refused = ctx.memory.update(&uid, |notes| {
                let refused = refused_again(notes.refused.as_ref(), number, trouble, ctx.now());
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
    let datastore = ctx.datastore.as_ref().map(|datastore| datastore.handout()).transpose()?;
    let pod = async {
        if let Some(account) = &service_account {
            let api: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &namespace);
            already(ctx.call("create ServiceAccount", api.create(&params, account)).await)?;
        }
        let api = ctx.pod_api(&namespace);
        let mut wanted = pod::runner_pod(run, attempt, &ctx.settings, datastore.as_ref());
        let tools = &ctx.settings.runner_tools;
        let nodes = tools.cache.host_path.is_some() && {
            let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
            pod::tools::may_mount_nodes(&ctx.call("read namespace", namespaces.get(&namespace)).await?)
        };
        pod::tools::equip(&mut wanted, tools, nodes);
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
pub(in crate::run) fn refusal(error: &Error, namespace: &str, account: Option<&str>) -> Option<Trouble> {
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

pub(in crate::run) async fn delete_account(namespace: &str, name: &str, ctx: &Context) -> Result<(), Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), namespace);
    let roles: Api<Role> = Api::namespaced(ctx.client.clone(), namespace);
    let bindings: Api<RoleBinding> = Api::namespaced(ctx.client.clone(), namespace);
    let params = DeleteParams::background();
    let (account, role, binding) = tokio::join!(
        ctx.call_opt("delete ServiceAccount", accounts.delete(name, &params)),
        ctx.call_opt("delete Role", roles.delete(name, &params)),
        ctx.call_opt("delete RoleBinding", bindings.delete(name, &params)),
    );
    account?;
    role?;
    binding?;
    Ok(())
}

/// Takes our finalizer from a pod; other finalizers are others' business.
pub(in crate::run) async fn release(namespace: &str, name: &str, uid: &str, ctx: &Context) -> Result<(), Error> {
    let api = ctx.pod_api(namespace);
    // Almost always the only one: one request, which fails when it is not as expected.
    let patch = json!({"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [names::POD_FINALIZER]}});
    ctx.call_opt("release pod", api.patch_metadata(name, &params(), &Patch::Strategic(patch))).await?;
    ctx.pods.release(namespace, name, uid);
    Ok(())
}

/// Deletes a pod, when it is still that one.
pub(in crate::run) async fn delete(namespace: &str, name: &str, uid: String, ctx: &Context) -> Result<(), Error> {
    let preconditions = Preconditions { uid: Some(uid), resource_version: None };
    let params = DeleteParams::background().preconditions(preconditions);
    ctx.call_opt("delete pod", ctx.pod_api(namespace).delete(name, &params)).await.map(drop)
}

/// Everything of the run but the run: pods one by one with their UID, then the rest by label.
pub(super) async fn cleanup(run: &RunView, ctx: &Context) -> Result<(), Error> {
    let namespace = run.namespace().unwrap_or_default();
    let of_run = ListParams::default().labels(&format!("{}={}", names::LABEL_RUN_UID, run.uid().unwrap_or_default()));
    let pods = ctx.pod_api(&namespace);
    let metadata = ctx.call("list pods", pods.list_metadata(&of_run)).await?;
    for pod in &metadata.items {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        if pod.finalizers().iter().any(|f| f == names::POD_FINALIZER) {
            release(&namespace, &name, &uid, ctx).await?;
        }
        if pod.metadata.deletion_timestamp.is_none() {
            delete(&namespace, &name, uid, ctx).await?;
        }
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &namespace);
    let roles: Api<Role> = Api::namespaced(ctx.client.clone(), &namespace);
    let bindings: Api<RoleBinding> = Api::namespaced(ctx.client.clone(), &namespace);
    let params = DeleteParams::background();
    let (accounts, roles, bindings) = tokio::join!(
        ctx.call("delete ServiceAccounts", accounts.delete_collection(&params, &of_run)),
        ctx.call("delete Roles", roles.delete_collection(&params, &of_run)),
        ctx.call("delete RoleBindings", bindings.delete_collection(&params, &of_run)),
    );
    accounts?;
    roles?;
    bindings?;
    Ok(())
}

fn create_params() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(names::CONTROLLER_MANAGER.into()) }
}
