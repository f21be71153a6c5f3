//! Status writes, and the log, metrics and Events after a successful one.
//!
//! A client that annotates a run in a loop changes its resourceVersion all the time and would block each write that is sent under that
//! version. Such a write tests the fields that its decision rests on instead.

use kube::{ResourceExt, api::Patch};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{datastore, patch::metadata_patch};
use crate::{
    cluster::patch_params,
    error::{Error, ErrorKind},
    run::{
        context::Context,
        decision::{Kind, Write},
        run_view::RunView,
    },
};
use crds::{TerraformRun, fields, names};

/// The precondition of a status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum Basis {
    /// The resourceVersion of the run.
    Version,
    /// The fields that the decision rests on. Other fields may change.
    Fields,
}

impl Basis {
    /// The precondition for the first try of a write of that kind. People wait for an approval and its lease, so these test fields at once
    /// and not the version.
    pub(super) const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Approval | Kind::Lease => Self::Fields,
            Kind::Begin
            | Kind::Open
            | Kind::Start
            | Kind::Close
            | Kind::End
            | Kind::Conditions
            | Kind::Gone
            | Kind::Rerun
            | Kind::Journal
            | Kind::Settled
            | Kind::Lock => Self::Version,
        }
    }

    /// The precondition for the next try after that error. A test fails if a field has changed, and also if the API server encodes a text
    /// differently; then only the version can pass.
    pub(in crate::run) const fn after(error: ErrorKind) -> Self {
        if matches!(error, ErrorKind::Invalid) {
            Self::Version
        } else {
            Self::Fields
        }
    }
}

/// Writes the status under that precondition. Fields that the cache drops cannot be tested, so a write that was decided on a cached run
/// uses the version.
pub(in crate::run) async fn write(
    run: &RunView,
    write: &Write,
    basis: Basis,
    ctx: &Context,
) -> Result<TerraformRun, Error> {
    let api = ctx.cluster.runs(&run.namespace().unwrap_or_default());
    if let (Basis::Fields, Some(run)) = (basis, run.whole()) {
        let encode = |source| Error::Encode {
            what: "write status",
            source,
        };
        let patch = serde_json::from_value(Value::Array(operations(run, write).map_err(encode)?))
            .map_err(encode)?;
        return ctx
            .cluster
            .call(
                "write status",
                api.patch_status(&run.name_any(), &patch_params(), &Patch::Json::<()>(patch)),
            )
            .await;
    }
    let mut patch = metadata_patch(run, json!({}));
    patch["status"] = Value::Object(write.status.clone());
    ctx.cluster
        .call(
            "write status",
            api.patch_status(&run.name_any(), &patch_params(), &Patch::Merge(patch)),
        )
        .await
}

/// Log, metrics and Events of a successful write.
pub(in crate::run) fn report(run: &TerraformRun, write: Write, ctx: &Context) {
    match write.kind {
        Kind::Open => {
            ctx.cluster.metrics.attempt_opened();
            tracing::info!("attempt opened");
        }
        Kind::Close => tracing::info!("attempt closed"),
        Kind::End => tracing::info!("run ended"),
        Kind::Approval => tracing::info!("approval settled"),
        Kind::Settled => tracing::info!("settled"),
        Kind::Begin
        | Kind::Start
        | Kind::Conditions
        | Kind::Gone
        | Kind::Rerun
        | Kind::Journal
        | Kind::Lease
        | Kind::Lock => {
            tracing::debug!(kind = ?write.kind, "status written");
        }
    }
    if let Some((operation, result)) = write.finished {
        ctx.cluster.metrics.run_finished(operation, result);
        datastore::drop_bundles(run, ctx);
    }
    ctx.events.publish(run, write.notes);
}

/// The write as a JSON Patch. It tests the fields and annotations that decisions depend on, as [`fields`] lists them.
fn operations(run: &TerraformRun, write: &Write) -> serde_json::Result<Vec<Value>> {
    let status = serde_json::to_value(&run.status)?;
    let mut operations = vec![
        test("/metadata/uid", &run.metadata.uid),
        test(
            "/metadata/deletionTimestamp",
            &run.metadata.deletion_timestamp,
        ),
    ];
    match &run.metadata.annotations {
        None => operations.push(test("/metadata/annotations", Value::Null)),
        Some(_) => {
            operations.extend(fields::ANNOTATIONS.map(|name| {
                test(
                    &names::annotation_pointer(name),
                    run.annotations().get(name),
                )
            }));
        }
    }
    if status.is_null() {
        operations.push(test("/status", Value::Null));
    }
    let decided = fields::FIELDS
        .iter()
        .filter_map(|field| Some((field.name, field.decides?)));
    for (field, parts) in decided.filter(|_| !status.is_null()) {
        let there = &status[field];
        if there.is_object() {
            operations.extend(
                parts
                    .iter()
                    .map(|part| test(&format!("/status/{field}/{part}"), &there[part])),
            );
        } else {
            operations.push(test(&format!("/status/{field}"), there));
        }
    }
    for (index, condition) in status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        let parts = ["type", "status", "reason", "lastTransitionTime"];
        operations.extend(parts.map(|part| {
            test(
                &format!("/status/conditions/{index}/{part}"),
                &condition[part],
            )
        }));
    }
    let changes = Map::from_iter([("status".to_owned(), Value::Object(write.status.clone()))]);
    merge(&mut operations, "", &json!({"status": status}), &changes);
    Ok(operations)
}

