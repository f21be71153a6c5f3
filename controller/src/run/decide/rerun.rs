//! Answers `pawl.run/rerun=true` once, by a new run of the same spec.

use std::collections::BTreeMap;

use kube::{ResourceExt, api::ObjectMeta};
use serde_json::Value;

use crate::{
    gc::expired_runs,
    run::{
        outcome::{Action, Decision, Outcome},
        situation::Situation,
    },
    run_requests,
};
use crds::{TerraformRun, TerraformRunSpec, datastore::StateId, names};

/// Creates the run and records its name.
pub(super) fn answer(s: &Situation<'_>) -> Decision {
    let name = names::rerun_name(&s.run.name_any(), &s.run.uid().unwrap_or_default());
    Decision::all(vec![
        Action::CreateRerun,
        Action::Write(Outcome::RerunCreated(name)),
    ])
}

/// The new run. Its name is derived from the old run's UID, so two requests create one run.
pub(in crate::run) fn fresh_run(run: &TerraformRun) -> TerraformRun {
    same_spec(
        run,
        names::rerun_name(&run.name_any(), &run.uid().unwrap_or_default()),
        names::RERUN_OF,
    )
}

/// A run of that name with the same spec and the same managed state. `origin` is the annotation that names the old run.
pub(super) fn same_spec(run: &TerraformRun, name: String, origin: &str) -> TerraformRun {
    // The new run is in no manifest: a tool that found its label on it would delete it, and its TTL would never prune it.
    let own = |key: &str| {
        key.starts_with("pawl.run/")
            || key == names::LABEL_MANAGED_BY
            || expired_runs::KEPT_BY.contains(&key)
    };
    let mut spec = run.spec.clone();
    if spec.source.inline.is_some() {
        // Without it the new run would use another managed state, without the old run's objects.
        spec.stack = Some(StateId::of(&run.name_any(), &spec).stack);
    }
    let mut annotations: BTreeMap<_, _> = [(origin.to_owned(), run.name_any())].into();
    // All of them requested the new run: its spec is theirs.
    let named = [names::REQUESTED_BY, names::ASKED_BY].map(|key| run.annotations().get(key));
    let requesters =
        run_requests::requesters(named.into_iter().flatten().flat_map(|names| names.lines()));
    if !requesters.is_empty() {
        annotations.insert(names::REQUESTED_BY.to_owned(), requesters.join("\n"));
    }
    let labels = run
        .labels()
        .iter()
        .filter(|(key, _)| !own(key))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    TerraformRun {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: run.namespace(),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// The stored spec with the differences between `old` and `fresh` applied, so fields of newer versions are retained.
///
/// # Errors
/// Never: both have string keys.
pub(in crate::run) fn carried(
    stored: &Value,
    old: &TerraformRunSpec,
    fresh: &TerraformRunSpec,
) -> serde_json::Result<Value> {
    let mut spec = stored.clone();
    carry(
        &mut spec,
        &serde_json::to_value(old)?,
        &serde_json::to_value(fresh)?,
    );
    Ok(spec)
}

fn carry(to: &mut Value, old: &Value, fresh: &Value) {
    if old == fresh {
        return;
    }
    let (Some(fields), Some(before), Some(after)) =
        (to.as_object_mut(), old.as_object(), fresh.as_object())
    else {
        *to = fresh.clone();
        return;
    };
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        fields.remove(key);
    }
    for (key, value) in after
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(*value))
    {
        carry(
            fields.entry(key.clone()).or_insert(Value::Null),
            before.get(key).unwrap_or(&Value::Null),
            value,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use serde_json::json;

    #[test]
    fn rerun_copies_unknown_spec_fields() {
        let run = testing::run();
        let mut stored = serde_json::to_value(&run.spec).unwrap();
        // A spec stored by an older version lacks later defaults.
        stored.as_object_mut().unwrap().remove("retry");
        stored["newer"] = json!({"field": [1, {"a": null}]});
        stored["approval"]["newer"] = "x".into();
        stored["variables"] = json!([{"name": "a", "value": 1, "newer": true}]);
        let whole: TerraformRun = serde_json::from_value(
            json!({"metadata": {"name": "net", "namespace": "team", "uid": testing::UID}, "spec": stored}),
        )
        .unwrap();
        let again = carried(&stored, &whole.spec, &fresh_run(&whole).spec).unwrap();
        let mut wanted = stored.clone();
        wanted["stack"] = "net".into();
        assert_eq!(again, wanted);
        let recovered = carried(
            &stored,
            &whole.spec,
            &super::super::recovery::fresh_run(&whole).spec,
        )
        .unwrap();
        wanted["recover"] = json!({"fromRun": "net"});
        wanted["approval"]["mode"] = "Manual".into();
        assert_eq!(recovered, wanted);
        assert_eq!(carried(&stored, &whole.spec, &whole.spec).unwrap(), stored);
    }

    #[test]
    fn rerun_and_recovery_name_all_requesters() {
        let mut run = testing::run();
        let named = |run: &TerraformRun| run.annotations().get(names::REQUESTED_BY).cloned();
        assert_eq!(named(&fresh_run(&run)), None);
        for (of, asks, all) in [
            ("ada\nbob", "cy", "ada\nbob\ncy"),
            ("ada\nbob", "ada", "bob\nada"),
            ("", "ada", "ada"),
            ("ada", "", "ada"),
        ] {
            let annotations = [(names::REQUESTED_BY, of), (names::ASKED_BY, asks)];
            run.metadata.annotations = Some(
                annotations
                    .map(|(key, name)| (key.to_owned(), name.to_owned()))
                    .into(),
            );
            for fresh in [fresh_run(&run), super::super::recovery::fresh_run(&run)] {
                assert_eq!(named(&fresh).as_deref(), Some(all), "{of} {asks}");
                assert!(!fresh.annotations().contains_key(names::ASKED_BY));
            }
        }
    }

    #[test]
    fn rerun_copies_the_spec_without_approval_or_status() {
        let mut run = testing::run();
        run.metadata.labels = Some(
            [
                ("team".into(), "a".into()),
                ("pawl.run/x".into(), "y".into()),
                (
                    names::LABEL_LAYER.into(),
                    "a run beside the layer, and none of its own".into(),
                ),
                ("app.kubernetes.io/instance".into(), "of Argo CD".into()),
            ]
            .into(),
        );
        run.metadata.annotations = Some(
            [
                (names::APPROVE.into(), "sha256:…".into()),
                (names::TRIGGER.into(), "Commit".into()),
                (names::RERUN.into(), "true".into()),
            ]
            .into(),
        );
        let fresh = fresh_run(&run);
        assert_eq!(
            fresh.spec,
            TerraformRunSpec {
                stack: Some("net".into()),
                ..run.spec.clone()
            },
            "the same managed state"
        );
        let again = fresh_run(&fresh);
        assert_eq!(again.spec.stack.as_deref(), Some("net"));
        assert!(
            fresh.status.is_none()
                && fresh.metadata.finalizers.is_none()
                && fresh.metadata.uid.is_none()
        );
        assert_eq!(fresh.labels().len(), 1);
        assert_eq!(
            fresh.annotations().iter().collect::<Vec<_>>(),
            [(&names::RERUN_OF.to_owned(), &"net".to_owned())]
        );
    }
}
