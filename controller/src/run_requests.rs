//! People's requests to a run, by annotation or by deletion.

use kube::ResourceExt;

use crds::{RunResult, TerraformRun, names};

/// The request to end a run before its claim, if any: the result and the reason.
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
        // A run that has started has its own status, and was not recreated.
        run.status
            .as_ref()
            .and_then(|status| status.attempt.as_ref())
            .is_none()
            .then(|| {
                (
                    RunResult::Canceled,
                    format!("made again from the run of UID {life}, out of a backup or a copy"),
                )
            })
    }
}

/// The users of [`names::REQUESTED_BY`]: each once, in the order of their last request. Of too many, the oldest are left out, and too many
/// remain.
pub(crate) fn requesters<'a>(of: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in of.filter(|name| !name.is_empty()) {
        all.retain(|before| before != name);
        all.push(name.to_owned());
    }
    let over = all.len().saturating_sub(names::MAX_REQUESTERS + 1);
    all.split_off(over)
}
