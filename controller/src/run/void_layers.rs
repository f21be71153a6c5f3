//! Layers that ask for rights and stood while the admission policies were not proven: nobody knows who made them so. They are marked, and
//! make no runs until somebody takes the mark off who may make such a layer.

use kube::{
    Api, Resource, ResourceExt as _,
    api::{ListParams, ObjectMeta, Patch},
    core::DeserializeGuard,
};
use serde_json::json;

use super::{
    context::Context,
    execute::{TRIES, params},
};
use crate::{
    error::{Error, ErrorKind},
    events::Note,
};
use crds::{TerraformLayer, names, reason};

/// How many layers are read at a time.
const PAGE: u32 = 200;
/// What the mark says.
const WHY: &str =
    "asks for rights, and stood while the admission policies were not proven, so that nobody knows whether its maker has them";

/// Marks the layers of a namespace, or all, that ask for rights.
///
/// # Errors
/// When an answer says nothing. Then it is to be done again.
pub(super) async fn all(scope: Option<&str>, ctx: &Context) -> Result<(), Error> {
    let api: Api<DeserializeGuard<TerraformLayer>> = ctx.scoped(scope);
    let mut params = ListParams::default().limit(PAGE);
    loop {
        // Without the definition there are none.
        let Some(page) = ctx.call_opt("list layers", api.list(&params)).await? else { return Ok(()) };
        for layer in page.items {
            match layer.0 {
                Ok(layer) if layer.is_void() || !layer.asks_for_rights() => {}
                Ok(layer) => {
                    mark(layer.meta(), ctx).await?;
                    let (namespace, name) = (layer.namespace().unwrap_or_default(), layer.name_any());
                    tracing::warn!(layer.namespace = namespace, layer.name = name, "a layer is void");
                    let text = format!(
                        "the layer {WHY}; it makes no runs until somebody has looked at it who has: kubectl annotate -n {namespace} \
                         {}/{name} {}-",
                        names::KUBECTL_LAYER,
                        names::VOID
                    );
                    ctx.events.publish(&layer, vec![Note { reason: reason::VOID, warning: true, text }]);
                }
                // A newer version reads it some day.
                Err(invalid) => mark(&invalid.metadata, ctx).await?,
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Names no version, so that nobody keeps the mark off by writing all the time.
async fn mark(layer: &ObjectMeta, ctx: &Context) -> Result<(), Error> {
    let api: Api<TerraformLayer> = ctx.api(layer.namespace.as_deref().unwrap_or_default());
    let patch = Patch::Merge(json!({"metadata": {"uid": layer.uid, "annotations": {names::VOID: WHY}}}));
    let (name, params) = (layer.name.as_deref().unwrap_or_default(), params());
    let mut tries = 0;
    loop {
        tries += 1;
        match ctx.call_opt("mark a layer as void", api.patch_metadata(name, &params, &patch)).await {
            Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES => {}
            answer => return answer.map(drop),
        }
    }
}
