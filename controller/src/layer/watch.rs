//! The watch of layers, and the loop that reconciles layers on events of layers, repositories and runs.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use futures::channel::mpsc::UnboundedReceiver;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;
use watching::{Index, Indexes, Key};

use crds::TerraformLayer;

use super::{context::Context, index::trim, reconcile::reconcile};
use crate::cluster::{
    cached::{Cached, Store},
    packed::Alike,
    work_queue::work,
};

/// The preset dictionary of packed layers. Every layer is packed, since most are idle.
static LAYERS: Alike = Alike::new();

/// The indexes that a watch of layers fills. From the call on, layers wait for its first listing.
pub fn indexes(ctx: &Arc<Context>, store: &Arc<Store<TerraformLayer>>) -> Indexes<TerraformLayer> {
    vec![
        ctx.layers.clone(),
        Arc::new(Shown {
            ctx: ctx.clone(),
            store: store.clone(),
        }),
        ctx.layers.listings.add(),
    ]
}

/// Reconciles the layers of a store until `stop` turns true. Reconciles in progress are completed.
pub async fn run(
    store: Arc<Store<TerraformLayer>>,
    woken: UnboundedReceiver<Key>,
    ctx: Arc<Context>,
    stop: watch::Receiver<bool>,
) {
    work(
        store,
        woken,
        ctx.cluster.settings.concurrency,
        stop,
        |_| false,
        |layer| reconcile(layer, ctx.clone()),
    )
    .await;
}

/// Fills the store, and ends what this process remembers of its own writes once a watch shows them.
struct Shown {
    ctx: Arc<Context>,
    store: Arc<Store<TerraformLayer>>,
}

impl Index<TerraformLayer> for Shown {
    fn apply(&self, key: &Key, layer: &TerraformLayer) {
        self.ctx.shown(layer);
        let mut layer = layer.clone();
        trim(&mut layer);
        let wakes = wake_hash(&layer);
        self.store
            .put(key, Cached::packed(layer, &(), &LAYERS, wakes));
    }

    fn delete(&self, key: &Key) {
        if let Some(layer) = self.store.remove(key) {
            self.ctx.memory.forget(&layer.uid().unwrap_or_default());
        }
    }
}

/// Hash of the fields that decisions depend on. Our own status writes do not change it, so they cause no reconcile.
pub fn wake_hash(layer: &TerraformLayer) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = layer.meta();
    (
        meta.uid.as_deref(),
        meta.generation,
        meta.deletion_timestamp.is_some(),
    )
        .hash(&mut hasher);
    (layer.finalizers(), layer.annotations()).hash(&mut hasher);
    meta.owner_references
        .iter()
        .flatten()
        .for_each(|owner| owner.uid.hash(&mut hasher));
    let source = layer
        .status
        .as_ref()
        .and_then(|status| status.source.as_ref());
    source
        .map(|source| {
            (
                &source.of,
                &source.revision,
                &source.content,
                &source.missing,
            )
        })
        .hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn own_status_write_causes_no_reconcile() {
        let of = |status| {
            serde_json::from_value::<TerraformLayer>(
                json!({"metadata": {"name": "a", "uid": "u", "generation": 1},
                "spec": {"repository": {"name": "r"}}, "status": status}),
            )
            .unwrap()
        };
        let source = json!({"of": "main\n.\n", "revision": "a", "content": "c"});
        let before = wake_hash(&of(json!({"source": source})));
        assert_eq!(
            wake_hash(&of(
                json!({"source": source, "state": "Idle", "waitsFor": "x"})
            )),
            before
        );
        assert_ne!(
            wake_hash(&of(
                json!({"source": {"of": "main\n.\n", "revision": "b", "content": "c"}})
            )),
            before
        );
        let mut annotated = of(json!({"source": source}));
        annotated
            .annotations_mut()
            .insert("pawl.run/plan".into(), "now".into());
        assert_ne!(wake_hash(&annotated), before);
    }
}
