//! Pods of attempts that are closed: they stay for an hour, so that `kubectl logs` works as people expect, and go when the datastore has
//! their log. Without a datastore, and without the whole log there, a pod stays until its run goes.
//!
//! Nobody looks at a pod for that. They are listed when the first of them has stayed long enough, and not before.

use std::{collections::HashSet, sync::Arc, time::Duration};

use datastore_client::controller::Datastore;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::api::ListParams;
use tokio::sync::watch;

use crds::{datastore::causes, names};

use super::delete;
use crate::{cluster::Cluster, error::Error};

/// How long a pod stays that was let go.
pub const STAYS: SignedDuration = SignedDuration::from_hours(1);
/// Between two looks whether it is time.
const SWEEP: Duration = Duration::from_secs(300);
/// Pods of one answer.
const PAGE: u32 = 500;

/// UIDs of the pods that stay, since something of their log is missing for ever.
pub type Kept = HashSet<String>;

/// Sweeps a namespace, or all of them, until `stop` says otherwise.
pub async fn run(scope: Option<String>, ctx: Arc<Cluster>, datastore: Arc<Datastore>, mut stop: watch::Receiver<bool>) {
    let mut kept = Kept::new();
    // What was let go before this process began is not known.
    let mut first = Some(Timestamp::MIN);
    loop {
        let oldest = first.into_iter().chain(*ctx.pods.first_release()).min();
        if oldest.is_some_and(|oldest| has_stayed(oldest, ctx.now())) {
            *ctx.pods.first_release() = None;
            first = once(scope.as_deref(), &mut kept, &ctx, &datastore).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "could not look for pods that have stayed long enough");
                oldest
            });
        }
        tokio::select! {
            () = tokio::time::sleep(SWEEP) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// Deletes the pods that have stayed long enough and whose log is kept. Returns when the first of those was let go that are still to go.
///
/// # Errors
/// When the API server does not answer or refuses; what was found until then is deleted.
pub async fn once(
    scope: Option<&str>,
    kept: &mut Kept,
    ctx: &Cluster,
    datastore: &Datastore,
) -> Result<Option<Timestamp>, Error> {
    let released = format!("{}={},{}", names::LABEL_MANAGED_BY, names::MANAGED_BY, names::LABEL_RELEASED);
    let (mut params, mut first, mut there) = (ListParams::default().labels(&released).limit(PAGE), None, Kept::new());
    loop {
        let page = ctx.call("list ended pods", ctx.scoped::<Pod>(scope).list_metadata(&params)).await?;
        for pod in page.items.iter().filter_map(|pod| Released::of(&pod.metadata)) {
            let whole = match has_stayed(pod.at, ctx.now()) {
                true if kept.contains(&pod.uid) => Some(false),
                true => datastore.log_is_whole(&pod.namespace, &pod.run_uid, pod.attempt).await.map_or_else(
                    |error| {
                        tracing::info!(pod = pod.name, error = causes(&error), "nobody says whether the pod's log is kept");
                        None
                    },
                    Some,
                ),
                false => None,
            };
            match whole {
                Some(true) => {
                    tracing::info!(pod = pod.name, "the pod goes: its log is kept");
                    delete::object::<Pod>("delete ended pod", &pod.namespace, &pod.name, Some(pod.uid), ctx).await?;
                }
                Some(false) => drop(there.insert(pod.uid)),
                None => first = first.into_iter().chain([pod.at]).min(),
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    *kept = there;
    Ok(first)
}

/// A pod that was let go, and is not on its way out.
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
        let held = meta.finalizers.iter().flatten().any(|finalizer| finalizer == names::POD_FINALIZER);
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
    since.checked_add(STAYS).is_ok_and(|until| until <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::t0;
    use serde_json::json;

    #[test]
    fn a_pod_goes_an_hour_after_it_was_let_go() {
        let after = |minutes| t0() + SignedDuration::from_mins(minutes);
        assert!(!has_stayed(t0(), after(59)) && has_stayed(t0(), after(60)));
        assert!(has_stayed(Timestamp::MIN, t0()), "nobody knows since when");
    }

    #[test]
    fn only_a_pod_that_was_let_go_is_looked_at() {
        let labels = json!({names::LABEL_RUN_UID: "u", names::LABEL_ATTEMPT: "2", names::LABEL_RELEASED: "1767225600"});
        let of = |more: serde_json::Value| {
            let mut meta = json!({"namespace": "team", "name": "p", "uid": "p1", "labels": labels});
            crate::testing::merge(&mut meta, &more);
            Released::of(&serde_json::from_value(meta).unwrap()).map(|pod| (pod.run_uid, pod.attempt, pod.at))
        };
        assert_eq!(of(json!({})), Some(("u".into(), 2, "2026-01-01T00:00:00Z".parse().unwrap())));
        assert_eq!(of(json!({"finalizers": ["another/one"]})).map(|(_, attempt, _)| attempt), Some(2));
        assert_eq!(of(json!({"finalizers": [names::POD_FINALIZER]})), None, "held");
        assert_eq!(of(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})), None, "it goes already");
        for value in [json!(null), json!(""), json!("soon"), json!("99999999999999999999")] {
            assert_eq!(of(json!({"labels": {names::LABEL_RELEASED: value}})), None, "{value}");
        }
    }
}
