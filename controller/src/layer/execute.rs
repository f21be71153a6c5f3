//! Carries out decisions.

use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch},
};
use serde_json::{Map, Value, json};

use crds::{TerraformLayer, TerraformLayerStatus, TerraformRun, names, text::clip, version};

use super::{
    context::Context,
    decision::{Action, NewRun},
    observed::Refused,
    run_summary::RunSummary,
};
use crate::{
    cluster::{create_params, patch_params},
    error::{Error, ErrorKind},
    events::Note,
    gc::delete,
};

/// Delays between attempts to create a run that is refused: 1 min after the first, doubling to 1 h.
const REFUSED: crds::backoff::Backoff = crds::backoff::Backoff {
    base: std::time::Duration::from_secs(60),
    cap: std::time::Duration::from_secs(3600),
};

/// Writes the status without `source`, which `controller sources` writes. The resourceVersion that was decided on is a precondition, so no
/// action follows a stale decision.
pub(super) async fn write(
    layer: &TerraformLayer,
    status: &TerraformLayerStatus,
    ctx: &Context,
) -> Result<TerraformLayer, Error> {
    let encode = |source| Error::Encode {
        what: "write status of layer",
        source,
    };
    let before = layer.status.clone().unwrap_or_default();
    let patch = differences(&before, status).map_err(encode)?;
    let meta = &layer.metadata;
    let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": patch});
    let api: Api<TerraformLayer> = ctx.cluster.api(&layer.namespace().unwrap_or_default());
    ctx.cluster
        .call(
            "write status of layer",
            api.patch_status(&layer.name_any(), &patch_params(), &Patch::Merge(patch)),
        )
        .await
}

/// The merge patch that turns one status into the other.
fn differences(
    before: &TerraformLayerStatus,
    after: &TerraformLayerStatus,
) -> serde_json::Result<Map<String, Value>> {
    let fields = |status| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Ok(Map::new()),
        Err(error) => Err(error),
    };
    let (before, after) = (fields(before)?, fields(after)?);
    let mut patch = Map::new();
    for (field, value) in &after {
        match (before.get(field), value) {
            (Some(old), new) if old == new => {}
            // A merge patch leaves a field out of it unchanged, so removed fields become `null`.
            (Some(Value::Object(old)), Value::Object(new)) => {
                let gone = old
                    .keys()
                    .filter(|key| !new.contains_key(*key))
                    .map(|key| (key.clone(), Value::Null));
                patch.insert(field.clone(), new.clone().into_iter().chain(gone).collect());
            }
            (_, new) => {
                patch.insert(field.clone(), new.clone());
            }
        }
    }
    patch.extend(
        before
            .keys()
            .filter(|field| !after.contains_key(*field))
            .map(|field| (field.clone(), Value::Null)),
    );
    patch.remove("source");
    Ok(patch)
}

pub(super) enum Done {
    Carried,
    /// The API server refuses the run.
    Refused(Refused),
    /// The namespace is being deleted and accepts no new objects.
    Gone,
}

