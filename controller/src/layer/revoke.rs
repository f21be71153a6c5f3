//! Marks layers that need rights and whose author is unverified. A marked layer creates no runs until a person confirms it.

use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ListParams, ObjectMeta, Patch},
    core::DeserializeGuard,
};
use serde_json::json;
use serving::call::after;

use super::{context::Context, situation::UNVERIFIED};
use crate::{
    cluster::patch_params,
    error::{Error, ErrorKind},
    events::Note,
};
use crds::{TerraformLayer, names, reason};

/// Layers in a page of the list.
const PAGE: u32 = 200;
/// The most attempts of a write that conflicts.
const TRIES: u32 = 20;

/// Marks the layers of a namespace, or of all, that need rights.
///
/// # Errors
/// If a request fails. Layers marked before the failure remain marked.
pub async fn all(scope: Option<&str>, ctx: &Context) -> Result<(), Error> {
    let api: Api<DeserializeGuard<TerraformLayer>> = ctx.cluster.scoped(scope);
    let mut next = Some(ListParams::default().limit(PAGE));
    while let Some(params) = next {
        // Without the CRD there are no layers.
        let Some(page) = ctx
            .cluster
            .call_opt("list layers", api.list(&params))
            .await?
        else {
            return Ok(());
        };
        next = after(&params, &page.metadata);
        for layer in page.items {
            match layer.0 {
                Ok(layer) if layer.is_unverified() || !layer.asks_for_rights() => {}
                Ok(layer) => {
                    mark(layer.meta(), ctx).await?;
                    let (namespace, name) =
                        (layer.namespace().unwrap_or_default(), layer.name_any());
                    tracing::warn!(
                        layer.namespace = namespace,
                        layer.name = name,
                        "a layer waits to be confirmed"
                    );
                    let text = format!(
                        "{UNVERIFIED}: {}",
                        names::confirm_command(&namespace, &name)
                    );
                    ctx.events.publish(
                        &layer,
                        vec![Note {
                            reason: reason::UNVERIFIED,
                            warning: true,
                            text,
                        }],
                    );
                }
                // Unreadable here, but a newer version may read it later.
                Err(invalid) => mark(&invalid.metadata, ctx).await?,
            }
        }
    }
    Ok(())
}

/// Has no resourceVersion precondition, so a client that writes constantly cannot prevent the mark.
async fn mark(layer: &ObjectMeta, ctx: &Context) -> Result<(), Error> {
    let api: Api<TerraformLayer> = ctx
        .cluster
        .api(layer.namespace.as_deref().unwrap_or_default());
    let patch = Patch::Merge(
        json!({"metadata": {"uid": layer.uid, "annotations": {names::UNVERIFIED: UNVERIFIED}}}),
    );
    let (name, params) = (layer.name.as_deref().unwrap_or_default(), patch_params());
    let mut tries = 0;
    loop {
        tries += 1;
        match ctx
            .cluster
            .call_opt(
                "mark a layer as unverified",
                api.patch_metadata(name, &params, &patch),
            )
            .await
        {
            Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES => {}
            answer => return answer.map(drop),
        }
    }
}
