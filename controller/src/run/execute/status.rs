//! Status writes, and what follows on one that succeeded.
//!
//! Whoever annotates a run in a loop changes its resourceVersion all the time, and would keep a write that is sent under that version
//! from ever being made: such a write tests the fields that it was decided on instead.

use kube::{ResourceExt, api::Patch};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    datastore,
    patch::{metadata_patch, params},
};
use crate::{
    error::Error,
    run::{
        context::Context,
        decision::{Kind, Write},
        run_view::RunView,
    },
};
use crds::{TerraformRun, conditions, names};

/// Writes the status; where the run is `contended`, under tests of what was decided on.
pub(super) async fn write(run: &RunView, write: &Write, contended: bool, ctx: &Context) -> Result<TerraformRun, Error> {
    let api = ctx.runs(&run.namespace().unwrap_or_default());
    if let Some(operations) = run.whole().filter(|_| contended).and_then(|run| operations(run, write)) {
        let patch = serde_json::from_value(Value::Array(operations));
        let patch = patch.map_err(|source| Error::Encode { what: "write status", source })?;
        return ctx.call("write status", api.patch_status(&run.name_any(), &params(), &Patch::Json::<()>(patch))).await;
    }
    let mut patch = metadata_patch(run, json!({}));
    patch["status"] = Value::Object(write.status.clone());
    ctx.call("write status", api.patch_status(&run.name_any(), &params(), &Patch::Merge(patch))).await
}

/// Log, metrics and Events of a write that succeeded.
pub(in crate::run) fn report(run: &TerraformRun, write: Write, ctx: &Context) {
    match write.kind {
        Kind::Open => {
            ctx.metrics.attempt_opened();
            tracing::info!("attempt opened");
        }
        Kind::Close => tracing::info!("attempt closed"),
        Kind::End => tracing::info!("run ended"),
        Kind::Approval => tracing::info!("approval settled"),
        Kind::Settled => tracing::info!("settled"),
        Kind::Begin | Kind::Start | Kind::Conditions | Kind::Gone | Kind::Rerun | Kind::Journal | Kind::Lease | Kind::Lock => {
            tracing::debug!(kind = ?write.kind, "status written");
        }
    }
    if let Some((operation, result)) = write.finished {
        ctx.metrics.run_finished(operation, result);
        datastore::drop_bundles(run, ctx);
    }
    ctx.events.publish(run, write.notes);
}

/// The write as a JSON Patch; none for a kind that is made under the resourceVersion or not at all, such as the close of an attempt.
///
/// Only words of ours and digests are tested: texts are compared as they are encoded, and encoders differ in what they escape.
fn operations(run: &TerraformRun, write: &Write) -> Option<Vec<Value>> {
    match write.kind {
        Kind::Approval | Kind::Lease | Kind::Conditions | Kind::Open => {}
        Kind::Begin
        | Kind::Start
        | Kind::Close
        | Kind::End
        | Kind::Gone
        | Kind::Rerun
        | Kind::Journal
        | Kind::Settled
        | Kind::Lock => return None,
    }
    let status = serde_json::to_value(&run.status).ok()?;
    let mut operations =
        vec![test("/metadata/uid", &run.metadata.uid), test("/metadata/deletionTimestamp", &run.metadata.deletion_timestamp)];
    match &run.metadata.annotations {
        None => operations.push(test("/metadata/annotations", Value::Null)),
        Some(_) => operations.extend(
            [names::APPROVE, names::APPROVED_BY, names::CANCEL, names::DENY, names::LIFE]
                .map(|name| test(&names::annotation_pointer(name), run.annotations().get(name))),
        ),
    }
    let fields: [(&str, &[&str]); 7] = [
        ("phase", &[]),
        ("result", &[]),
        ("attempt", &["number", "open"]),
        ("plan", &["checksum", "attempt"]),
        ("claim", &["nonce"]),
        ("approval", &["checksum", "at"]),
        ("lease", &["stateKey"]),
    ];
    if status.is_null() {
        operations.push(test("/status", Value::Null));
    }
    for (field, parts) in fields.into_iter().filter(|_| !status.is_null()) {
        let there = &status[field];
        if there.is_object() {
            operations.extend(parts.iter().map(|part| test(&format!("/status/{field}/{part}"), &there[part])));
        } else {
            operations.push(test(&format!("/status/{field}"), there));
        }
    }
    for (index, condition) in status["conditions"].as_array().into_iter().flatten().enumerate() {
        let parts = ["type", "status", "reason", "lastTransitionTime"];
        operations.extend(parts.map(|part| test(&format!("/status/conditions/{index}/{part}"), &condition[part])));
    }
    let mut changes = write.status.clone();
    if write.kind == Kind::Approval && changes.get("lease").is_some_and(Value::is_object) {
        // A lease that was taken before the approval stands may have gone to another run while the annotation was away for a moment,
        // which only the version would tell. It is taken again for the approval that is recorded now.
        changes.remove("lease");
        if let Some(conditions) = changes.get_mut("conditions").and_then(Value::as_array_mut) {
            conditions.retain(|condition| condition["type"] != conditions::STATE_LEASED);
        }
    }
    let changes = Map::from_iter([("status".to_owned(), Value::Object(changes))]);
    merge(&mut operations, "", &json!({"status": status}), &changes);
    Some(operations)
}

