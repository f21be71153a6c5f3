//! The watch of layers, and the loop that turns their events, and those of repositories and runs, into looks at layers.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt, channel::mpsc};
use kube::{
    Resource, ResourceExt,
    runtime::{Controller, PredicateConfig, WatchStreamExt, controller, reflector, watcher},
};
use tokio::sync::watch;

use crds::TerraformLayer;

use super::{
    context::Context,
    index::trim,
    reconcile::{on_error, reconcile},
};
use crate::cluster::watch::{looked, stopped, understood};

/// Looks after the layers of one namespace, or of all, until `stop` says otherwise; looks that have begun are brought to an end. What is
/// said of layers and repositories comes in pages, since each is large.
pub async fn run(scope: Option<String>, ctx: Arc<Context>, stop: watch::Receiver<bool>) {
    let (reader, writer) = reflector::store();
    let (wake, woken) = mpsc::unbounded();
    ctx.layers.wakes(scope.clone(), wake);
    let (layers_ctx, mut feed) = (ctx.clone(), ctx.layers.feed());
    let layers = understood::<TerraformLayer>("layers", ctx.scoped(scope.as_deref()))
        .map(Ok)
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

    Controller::for_stream(layers, reader)
        .with_config(controller::Config::default().concurrency(ctx.settings.concurrency))
        .reconcile_on(woken)
        .graceful_shutdown_on(stopped(stop))
        .run(reconcile, on_error, ctx)
        .for_each(looked)
        .await;
}

/// A hash of what decisions depend on. What we say ourselves is no reason to look.
fn wake_hash(layer: &TerraformLayer) -> u64 {
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
