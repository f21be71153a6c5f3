//! The part of a run that is cached, and the part whose change causes a reconcile.

use std::hash::{DefaultHasher, Hash, Hasher};

use kube::Resource;

use crds::{TerraformRun, fields, names};

use crate::gc::expired_runs;

/// Removes the fields that only live reads use; those of the status are in [`fields::FIELDS`]. A finished run retains little more than its
/// name.
pub fn trim(run: &mut TerraformRun) {
    let meta = run.meta_mut();
    meta.managed_fields = None;
    if let Some(labels) = &mut meta.labels {
        labels.retain(|key, _| expired_runs::KEPT_BY.contains(&key.as_str()));
        if labels.is_empty() {
            meta.labels = None;
        }
    }
    meta.generate_name = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| {
            key.starts_with("pawl.run/") || expired_runs::KEPT_BY.contains(&key.as_str())
        });
        if annotations.is_empty() {
            meta.annotations = None;
        }
    }
    let spec = &mut run.spec;
    spec.source = crds::Source::default();
    spec.variables = Vec::new();
    spec.env = Vec::new();
    spec.credentials = crds::Credentials::default();
    spec.backend = None;
    // Retain an unknown value: a decision on the cached run must notice it.
    spec.tool = crds::Tool {
        name: spec
            .tool
            .name
            .filter(|name| *name == crds::ToolName::Unknown),
        version: None,
    };
    spec.workspace = String::new();
    spec.stack = None;
    spec.runner = crds::Runner {
        image: spec.runner.image.take(),
        ..crds::Runner::default()
    };
    if run.status.as_mut().is_some_and(fields::trim) {
        run.spec.runner.image = None;
        run.metadata.owner_references = None;
        if let Some(annotations) = &mut run.metadata.annotations {
            // Annotations of the layer, which reads them from its summary.
            annotations.retain(|key, _| {
                ![names::CONTENT, names::SETTINGS, names::LAYER_SPEC].contains(&key.as_str())
            });
        }
    }
}

/// A hash of the fields that decisions depend on. Progress, steps and the controller's own conditions cause no reconcile.
pub fn wake_hash(run: &TerraformRun) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = run.meta();
    (
        meta.uid.as_deref(),
        meta.generation,
        meta.deletion_timestamp.is_some(),
    )
        .hash(&mut hasher);
    (&meta.finalizers, &meta.annotations).hash(&mut hasher);
    if let Some(status) = &run.status {
        fields::hash_what_wakes(status, &mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{Phase, Progress, RunResult, TerraformRunStatus, conditions};

    #[test]
    fn progress_causes_no_reconcile() {
        let mut run = testing::run();
        run.status = Some(TerraformRunStatus {
            phase: Some(Phase::Apply),
            ..TerraformRunStatus::default()
        });
        let before = wake_hash(&run);
        run.status.as_mut().unwrap().progress = Some(Progress {
            done: 3,
            total: 7,
            current: None,
            quiet_since: None,
        });
        assert_eq!(wake_hash(&run), before);
        run.metadata.annotations = Some([(names::CANCEL.into(), "why".into())].into());
        assert_ne!(wake_hash(&run), before);
    }

    #[test]
    fn trimmed_finished_run_is_small() {
        let mut run = testing::run();
        let mut status = TerraformRunStatus {
            phase: Some(Phase::Succeeded),
            result: Some(RunResult::Applied),
            history: vec!["x".repeat(200); 40],
            ..TerraformRunStatus::default()
        };
        for type_ in conditions::ALL {
            conditions::set(
                &mut status.conditions,
                type_,
                Some(true),
                "Applied",
                "text",
                None,
                testing::t0(),
            );
        }
        run.status = Some(status);
        run.metadata.annotations = Some(
            [(
                "kubectl.kubernetes.io/last-applied-configuration".into(),
                "x".repeat(9000),
            )]
            .into(),
        );
        trim(&mut run);
        assert!(
            serde_json::to_vec(&run).unwrap().len() < 1200,
            "{}",
            serde_json::to_string(&run).unwrap()
        );
        assert_eq!(
            conditions::status(&run.status.unwrap().conditions, conditions::FINISHED),
            Some(true)
        );
    }
}
