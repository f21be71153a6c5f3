//! Fixtures for unit tests.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::api::ObjectMeta;

use crds::{InlineSource, Source, TerraformRun, TerraformRunSpec, names, whole_seconds};

/// UID of [`run`].
pub(crate) const UID: &str = "0b9c1a4e-1f7e-4c07-9d43-2a1f35e3b8aa";
/// UID of an attempt's pod.
pub(crate) const POD: &str = "7d1b2f6e-58a5-4a3c-8f0c-5e2f3a9d1c42";
/// Nonce of a process.
pub(crate) const NONCE: &str = "000102030405060708090a0b0c0d0e0f";

/// The start time of tests.
pub(crate) fn t0() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// Asserts that a text contains a part.
#[track_caller]
pub(crate) fn has(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in {text:?}");
}

/// A run as a person creates it, with the finalizer.
pub(crate) fn run() -> TerraformRun {
    // The schema's defaults equal those of serde.
    let spec: TerraformRunSpec = serde_json::from_value(serde_json::json!({
        "source": {"inline": {"files": {"main.tf": ""}}},
    }))
    .unwrap();
    assert!(
        spec.source
            == Source {
                inline: Some(InlineSource {
                    files: BTreeMap::from([("main.tf".into(), String::new())])
                }),
                ..Source::default()
            }
    );
    TerraformRun {
        metadata: ObjectMeta {
            name: Some("net".into()),
            namespace: Some("team".into()),
            uid: Some(UID.into()),
            resource_version: Some("1".into()),
            generation: Some(1),
            finalizers: Some(vec![names::RUN_FINALIZER.into()]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// The same with another name, created this many seconds after [`t0`].
pub(crate) fn named(namespace: &str, name: &str, second: i64) -> TerraformRun {
    let mut run = run();
    run.metadata.namespace = Some(namespace.into());
    run.metadata.name = Some(name.into());
    run.metadata.uid = Some(format!("{namespace}-{name}"));
    run.metadata.creation_timestamp = Some(whole_seconds(at(second)));
    run
}

/// This many seconds after [`t0`].
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(t0().as_second() + second).unwrap()
}

/// Applies a JSON merge patch (RFC 7396), as the API server does.
pub(crate) fn merge(to: &mut serde_json::Value, patch: &serde_json::Value) {
    let Some(patch) = patch.as_object() else {
        *to = patch.clone();
        return;
    };
    if !to.is_object() {
        *to = serde_json::json!({});
    }
    let target = to.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(serde_json::Value::Null), value);
        }
    }
}