fn test(path: &str, value: impl Serialize) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

/// What a merge patch does to an object that is there. Our fields have names without `/` and `~`.
fn merge(operations: &mut Vec<Value>, path: &str, there: &Value, patch: &Map<String, Value>) {
    for (field, value) in patch {
        let (path, there) = (format!("{path}/{field}"), &there[field]);
        match value {
            Value::Null if there.is_null() => {}
            Value::Null => operations.push(json!({"op": "remove", "path": path})),
            Value::Object(parts) if there.is_object() => merge(operations, &path, there, parts),
            other => operations.push(json!({"op": "add", "path": path, "value": without_nulls(other)})),
        }
    }
}

/// A merge patch leaves nothing where it has null.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(field, value)| (field.clone(), without_nulls(value)))
            .collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    fn write(kind: Kind, status: &Value) -> Write {
        Write {
            kind,
            status: status.as_object().cloned().unwrap_or_default(),
            notes: Vec::new(),
            finished: None,
            incomplete: false,
        }
    }

    fn waiting() -> TerraformRun {
        let mut run = run();
        run.metadata.annotations = Some([(names::APPROVE.to_owned(), "sha256:1".to_owned())].into());
        run.status = serde_json::from_value(json!({"phase": "AwaitingApproval",
            "attempt": {"number": 2, "podName": "p", "open": true, "tries": 1}, "lease": {"stateKey": "k", "name": "n",
            "at": "2026-01-01T00:00:00Z"}, "conditions": [{"type": "Stalled", "status": "False", "reason": "Progressing",
            "message": "a & b", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
        .unwrap();
        run
    }

    #[test]
    fn what_a_decision_rests_on_is_tested_and_what_others_write_is_not() {
        let status = json!({"approval": {"checksum": "sha256:1", "by": "alice", "comment": null},
            "attempt": {"open": false, "image": null}, "lease": null});
        let operations = operations(&waiting(), &write(Kind::Approval, &status)).unwrap();
        let tested = |path: &str| operations.iter().find(|o| o["op"] == "test" && o["path"] == path).map(|o| o["value"].clone());
        assert_eq!(tested("/metadata/annotations/pawl.run~1approve"), Some(json!("sha256:1")));
        for absent in
            ["/metadata/annotations/pawl.run~1cancel", "/metadata/deletionTimestamp", "/status/claim", "/status/approval"]
        {
            assert_eq!(tested(absent), Some(Value::Null), "{absent}");
        }
        assert_eq!(tested("/status/attempt/number"), Some(json!(2)));
        assert_eq!(tested("/status/conditions/0/reason"), Some(json!("Progressing")));
        assert!(tested("/metadata/resourceVersion").is_none() && tested("/status/conditions/0/message").is_none());
        let changes: Vec<_> = operations.iter().filter(|o| o["op"] != "test").collect();
        assert_eq!(
            json!(changes),
            json!([
                {"op": "add", "path": "/status/approval", "value": {"checksum": "sha256:1", "by": "alice"}},
                {"op": "add", "path": "/status/attempt/open", "value": false},
                {"op": "remove", "path": "/status/lease"},
            ])
        );
    }

    #[test]
    fn a_lease_is_recorded_for_an_approval_that_stands_already() {
        let lease = json!({"stateKey": "k2", "name": "n"});
        let leased = json!({"type": "StateLeased", "status": "True", "reason": "Leased"});
        let status = json!({"approval": {"checksum": "sha256:1"}, "lease": lease, "conditions": [leased]});
        let writes = |kind| {
            let operations = operations(&waiting(), &write(kind, &status)).unwrap();
            operations.iter().any(|o| o["path"].as_str().is_some_and(|path| path.starts_with("/status/lease/name")))
        };
        assert!(!writes(Kind::Approval) && writes(Kind::Lease));
    }

    #[test]
    fn a_run_without_a_status_gets_one() {
        let operations = operations(&run(), &write(Kind::Open, &json!({"phase": "Pending", "failure": null}))).unwrap();
        let of_status: Vec<_> = operations.iter().filter(|o| o["path"].as_str().unwrap().starts_with("/status")).collect();
        let test = json!({"op": "test", "path": "/status", "value": null});
        assert_eq!(json!(of_status), json!([test, {"op": "add", "path": "/status", "value": {"phase": "Pending"}}]));
    }

    #[test]
    fn an_attempt_is_closed_and_its_agents_fields_are_written_under_the_version_that_was_read() {
        for kind in [Kind::Start, Kind::Close, Kind::End, Kind::Gone, Kind::Settled] {
            assert!(operations(&waiting(), &write(kind, &json!({"message": "m"}))).is_none(), "{kind:?}");
        }
    }
}
