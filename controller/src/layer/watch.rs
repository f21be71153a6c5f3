//! The watch of layers, and the loop that reconciles layers on events of layers, repositories and runs.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt, channel::mpsc, stream};
use kube::{
    Resource, ResourceExt,
    runtime::{WatchStreamExt, reflector, watcher},
};
use tokio::sync::watch;

use crds::TerraformLayer;

use super::{context::Context, index::trim, reconcile::reconcile};
use crate::cluster::{
    cached::{Cached, Heard, in_cache},
    index::mapped,
    packed::Alike,
    watch::understood,
    work_queue::work,
};

/// The preset dictionary of packed layers. Every layer is packed, since most are idle.
static LAYERS: Alike = Alike::new();

type CachedLayer = Cached<TerraformLayer>;

/// Reconciles the layers of one namespace, or of all, until `stop` turns true. Reconciles in progress are completed.
pub async fn run(scope: Option<String>, ctx: Arc<Context>, stop: watch::Receiver<bool>) {
    let (reader, writer) = reflector::store::<CachedLayer>();
    let (wake, woken) = mpsc::unbounded();
    ctx.layers.wakes(scope.clone(), wake);
    let (layers_ctx, mut feed) = (ctx.clone(), ctx.layers.feed());
    let layers = understood::<TerraformLayer>("layers", ctx.scoped(scope.as_deref()))
        .map(Ok)
        .inspect_ok(move |event| {
            layers_ctx.layers.layer(&mut feed, event);
            match event {
                watcher::Event::Apply(layer) => layers_ctx.shown(layer),
                watcher::Event::Delete(layer) => layers_ctx.forget(&layer.uid().unwrap_or_default()),
                watcher::Event::Init | watcher::Event::InitApply(_) | watcher::Event::InitDone => {}
            }
        })
        .map_ok(|event| mapped(event, kept))
        .reflect(writer)
        .flat_map({
            let mut heard = Heard::default();
            move |event| stream::iter(event.map(|event| heard.news(event)).unwrap_or_default())
        });

    let wakes = stream::select(layers, woken.map(|layer| in_cache(&layer)));
    work(reader, wakes, ctx.settings.concurrency, stop, |_| false, |layer| reconcile(layer, ctx.clone())).await;
}

/// The cached form of a layer.
fn kept(mut layer: TerraformLayer) -> CachedLayer {
    trim(&mut layer);
    let wakes = wake_hash(&layer);
    Cached::packed(layer, &(), &LAYERS, wakes)
}

/// Hash of the fields that decisions depend on. Our own status writes do not change it, so they cause no reconcile.
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
    fn own_status_write_wakes_no_layer() {
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
