//! Watches that fill the caches of several reconcilers: of repositories, and of namespaces.

use std::{pin::pin, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::watcher::{self, Config, Event},
};
use tokio::sync::watch;

use crate::{
    cluster::watch::{events, loud, readable, stopped},
    run::Context,
};
use crds::TerraformRepository;

/// Passes repositories of one namespace, or of all, to the layers, and their bounds to the slots, until `stop`. Once this is called, layers
/// and slots wait for the first listing.
pub fn repositories(
    scope: Option<&str>,
    ctx: Arc<Context>,
    stop: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + use<> {
    let (mut of_layers, mut of_slots) = (ctx.layers.feed(), ctx.slots.repository_feed());
    let api: Api<DeserializeGuard<TerraformRepository>> = ctx.scoped(scope);
    async move {
        let mut events = pin!(events(api, Config::default()).take_until(stopped(stop)));
        while let Some(event) = events.next().await {
            if is_refused(&event) {
                ctx.slots.does_without(&mut of_slots);
            }
            if let Some(event) = loud("repositories", event).and_then(readable) {
                ctx.layers.repository(&mut of_layers, &event);
                ctx.slots.apply_repository(&mut of_slots, &event);
            }
        }
    }
}

/// Tracks frozen namespaces until `stop`; wakes the runs of a namespace when it is unfrozen. From the call on, nothing
/// starts before the first listing.
pub fn namespaces(ctx: Arc<Context>, stop: watch::Receiver<bool>) -> impl Future<Output = ()> + Send + use<> {
    let mut feed = ctx.freezes.feed();
    let api: Api<PartialObjectMeta<Namespace>> = Api::all(ctx.client.clone());
    async move {
        let mut events = pin!(events(api, Config::default()).take_until(stopped(stop)));
        while let Some(event) = events.next().await {
            if is_refused(&event) {
                ctx.freezes.does_without(&mut feed);
            }
            if let Some(event) = loud("namespaces", event) {
                for namespace in ctx.freezes.apply(&mut feed, &event) {
                    ctx.slots.wake(&namespace);
                    ctx.layers.wake(&namespace);
                }
            }
        }
    }
}

/// Whether this process lacks the right to list, or the kind does not exist. Runs do not wait for such a listing.
fn is_refused<K>(event: &watcher::Result<Event<K>>) -> bool {
    matches!(event, Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if matches!(status.code, 401 | 403 | 404))
}
