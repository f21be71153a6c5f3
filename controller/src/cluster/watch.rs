//! What all watches have in common: they begin again by themselves, say that they do, and leave alone what this version cannot read.

use std::{fmt::Debug, future::ready, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Objects of one answer when a watch lists: each is large, little of it is kept, and all of an answer are in memory at once.
const PAGE: u32 = 100;

/// A watch of what this version may be too old to read, with its failures.
pub(crate) fn events<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, config.page_size(PAGE)).backoff(backoff())
}

/// A watch of objects of Kubernetes itself.
pub(crate) fn objects<K>(what: &'static str, api: Api<K>, config: watcher::Config) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    events(api, config).filter_map(move |event| ready(loud(what, event)))
}

/// A watch of objects of ours, without those that this version cannot read.
pub(crate) fn understood<K>(what: &'static str, api: Api<DeserializeGuard<K>>) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    objects(what, api, watcher::Config::default()).filter_map(|event| ready(readable(event)))
}

/// Says that a watch failed. The watch begins again by itself; the runtime would slow all its streams down for one of them.
pub(crate) fn loud<K>(what: &'static str, event: watcher::Result<Event<K>>) -> Option<Event<K>> {
    event.inspect_err(|error| tracing::warn!(what, %error, "a watch failed; it begins again")).ok()
}

/// An object that this version cannot read waits; it neither stops the watch nor is guessed at.
pub(crate) fn readable<K: Resource<DynamicType = ()>>(event: Event<DeserializeGuard<K>>) -> Option<Event<K>> {
    let read = |guard: DeserializeGuard<K>| {
        let read = guard.0.inspect_err(|invalid| {
            let (kind, meta) = (K::kind(&()), &invalid.metadata);
            let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
            tracing::warn!(%kind, namespace, name, error = %invalid, "what this version cannot read is left alone");
        });
        read.ok()
    };
    match event {
        Event::Apply(guard) => read(guard).map(Event::Apply),
        Event::Delete(guard) => read(guard).map(Event::Delete),
        Event::InitApply(guard) => read(guard).map(Event::InitApply),
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
    }
}

/// Waits until `stop` says that it is time.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone means the end as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Between failures of a watch. A controller that is installed before its rights or its CRD is not to be late for a minute.
fn backoff() -> watcher::ExponentialBackoff {
    backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(Duration::from_secs(5))
        .without_max_times()
        .with_jitter()
        .into()
}
