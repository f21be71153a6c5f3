//! Deletes the pods of closed attempts. They remain for an hour, so that `kubectl logs` works as expected, and are
//! deleted once the datastore has their log. A pod with a container that never ends, which somebody added, is released as if an hour ago: it
//! counts in quotas. Without a datastore, or with an incomplete log, a pod remains as long as
//! its run.
//!
//! No timer runs for a single pod. Pods are listed when the first of them has been released for an hour, and not before.

use std::{collections::HashSet, sync::Arc, time::Duration};

use datastore_client::controller::Datastore;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::api::ListParams;
use serving::call::after;
use tokio::sync::watch;

use crds::{datastore::causes, names};

use super::delete;
use crate::{cluster::Cluster, error::Error};

/// Interval of checks for due pods.
const SWEEP: Duration = Duration::from_secs(60);
/// Page size of the list of pods.
const PAGE: u32 = 500;

/// UIDs of the retained pods whose log will never be complete.
pub type Kept = HashSet<String>;

/// Sweeps a namespace, or all, until `stop`.
pub async fn run(
    scope: Option<String>,
    ctx: Arc<Cluster>,
    datastore: Arc<Datastore>,
    mut stop: watch::Receiver<bool>,
) {
    let mut kept = Kept::new();
    // Releases before the start of this process are unknown.
    let mut first = Some(Timestamp::MIN);
    loop {
        let oldest = first.into_iter().chain(*ctx.pods.first_release()).min();
        if oldest.is_some_and(|oldest| has_stayed(oldest, ctx.now())) {
            *ctx.pods.first_release() = None;
            first = once(scope.as_deref(), &mut kept, &ctx, &datastore)
                .await
                .unwrap_or_else(|error| {
                    tracing::warn!(%error, "the sweep for ended pods failed");
                    oldest
                });
        }
        tokio::select! {
            () = tokio::time::sleep(SWEEP) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// Deletes pods that have been released for long enough and whose log is stored. Returns the earliest release among the
/// remaining ones.
///
/// # Errors
/// When the API server does not respond or refuses. Pods found until then are deleted.
pub async fn once(
    scope: Option<&str>,
    kept: &mut Kept,
    ctx: &Cluster,
    datastore: &Datastore,
) -> Result<Option<Timestamp>, Error> {
    let released = format!(
        "{}={},{}",
        names::LABEL_MANAGED_BY,
        names::MANAGED_BY,
        names::LABEL_RELEASED
    );
    let (mut next, mut first, mut there) = (
        Some(ListParams::default().labels(&released).limit(PAGE)),
        None,
        Kept::new(),
    );
    while let Some(params) = next {
        let page = ctx
            .call(
                "list ended pods",
                ctx.scoped::<Pod>(scope).list_metadata(&params),
            )
            .await?;
        next = after(&params, &page.metadata);
        for pod in page
            .items
            .iter()
            .filter_map(|pod| Released::of(&pod.metadata))
        {
            let whole = match has_stayed(pod.at, ctx.now()) {
                true if kept.contains(&pod.uid) => Some(false),
                true => datastore
                    .log_is_whole(&pod.namespace, &pod.run_uid, pod.attempt)
                    .await
                    .map_or_else(
                        |error| {
                            tracing::info!(
                                pod = pod.name,
                                error = causes(&error),
                                "it is unknown whether the pod's log is stored"
                            );
                            None
                        },
                        Some,
                    ),
                false => None,
            };
            match whole {
                Some(true) => {
                    tracing::info!(pod = pod.name, "the pod is deleted: its log is stored");
                    delete::object::<Pod>(
                        "delete ended pod",
                        &pod.namespace,
                        &pod.name,
                        Some(pod.uid),
                        ctx,
                    )
                    .await?;
                }
                Some(false) => drop(there.insert(pod.uid)),
                None => first = first.into_iter().chain([pod.at]).min(),
            }
        }
    }
    *kept = there;
    Ok(first)
}

/// A released pod that is not being deleted.
struct Released {
    namespace: String,
    name: String,
    uid: String,
    run_uid: String,
    attempt: u32,
    at: Timestamp,
}

impl Released {
    fn of(meta: &ObjectMeta) -> Option<Self> {
        let label = |name: &str| meta.labels.as_ref().and_then(|labels| labels.get(name));
        let held = meta
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == names::POD_FINALIZER);
        if held || meta.deletion_timestamp.is_some() {
            return None;
        }
        Some(Self {
            namespace: meta.namespace.clone()?,
            name: meta.name.clone()?,
            uid: meta.uid.clone()?,
            run_uid: label(names::LABEL_RUN_UID)?.clone(),
            attempt: label(names::LABEL_ATTEMPT)?.parse().ok()?,
            at: Timestamp::from_second(label(names::LABEL_RELEASED)?.parse().ok()?).ok()?,
        })
    }
}

fn has_stayed(since: Timestamp, now: Timestamp) -> bool {
    since
        .checked_add(delete::STAYS)
        .is_ok_and(|until| until <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::t0;
    use jiff::SignedDuration;
    use serde_json::json;

    #[test]
    fn released_pod_is_due_after_an_hour() {
        let after = |minutes| t0() + SignedDuration::from_mins(minutes);
        assert!(!has_stayed(t0(), after(59)) && has_stayed(t0(), after(60)));
        assert!(has_stayed(Timestamp::MIN, t0()), "nobody knows since when");
    }

    #[test]
    fn only_released_pods_are_considered() {
        let labels = json!({names::LABEL_RUN_UID: "u", names::LABEL_ATTEMPT: "2", names::LABEL_RELEASED: "1767225600"});
        let of = |more: serde_json::Value| {
            let mut meta = json!({"namespace": "team", "name": "p", "uid": "p1", "labels": labels});
            crate::testing::merge(&mut meta, &more);
            Released::of(&serde_json::from_value(meta).unwrap())
                .map(|pod| (pod.run_uid, pod.attempt, pod.at))
        };
        assert_eq!(
            of(json!({})),
            Some(("u".into(), 2, "2026-01-01T00:00:00Z".parse().unwrap()))
        );
        assert_eq!(
            of(json!({"finalizers": ["another/one"]})).map(|(_, attempt, _)| attempt),
            Some(2)
        );
        assert_eq!(
            of(json!({"finalizers": [names::POD_FINALIZER]})),
            None,
            "held"
        );
        assert_eq!(
            of(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})),
            None,
            "it goes already"
        );
        for value in [
            json!(null),
            json!(""),
            json!("soon"),
            json!("99999999999999999999"),
        ] {
            assert_eq!(
                of(json!({"labels": {names::LABEL_RELEASED: value}})),
                None,
                "{value}"
            );
        }
    }
}