fn test(path: &str, value: impl Serialize) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

/// The operations of a merge patch on an existing object. Pawl's field names contain no `/` or `~`.
fn merge(operations: &mut Vec<Value>, path: &str, there: &Value, patch: &Map<String, Value>) {
    for (field, value) in patch {
        let (path, there) = (format!("{path}/{field}"), &there[field]);
        match value {
            Value::Null if there.is_null() => {}
            Value::Null => operations.push(json!({"op": "remove", "path": path})),
            Value::Object(parts) if there.is_object() => merge(operations, &path, there, parts),
            other => {
                operations.push(json!({"op": "add", "path": path, "value": without_nulls(other)}));
            }
        }
    }
}

/// Nulls of a merge patch set nothing in a new object.
pub(super) fn without_nulls(value: &Value) -> Value {
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
        run.metadata.annotations =
            Some([(names::APPROVE.to_owned(), "sha256:1".to_owned())].into());
        run.status = serde_json::from_value(json!({"phase": "AwaitingApproval",
            "attempt": {"number": 2, "podName": "p", "open": true, "tries": 1}, "lease": {"stateKey": "k", "name": "n",
            "at": "2026-01-01T00:00:00Z"}, "conditions": [{"type": "Stalled", "status": "False", "reason": "Progressing",
            "message": "a & b", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
        .unwrap();
        run
    }

    #[test]
    fn patch_tests_what_was_read_but_not_what_others_write() {
        let status = json!({"approval": {"checksum": "sha256:1", "by": "alice", "comment": null},
            "attempt": {"open": false, "image": null}, "lease": null});
        let operations = operations(&waiting(), &write(Kind::Approval, &status)).unwrap();
        let tested = |path: &str| {
            operations
                .iter()
                .find(|o| o["op"] == "test" && o["path"] == path)
                .map(|o| o["value"].clone())
        };
        assert_eq!(
            tested("/metadata/annotations/pawl.run~1approve"),
            Some(json!("sha256:1"))
        );
        for absent in [
            "/metadata/annotations/pawl.run~1cancel",
            "/metadata/deletionTimestamp",
            "/status/claim",
            "/status/approval",
        ] {
            assert_eq!(tested(absent), Some(Value::Null), "{absent}");
        }
        assert_eq!(tested("/status/attempt/number"), Some(json!(2)));
        assert_eq!(
            tested("/status/conditions/0/reason"),
            Some(json!("Progressing"))
        );
        assert!(
            tested("/metadata/resourceVersion").is_none()
                && tested("/status/conditions/0/message").is_none()
        );
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
    fn approval_with_lease_tests_the_passed_over_count() {
        let status =
            json!({"approval": {"checksum": "sha256:1"}, "lease": {"stateKey": "k2", "name": "n"}});
        let mut run = waiting();
        run.status
            .as_mut()
            .unwrap()
            .attempt
            .as_mut()
            .unwrap()
            .passed_over = Some(2);
        let operations = operations(&run, &write(Kind::Approval, &status)).unwrap();
        let of = |path: &str| {
            operations
                .iter()
                .filter(|o| o["path"] == path)
                .map(|o| o["op"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (of("/status/attempt/passedOver"), of("/status/lease/name")),
            (vec![json!("test")], vec![json!("add")])
        );
    }

    #[test]
    fn first_status_write_adds_the_status() {
        let operations = operations(
            &run(),
            &write(Kind::Open, &json!({"phase": "Pending", "failure": null})),
        )
        .unwrap();
        let of_status: Vec<_> = operations
            .iter()
            .filter(|o| o["path"].as_str().unwrap().starts_with("/status"))
            .collect();
        let test = json!({"op": "test", "path": "/status", "value": null});
        assert_eq!(
            json!(of_status),
            json!([test, {"op": "add", "path": "/status", "value": {"phase": "Pending"}}])
        );
    }

    #[test]
    fn closing_write_tests_the_fields_of_the_agent() {
        let operations = operations(
            &waiting(),
            &write(Kind::Close, &json!({"attempt": {"open": false}})),
        )
        .unwrap();
        for path in [
            "/status/adopted",
            "/status/claim",
            "/status/result",
            "/status/failure",
        ] {
            assert!(operations.contains(&test(path, Value::Null)), "{path}");
        }
    }

    #[test]
    fn conflict_retries_with_field_tests_invalid_with_version() {
        assert_eq!(
            (Basis::of(Kind::Approval), Basis::of(Kind::Close)),
            (Basis::Fields, Basis::Version)
        );
        assert_eq!(Basis::after(ErrorKind::Conflict), Basis::Fields);
        assert_eq!(Basis::after(ErrorKind::Invalid), Basis::Version);
    }
}
