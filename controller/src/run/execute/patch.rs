//! Patches of runs, and what their answers mean.

use kube::{
    Resource,
    api::{ObjectMeta, Patch, PatchParams},
};
use serde_json::{Map, Value, json};

use crate::{
    error::{Error, ErrorKind},
    run::context::Context,
};
use crds::names;

/// How often a write is sent that others keep from its effect.
pub(in crate::run) const TRIES: u32 = 20;

pub(in crate::run) fn params() -> PatchParams {
    PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() }
}

pub(super) fn metadata_patch(run: &impl Resource, mut metadata: Value) -> Value {
    metadata["uid"] = json!(run.meta().uid);
    metadata["resourceVersion"] = json!(run.meta().resource_version);
    json!({"metadata": metadata})
}

/// "It exists already" is success for objects whose names are ours.
pub(super) fn already<T>(created: Result<T, Error>) -> Result<Option<T>, Error> {
    match created {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes annotations, if there are any.
pub(in crate::run) async fn take_off(run: &ObjectMeta, keys: &[&str], ctx: &Context) -> Result<(), Error> {
    let all = run.annotations.as_ref();
    if !keys.iter().any(|key| all.is_some_and(|all| all.contains_key(*key))) {
        return Ok(());
    }
    annotate(run, keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect(), ctx).await
}

/// Changes annotations, and tries until it has its effect: what could not be removed would be believed.
pub(in crate::run) async fn annotate(run: &ObjectMeta, changes: Map<String, Value>, ctx: &Context) -> Result<(), Error> {
    // Without a resourceVersion precondition, so that a client that writes all the time cannot prevent it.
    let patch = Patch::Merge(json!({"metadata": {"uid": run.uid, "annotations": changes}}));
    let (api, name) = (ctx.runs(run.namespace.as_deref().unwrap_or_default()), run.name.as_deref().unwrap_or_default());
    let params = params();
    let mut tries = 0;
    loop {
        tries += 1;
        match ctx.call_opt("change annotations", api.patch_metadata(name, &params, &patch)).await {
            // The API server gives up after five writes of others in between, and says the same when another run has the name.
            Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES => {
                let found = ctx.call_opt("read run", api.get_metadata(name)).await?;
                if found.and_then(|found| found.metadata.uid) != run.uid {
                    return Ok(());
                }
            }
            answer => return answer.map(drop),
        }
    }
}
