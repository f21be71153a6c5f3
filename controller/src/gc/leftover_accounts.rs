//! Deletes leftover rights of attempts. A creation may take effect after its attempt was closed or its run deleted,
//! when no reconcile follows. No token can use such rights, because tokens are bound to pods, but they accumulate.

use std::{collections::HashMap, fmt::Debug, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::api::{
    core::v1::ServiceAccount,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Resource, ResourceExt,
    api::ListParams,
    core::{NamespaceResourceScope, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use serving::call::after;
use tokio::sync::watch;

use crds::{TerraformRun, names};

use super::{delete, owner};
use crate::{cluster::Cluster, error::Error};

/// Interval of sweeps. The first is at the start, because the previous process may have died during a creation.
const EVERY: Duration = Duration::from_secs(3600);
/// Minimum age: younger objects may belong to an attempt that is being opened.
pub const SETTLED: SignedDuration = SignedDuration::from_mins(10);
/// Page size of lists.
const PAGE: u32 = 500;

/// Sweeps a namespace, or all, until `stop`.
pub async fn run(
    scope: Option<String>,
    ctx: std::sync::Arc<Cluster>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        if let Err(error) = once(scope.as_deref(), &ctx).await {
            tracing::warn!(%error, "the sweep for leftover rights of attempts failed; it is repeated in an hour");
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// Deletes the ServiceAccounts, Roles and RoleBindings of closed attempts and deleted runs. Returns their number.
///
/// # Errors
/// When the API server does not respond or refuses. Objects found until then are deleted.
pub async fn once(scope: Option<&str>, ctx: &Cluster) -> Result<usize, Error> {
    let mut runs = HashMap::new();
    // Delete rights before the accounts that have them.
    let bindings = of_kind::<RoleBinding>("RoleBindings", scope, &mut runs, ctx).await?;
    let roles = of_kind::<Role>("Roles", scope, &mut runs, ctx).await?;
    let accounts = of_kind::<ServiceAccount>("ServiceAccounts", scope, &mut runs, ctx).await?;
    Ok(bindings + roles + accounts)
}

/// Runs already read, by namespace and name.
type Runs = HashMap<(String, String), Option<TerraformRun>>;

async fn of_kind<K>(
    kind: &'static str,
    scope: Option<&str>,
    runs: &mut Runs,
    ctx: &Cluster,
) -> Result<usize, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let every: Api<K> = ctx.scoped(scope);
    let ours = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGED_BY);
    let mut next = Some(ListParams::default().labels(&ours).limit(PAGE));
    let mut removed = 0;
    while let Some(params) = next {
        let page = ctx
            .call(
                "list what attempts were given",
                every.list_metadata(&params),
            )
            .await?;
        next = after(&params, &page.metadata);
        for object in &page.items {
            if !is_forgotten(object, runs, ctx).await? {
                continue;
            }
            let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
            delete::object::<K>(
                "delete what an attempt was given",
                &namespace,
                &name,
                object.uid(),
                ctx,
            )
            .await?;
            tracing::info!(kind, namespace, name, "leftover rights were deleted");
            removed += 1;
        }
    }
    Ok(removed)
}

/// Whether an object's attempt is closed, or its run gone, by a live read.
async fn is_forgotten<K>(
    object: &PartialObjectMeta<K>,
    runs: &mut Runs,
    ctx: &Cluster,
) -> Result<bool, Error> {
    let label = |name: &str| {
        object
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(name))
    };
    // Other managed objects, such as the chart's, belong to no attempt.
    let Some(((run, uid), attempt)) = label(names::LABEL_RUN)
        .zip(label(names::LABEL_RUN_UID))
        .zip(label(names::LABEL_ATTEMPT))
    else {
        return Ok(false);
    };
    let created = object
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(jiff::Timestamp::MAX, |time| time.0);
    if created
        .checked_add(SETTLED)
        .is_ok_and(|settled| settled > ctx.now())
    {
        return Ok(false);
    }
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let key = (namespace, run.clone());
    if !runs.contains_key(&key) {
        let read = ctx.call_opt("read run", ctx.runs(&key.0).get(run)).await?;
        runs.insert(key.clone(), read);
    }
    Ok(is_over(
        uid,
        attempt,
        runs.get(&key).and_then(Option::as_ref),
    ))
}

/// Whether an attempt of the run with this UID is closed, or that run is gone. `there` is the run that has the name now.
fn is_over(run_uid: &str, attempt: &str, there: Option<&TerraformRun>) -> bool {
    let Some(run) = owner(run_uid, there) else {
        return true;
    };
    // A run with an unknown value belongs to a newer version.
    let open = run
        .status
        .as_ref()
        .and_then(|status| status.attempt.as_ref())
        .filter(|attempt| attempt.open);
    run.unknown_word().is_none() && open.is_none_or(|open| open.number.to_string() != attempt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{Attempt, TerraformRunStatus};

    #[test]
    fn rights_are_leftover_when_attempt_or_run_is_over() {
        let mut run = testing::run();
        let uid = run.uid().unwrap();
        let attempt = Attempt {
            number: 2,
            open: true,
            ..Attempt::default()
        };
        run.status = Some(TerraformRunStatus {
            attempt: Some(attempt),
            ..TerraformRunStatus::default()
        });
        assert!(!is_over(&uid, "2", Some(&run)), "it works");
        assert!(is_over(&uid, "1", Some(&run)), "it was followed by another");
        assert!(is_over(&uid, "2", None), "its run is gone");
        assert!(
            is_over("another", "2", Some(&run)),
            "a run of that name was made again"
        );
        run.status.as_mut().unwrap().attempt.as_mut().unwrap().open = false;
        assert!(is_over(&uid, "2", Some(&run)), "it is closed");
        run.spec.operation = crds::Operation::Unknown;
        assert!(!is_over(&uid, "2", Some(&run)), "a newer version's");
    }
}
