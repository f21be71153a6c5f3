//! Creates runs from other runs.

use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, PostParams},
};

use crate::{
    error::{Error, ErrorKind},
    run::{context::Context, decide::rerun, run_view::RunView},
};
use crds::TerraformRun;

/// Creates a run from another, which its annotation `origin` names, with the fields of its spec that this version does not know: a dropped field would change the spec.
pub(super) async fn create(
    old: &RunView,
    fresh: fn(&TerraformRun) -> TerraformRun,
    origin: &str,
    ctx: &Context,
) -> Result<(), Error> {
    let Some(old) = old.whole() else {
        return Ok(());
    };
    let (what, fresh) = ("create run", fresh(old));
    let encode = |source| Error::Encode { what, source };
    let resource = ApiResource::erase::<TerraformRun>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(
        ctx.cluster.client.clone(),
        &fresh.namespace().unwrap_or_default(),
        &resource,
    );
    let whole = ctx
        .cluster
        .call("read run", api.get(&old.name_any()))
        .await?;
    let mut wanted = serde_json::to_value(&fresh).map_err(encode)?;
    if whole.uid() == old.uid() {
        wanted["spec"] =
            rerun::carried(&whole.data["spec"], &old.spec, &fresh.spec).map_err(encode)?;
    }
    let wanted: DynamicObject = serde_json::from_value(wanted).map_err(encode)?;
    let created = ctx
        .cluster
        .call(what, api.create(&PostParams::default(), &wanted))
        .await;
    match created {
        // The controller made it, if it has the annotation that no one else may set; anybody may give the name to another run before.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = ctx
                .cluster
                .call("read run", api.get_metadata(&fresh.name_any()))
                .await?;
            if there.annotations().get(origin) == fresh.annotations().get(origin) {
                Ok(())
            } else {
                Err(error)
            }
        }
        created => created.map(drop),
    }
}
