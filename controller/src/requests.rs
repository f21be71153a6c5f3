//! What people ask of a run by its annotations, or by deleting it.

use kube::ResourceExt;

use crds::{RunResult, TerraformRun, names};

/// A person or the API asks that the run comes to an end before its claim.
pub(crate) fn asked(run: &TerraformRun) -> Option<(RunResult, String)> {
    let annotation = |name: &str| run.annotations().get(name);
    if let Some(denied) = run.denied() {
        Some((RunResult::Rejected, denied))
    } else if let Some(cancelled) = run.cancelled() {
        Some((RunResult::Canceled, cancelled))
    } else if run.metadata.deletion_timestamp.is_some() {
        Some((RunResult::Canceled, "the run was deleted".into()))
    } else {
        let life = annotation(names::LIFE).filter(|life| run.uid().as_ref() != Some(*life))?;
        // One that has begun has a status of its own, and was not made from anything.
        run.status
            .as_ref()
            .and_then(|status| status.attempt.as_ref())
            .is_none()
            .then(|| (RunResult::Canceled, format!("made again from the run of UID {life}, out of a backup or a copy")))
    }
}
