//! Watches of layers and repositories, and the loop that turns their events, and those of runs, into looks at layers.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt, channel::mpsc, stream};
use kube::{
    Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{Controller, PredicateConfig, WatchStreamExt, controller, reflector, watcher},
};
use tokio::sync::watch;

use crds::{TerraformLayer, TerraformRepository};

use super::{
    context::Context,
    index::trim,
    reconcile::{on_error, reconcile},
};
use crate::cluster::watch::{backoff, loud};

/// Looks after the layers of one namespace, or of all, until `stop` says otherwise; looks that have begun are brought to an end. What is
/// said of layers and repositories comes in pages, since each is large.
pub async fn run(scope: Option<String>, ctx: Arc<Context>, mut stop: watch::Receiver<bool>) {
    let (reader, writer) = reflector::store();
    let (wake, woken) = mpsc::unbounded();
    ctx.layers.wakes(scope.clone(), wake);
    let (layers_ctx, mut feed) = (ctx.clone(), ctx.layers.feed());
    let layers = watcher(ctx.scoped::<DeserializeGuard<TerraformLayer>>(scope.as_deref()), watcher::Config::default())
        .backoff(backoff())
        .filter_map(|event| async move { loud("layers", event).and_then(|event| understood("layer", event)).map(Ok) })
        .modify(trim)
        .inspect_ok(move |event| {
            layers_ctx.layers.layer(&mut feed, event);
            if let watcher::Event::Delete(layer) = event {
                layers_ctx.forget(&layer.uid().unwrap_or_default());
            }
        })
        .reflect(writer)
        .applied_objects()
        .predicate_filter(|layer: &TerraformLayer| Some(wake_hash(layer)), PredicateConfig::default());

    let (repositories_ctx, mut feed, mut stopped) = (ctx.clone(), ctx.layers.feed(), stop.clone());
    let repositories = async move {
        let api = repositories_ctx.scoped::<DeserializeGuard<TerraformRepository>>(scope.as_deref());
        let events = watcher(api, watcher::Config::default()).backoff(backoff());
        let understand = |event| async move { loud("repositories", event).and_then(|event| understood("repository", event)) };
        let mut events = std::pin::pin!(events.filter_map(understand));
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => repositories_ctx.layers.repository(&mut feed, &event),
                    None => return,
                },
                _ = stopped.wait_for(|stop| *stop) => return,
            }
        }
    };

    // What is no longer frozen begins at once.
    let changes =
        stream::unfold(ctx.freezes.changes(), |mut changes| async move { changes.changed().await.ok().map(|()| ((), changes)) });
    let looks = Controller::for_stream(layers, reader)
        .with_config(controller::Config::default().concurrency(ctx.settings.concurrency))
        .reconcile_on(woken)
        .reconcile_all_on(changes)
        .graceful_shutdown_on(async move {
            // A sender that is gone means the end as well.
            let _ = stop.wait_for(|stop| *stop).await;
        })
        .run(reconcile, on_error, ctx)
        .for_each(|result| async move {
            match result {
                // Failures are logged where the layer is known; a layer may go while its look is waiting.
                Ok(_) | Err(controller::Error::ReconcilerFailed(..) | controller::Error::ObjectNotFound(_)) => {}
                Err(error @ (controller::Error::QueueError(_) | controller::Error::RunnerError(_))) => {
                    tracing::warn!(%error, "a watch failed; it begins again");
                }
            }
        });
    tokio::join!(looks, repositories);
}

/// An object that this version cannot read is left alone, and does not stop the watch.
fn understood<K: Clone>(kind: &'static str, event: watcher::Event<DeserializeGuard<K>>) -> Option<watcher::Event<K>> {
    let read = |guard: DeserializeGuard<K>| {
        let read = guard.0.inspect_err(|invalid| {
            let meta = &invalid.metadata;
            let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
            tracing::warn!(kind, namespace, name, error = %invalid, "what this version cannot read is left alone");
        });
        read.ok()
    };
    match event {
        watcher::Event::Apply(guard) => read(guard).map(watcher::Event::Apply),
        watcher::Event::Delete(guard) => read(guard).map(watcher::Event::Delete),
        watcher::Event::InitApply(guard) => read(guard).map(watcher::Event::InitApply),
        watcher::Event::Init => Some(watcher::Event::Init),
        watcher::Event::InitDone => Some(watcher::Event::InitDone),
    }
}

/// A hash of what decisions depend on. What we say ourselves is no reason to look.
pub fn wake_hash(layer: &TerraformLayer) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = layer.meta();
    (meta.uid.as_deref(), meta.generation, meta.deletion_timestamp.is_some()).hash(&mut hasher);
    (layer.finalizers(), layer.annotations()).hash(&mut hasher);
    let source = layer.status.as_ref().and_then(|status| status.source.as_ref());
    source.map(|source| (&source.of, &source.revision, &source.content, &source.missing)).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_layer_says_itself_is_no_reason_to_look() {
        let of = |status| {
            serde_json::from_value::<TerraformLayer>(json!({"metadata": {"name": "a", "uid": "u", "generation": 1},
                "spec": {"repository": {"name": "r"}}, "status": status}))
            .unwrap()
        };
        let source = json!({"of": "main\n.\n", "revision": "a", "content": "c"});
        let before = wake_hash(&of(json!({"source": source})));
        assert_eq!(wake_hash(&of(json!({"source": source, "state": "Idle", "waitsFor": "x"}))), before);
        assert_ne!(wake_hash(&of(json!({"source": {"of": "main\n.\n", "revision": "b", "content": "c"}}))), before);
        let mut annotated = of(json!({"source": source}));
        annotated.annotations_mut().insert("pawl.run/plan".into(), "now".into());
        assert_ne!(wake_hash(&annotated), before);
    }
}
