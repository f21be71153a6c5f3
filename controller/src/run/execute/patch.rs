//! Patches of runs, and the handling of their errors.

use kube::{
    Resource,
    api::{ObjectMeta, Patch},
};
use serde_json::{Map, Value, json};

use crate::{
    cluster::patch_params,
    error::{Error, ErrorKind},
    run::context::Context,
};

/// The most tries of a write that conflicts with others.
pub(in crate::run) const TRIES: u32 = 20;

pub(super) fn metadata_patch(run: &impl Resource, mut metadata: Value) -> Value {
    metadata["uid"] = json!(run.meta().uid);
    metadata["resourceVersion"] = json!(run.meta().resource_version);
    json!({"metadata": metadata})
}

/// Removes annotations that exist.
pub(in crate::run) async fn take_off(
    run: &ObjectMeta,
    keys: &[&str],
    ctx: &Context,
) -> Result<(), Error> {
    let all = run.annotations.as_ref();
    if !keys
        .iter()
        .any(|key| all.is_some_and(|all| all.contains_key(*key)))
    {
        return Ok(());
    }
    annotate(
        run,
        keys.iter()
            .map(|key| ((*key).to_owned(), Value::Null))
            .collect(),
        ctx,
    )
    .await
}

/// Changes annotations, and retries until it succeeds: an unverified annotation that stayed would count.
pub(in crate::run) async fn annotate(
    run: &ObjectMeta,
    changes: Map<String, Value>,
    ctx: &Context,
) -> Result<(), Error> {
    // No resourceVersion precondition, so a client that writes all the time cannot prevent it.
    let patch = Patch::Merge(json!({"metadata": {"uid": run.uid, "annotations": changes}}));
    let (api, name) = (
        ctx.cluster
            .runs(run.namespace.as_deref().unwrap_or_default()),
        run.name.as_deref().unwrap_or_default(),
    );
    let params = patch_params();
    let mut tries = 0;
    loop {
        tries += 1;
        match ctx
            .cluster
            .call_opt(
                "change annotations",
                api.patch_metadata(name, &params, &patch),
            )
            .await
        {
            // The API server itself retries five times, and returns the same error if another run has the name.
            Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES => {
                let found = ctx
                    .cluster
                    .call_opt("read run", api.get_metadata(name))
                    .await?;
                if found.and_then(|found| found.metadata.uid) != run.uid {
                    return Ok(());
                }
            }
            answer => return answer.map(drop),
        }
    }
}
