//! The watches of repositories, for their bounds, and of namespaces, for whether they are frozen.

use std::{pin::pin, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::watch;

use super::index::Slots;
use crate::cluster::{
    Cluster,
    watch::{backoff, loud},
};
use crds::TerraformRepository;

/// Follows the bounds of the repositories of one namespace, or of all, until `stop` says otherwise.
pub async fn repositories(scope: Option<String>, ctx: Arc<Cluster>, slots: Arc<Slots>, mut stop: watch::Receiver<bool>) {
    let mut feed = slots.repository_feed();
    let api = ctx.scoped::<TerraformRepository>(scope.as_deref());
    let mut events = pin!(watcher(api, watcher::Config::default()).backoff(backoff()));
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = stop.wait_for(|stop| *stop) => None,
        };
        let Some(event) = event else { return };
        if is_refused(&event) {
            slots.does_without(&mut feed);
        }
        if let Some(event) = loud("repositories", event) {
            slots.apply_repository(&mut feed, &event);
        }
    }
}

/// Follows which namespaces are frozen until `stop` says otherwise.
pub async fn namespaces(ctx: Arc<Cluster>, slots: Arc<Slots>, mut stop: watch::Receiver<bool>) {
    let mut feed = ctx.freezes.feed();
    let api: Api<PartialObjectMeta<Namespace>> = Api::all(ctx.client.clone());
    let mut events = pin!(watcher(api, watcher::Config::default()).backoff(backoff()));
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = stop.wait_for(|stop| *stop) => None,
        };
        let Some(event) = event else { return };
        if is_refused(&event) {
            ctx.freezes.does_without(&mut feed);
        }
        if let Some(event) = loud("namespaces", event) {
            for namespace in ctx.freezes.apply(&mut feed, &event) {
                slots.wake(&namespace);
            }
        }
    }
}

/// This process may not see them, or there are none of that kind: no run waits for what cannot be known.
fn is_refused<K>(event: &watcher::Result<watcher::Event<K>>) -> bool {
    matches!(event, Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if matches!(status.code, 401 | 403 | 404))
}