pub(super) async fn act(
    layer: &TerraformLayer,
    action: &Action,
    ctx: &Context,
) -> Result<Done, Error> {
    let (namespace, name) = (layer.namespace().unwrap_or_default(), layer.name_any());
    let api: Api<TerraformLayer> = ctx.cluster.api(&namespace);
    match action {
        Action::Read { .. } => {}
        Action::AddFinalizer | Action::RemoveFinalizer => {
            let mut finalizers: Vec<_> = layer
                .finalizers()
                .iter()
                .filter(|f| *f != names::LAYER_FINALIZER)
                .cloned()
                .collect();
            if *action == Action::AddFinalizer {
                finalizers.push(names::LAYER_FINALIZER.into());
            }
            let meta = json!({"uid": layer.uid(), "resourceVersion": layer.resource_version(), "finalizers": finalizers});
            let patch = Patch::Merge(json!({"metadata": meta}));
            let written = ctx
                .cluster
                .call_opt(
                    "write finalizers of layer",
                    api.patch_metadata(&name, &patch_params(), &patch),
                )
                .await?;
            if let Some(written) = written {
                ctx.memory
                    .update(&layer.uid().unwrap_or_default(), |notes| {
                        notes.version = version(&written.metadata);
                    });
            }
        }
        Action::TakeAsk { token } => {
            let path = names::annotation_pointer(names::PLAN);
            let patch = json!([{"op": "test", "path": "/metadata/uid", "value": layer.uid()},
                {"op": "test", "path": path, "value": "now"}, {"op": "replace", "path": path, "value": token}]);
            json_patch(&api, &name, patch, "answer pawl.run/plan", ctx).await?;
        }
        Action::Create(run) => return create(layer, run, ctx).await,
        Action::Supersede { run, uid, why } => supersede(layer, run, uid, why, ctx).await?,
        Action::Delete { run, uid } => {
            delete::object::<TerraformRun>(
                "delete run of layer",
                &namespace,
                run,
                Some(uid.clone()),
                &ctx.cluster,
            )
            .await?;
            tracing::info!(run, "run deleted: there are newer ones");
        }
    }
    Ok(Done::Carried)
}

/// Cancels a run after a live read. Does nothing if the run has progressed: a cancel would interrupt an apply, or a plan that may as well
/// finish.
async fn supersede(
    layer: &TerraformLayer,
    run: &str,
    uid: &str,
    why: &str,
    ctx: &Context,
) -> Result<(), Error> {
    let api = ctx.cluster.runs(&layer.namespace().unwrap_or_default());
    let there = ctx
        .cluster
        .call_opt("read run of layer", api.get(run))
        .await?
        .filter(|there| there.uid().as_deref() == Some(uid));
    let may = |run: &RunSummary| {
        if layer.metadata.deletion_timestamp.is_some() {
            run.may_be_taken_back()
        } else {
            run.may_be_superseded()
        }
    };
    // If it has progressed, its event wakes the layer.
    let Some(there) =
        there.filter(|there| RunSummary::of(there).is_some_and(|(_, seen)| may(&seen)))
    else {
        return Ok(());
    };
    let meta = json!({"uid": uid, "resourceVersion": there.resource_version(), "annotations": {names::CANCEL: why}});
    ctx.cluster
        .call(
            "take run of layer back",
            api.patch_metadata(
                run,
                &patch_params(),
                &Patch::Merge(json!({"metadata": meta})),
            ),
        )
        .await?;
    tracing::info!(run, why, "run taken back");
    let text = format!("run {run} was canceled: {why}");
    ctx.events.publish(
        layer,
        vec![Note {
            reason: "RunSuperseded",
            warning: false,
            text,
        }],
    );
    Ok(())
}

async fn create(layer: &TerraformLayer, run: &NewRun, ctx: &Context) -> Result<Done, Error> {
    let (namespace, uid) = (
        layer.namespace().unwrap_or_default(),
        layer.uid().unwrap_or_default(),
    );
    let object: DynamicObject =
        serde_json::from_value(run.object.clone()).map_err(|source| Error::Encode {
            what: "create run of layer",
            source,
        })?;
    let api: Api<DynamicObject> = Api::namespaced_with(
        ctx.cluster.client.clone(),
        &namespace,
        &ApiResource::erase::<TerraformRun>(&()),
    );
    let params = create_params();
    match ctx
        .cluster
        .call("create run of layer", api.create(&params, &object))
        .await
    {
        Ok(_) => {
            tracing::info!(run = run.name, trigger = run.trigger(), "run created");
            let text = format!("run {} was created: {}", run.name, run.trigger());
            ctx.events.publish(
                layer,
                vec![Note {
                    reason: "RunCreated",
                    warning: false,
                    text,
                }],
            );
        }
        // This process with a stale cache, or its predecessor, created it.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = ctx
                .cluster
                .call_opt("read run of layer", api.get_metadata(&run.name))
                .await?;
            let of = there
                .as_ref()
                .and_then(|there| there.metadata.labels.as_ref()?.get(names::LABEL_LAYER_UID));
            if there.is_some() && of != Some(&uid) {
                return Ok(refused(
                    &uid,
                    run,
                    "a run of that name exists, and is not this layer's",
                    ctx,
                ));
            }
        }
        Err(error) if error.is_of_terminating_namespace() => return Ok(Done::Gone),
        Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Forbidden) => {
            let text = error
                .status()
                .map_or_else(|| error.to_string(), |status| status.message.clone());
            return Ok(refused(&uid, run, &text, ctx));
        }
        Err(error) => return Err(error),
    }
    ctx.memory.update(&uid, |notes| {
        (notes.made, notes.refused) = (Some((run.name.clone(), ctx.cluster.now())), None);
    });
    Ok(Done::Carried)
}

