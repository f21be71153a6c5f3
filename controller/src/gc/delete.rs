//! Deletes objects of attempts by UID, so that a recreated object of the same name remains.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    core::v1::ServiceAccount,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, Preconditions},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crds::names;

use crate::{
    cluster::{Cluster, patch_params},
    error::Error,
};

/// Retention of a released pod.
pub(super) const STAYS: SignedDuration = SignedDuration::from_hours(1);

/// Deletes an object with this UID, with background propagation. A missing object is no error.
pub(crate) async fn object<K>(
    what: &'static str,
    namespace: &str,
    name: &str,
    uid: Option<String>,
    ctx: &Cluster,
) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    ctx.call_opt(what, ctx.api::<K>(namespace).delete(name, &of_uid(uid)))
        .await
        .map(drop)
}

fn of_uid(uid: Option<String>) -> DeleteParams {
    DeleteParams::background().preconditions(Preconditions {
        uid,
        resource_version: None,
    })
}

/// The kinds of objects that grant an attempt its rights.
fn rights(namespace: &str, ctx: &Cluster) -> (Api<ServiceAccount>, Api<Role>, Api<RoleBinding>) {
    (ctx.api(namespace), ctx.api(namespace), ctx.api(namespace))
}

/// Deletes ServiceAccount, Role and RoleBinding of an attempt.
pub(crate) async fn account(namespace: &str, name: &str, ctx: &Cluster) -> Result<(), Error> {
    let (accounts, roles, bindings) = rights(namespace, ctx);
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

/// Removes the attempt finalizer from a pod, and marks it as released; keeps other finalizers.
pub(crate) async fn release_pod(
    namespace: &str,
    name: &str,
    uid: &str,
    lingers: bool,
    ctx: &Cluster,
) -> Result<(), Error> {
    let params = patch_params();
    // Usually the only request needed; it fails if the pod was recreated.
    let stayed = if lingers { STAYS } else { SignedDuration::ZERO };
    let now = ctx.now().checked_sub(stayed).unwrap_or(Timestamp::MIN);
    let labels = json!({names::LABEL_RELEASED: now.as_second().to_string()});
    let metadata = json!({"uid": uid, "$deleteFromPrimitiveList/finalizers": [names::POD_FINALIZER], "labels": labels});
    let patch = Patch::Strategic(json!({"metadata": metadata}));
    ctx.call_opt(
        "release pod",
        ctx.pod_api(namespace).patch_metadata(name, &params, &patch),
    )
    .await?;
    ctx.pods.release(namespace, name, uid, now);
    Ok(())
}

/// Deletes all objects of a run except the run: pods individually by UID, the rest by label.
pub(crate) async fn all_of(run: &impl ResourceExt, ctx: &Cluster) -> Result<(), Error> {
    labelled(run, "", false, ctx).await
}

/// Deletes all objects with the labels of an attempt that no process works on. Pods get no grace, so that their names are free at once.
pub(crate) async fn all_of_attempt(
    run: &impl ResourceExt,
    attempt: u32,
    ctx: &Cluster,
) -> Result<(), Error> {
    let of_attempt = format!(",{}={attempt}", names::LABEL_ATTEMPT);
    labelled(run, &of_attempt, true, ctx).await
}

/// Deletes by UID: a request that takes effect late must not delete what was created anew meanwhile.
async fn each<K>(namespace: &str, params: &ListParams, ctx: &Cluster) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let found = ctx
        .call("list rights", ctx.api::<K>(namespace).list_metadata(params))
        .await?;
    for one in &found.items {
        object::<K>("delete rights", namespace, &one.name_any(), one.uid(), ctx).await?;
    }
    Ok(())
}

async fn labelled(
    run: &impl ResourceExt,
    and: &str,
    at_once: bool,
    ctx: &Cluster,
) -> Result<(), Error> {
    let namespace = run.namespace().unwrap_or_default();
    let of_run = ListParams::default().labels(&format!(
        "{}={}{and}",
        names::LABEL_RUN_UID,
        run.uid().unwrap_or_default()
    ));
    let metadata = ctx
        .call("list pods", ctx.pod_api(&namespace).list_metadata(&of_run))
        .await?;
    for pod in &metadata.items {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        if pod.finalizers().iter().any(|f| f == names::POD_FINALIZER) {
            release_pod(&namespace, &name, &uid, false, ctx).await?;
        }
        if at_once || pod.metadata.deletion_timestamp.is_none() {
            let mut params = of_uid(Some(uid));
            params.grace_period_seconds = at_once.then_some(0);
            ctx.call_opt("delete pod", ctx.pod_api(&namespace).delete(&name, &params))
                .await?;
        }
    }
    if at_once {
        each::<RoleBinding>(&namespace, &of_run, ctx).await?;
        each::<Role>(&namespace, &of_run, ctx).await?;
        return each::<ServiceAccount>(&namespace, &of_run, ctx).await;
    }
    let (accounts, roles, bindings) = rights(&namespace, ctx);
    let params = DeleteParams::background();
    let (accounts, roles, bindings) = tokio::join!(
        ctx.call(
            "delete ServiceAccounts",
            accounts.delete_collection(&params, &of_run)
        ),
        ctx.call("delete Roles", roles.delete_collection(&params, &of_run)),
        ctx.call(
            "delete RoleBindings",
            bindings.delete_collection(&params, &of_run)
        ),
    );
    accounts?;
    roles?;
    bindings?;
    Ok(())
}
