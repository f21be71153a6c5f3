//! Common parts of watches: they restart by themselves, log failures, and skip objects that this version cannot parse.

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

/// Page size of listings. Each object is large, little of it is cached, and all objects of a page are in memory at
/// once.
const PAGE: u32 = 100;

/// A watch, including its failures, of objects that this version may be unable to parse.
pub(crate) fn events<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, config.page_size(PAGE)).backoff(backoff())
}

/// A watch of Kubernetes' own objects.
pub(crate) fn objects<K>(what: &'static str, api: Api<K>, config: watcher::Config) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    events(api, config).filter_map(move |event| ready(loud(what, event)))
}

/// A watch of Pawl's objects, without those that this version cannot parse.
pub(crate) fn understood<K>(what: &'static str, api: Api<DeserializeGuard<K>>) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    objects(what, api, watcher::Config::default()).filter_map(|event| ready(readable(event)))
}

/// Logs a failure of a watch and drops it: the watch restarts by itself, and the runtime would slow down all streams
/// for one failure.
pub(crate) fn loud<K>(what: &'static str, event: watcher::Result<Event<K>>) -> Option<Event<K>> {
    event.inspect_err(|error| tracing::warn!(what, %error, "a watch failed; it restarts")).ok()
}

/// Skips an object that this version cannot parse: it neither stops the watch nor is interpreted.
pub(crate) fn readable<K: Resource<DynamicType = ()>>(event: Event<DeserializeGuard<K>>) -> Option<Event<K>> {
    let read = |guard: DeserializeGuard<K>| {
        let read = guard.0.inspect_err(|invalid| {
            let (kind, meta) = (K::kind(&()), &invalid.metadata);
            let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
            tracing::warn!(%kind, namespace, name, error = %invalid, "an object that this version cannot parse is skipped");
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

/// Waits for the stop signal.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // A dropped sender means stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Backoff of a failing watch. A controller that starts before its rights or its CRDs are installed must not wait for a
/// minute.
fn backoff() -> watcher::ExponentialBackoff {
    backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(Duration::from_secs(5))
        .without_max_times()
        .with_jitter()
        .into()
}