fn refused(uid: &str, run: &NewRun, text: &str, ctx: &Context) -> Done {
    let refused = ctx.memory.update(uid, |notes| {
        let times = notes
            .refused
            .as_ref()
            .filter(|(before, _)| before.run == run.name)
            .map_or(1, |(_, times)| times + 1);
        let wait = SignedDuration::try_from(REFUSED.after(times)).unwrap_or(SignedDuration::MAX);
        let retry_at = ctx
            .cluster
            .now()
            .checked_add(wait)
            .unwrap_or(Timestamp::MAX);
        let refused = Refused {
            run: run.name.clone(),
            text: clip(text, 400),
            retry_at,
        };
        notes.refused = Some((refused.clone(), times));
        refused
    });
    tracing::warn!(run = run.name, why = refused.text, "the run is refused");
    Done::Refused(refused)
}

/// Reads the run live, past a stale cache.
pub(super) async fn is_there(
    layer: &TerraformLayer,
    run: &str,
    ctx: &Context,
) -> Result<bool, Error> {
    let api = ctx.cluster.runs(&layer.namespace().unwrap_or_default());
    Ok(ctx
        .cluster
        .call_opt("read run of layer", api.get_metadata(run))
        .await?
        .is_some())
}

/// The run's list of changes; empty if the run is gone.
pub(super) async fn changes(
    layer: &TerraformLayer,
    run: &str,
    ctx: &Context,
) -> Result<Vec<String>, Error> {
    let there = ctx
        .cluster
        .call_opt(
            "read run of layer",
            ctx.cluster
                .runs(&layer.namespace().unwrap_or_default())
                .get(run),
        )
        .await?;
    Ok(there
        .and_then(|run| run.status?.plan)
        .map(|plan| plan.changes)
        .unwrap_or_default())
}

async fn json_patch<K>(
    api: &Api<K>,
    name: &str,
    patch: Value,
    what: &'static str,
    ctx: &Context,
) -> Result<(), Error>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let patch = serde_json::from_value(patch).map_err(|source| Error::Encode { what, source })?;
    ctx.cluster
        .call(
            what,
            api.patch_metadata(name, &patch_params(), &Patch::Json::<()>(patch)),
        )
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_fields_are_written_but_never_source() {
        let of = |value: Value| serde_json::from_value::<TerraformLayerStatus>(value).unwrap();
        let source =
            |revision: &str| json!({"of": "main\n.\n", "revision": revision, "content": "c"});
        let before = of(
            json!({"state": "Idle", "waitsFor": "x", "source": source("a"),
            "pending": {"run": "r", "checksum": "c", "summary": "s"}}),
        );
        let after = of(
            json!({"state": "PlanNeeded", "source": source("b"), "pending": {"run": "r", "checksum": "d"}}),
        );
        let patch = Value::Object(differences(&before, &after).unwrap());
        assert_eq!(
            patch,
            json!({"state": "PlanNeeded", "waitsFor": null, "pending": {"run": "r", "checksum": "d", "summary": null}})
        );
        let mut merged = serde_json::to_value(&before).unwrap();
        crate::testing::merge(&mut merged, &patch);
        assert_eq!(
            of(merged),
            TerraformLayerStatus {
                source: before.source.clone(),
                ..after
            }
        );
        assert!(differences(&before, &before).unwrap().is_empty());
    }
}
