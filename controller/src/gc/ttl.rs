//! Finished runs go after their time. Indeterminate ones stay, as somebody has to look at them; so do those that a tool keeps, as it
//! would make them again, and with them their apply.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crds::{RunResult, TerraformRun, TerraformRunStatus};

use crate::settings::Settings;

/// Labels and annotations of tools that make again what is deleted.
pub const KEPT_BY: [&str; 7] = [
    "argocd.argoproj.io/instance",
    "argocd.argoproj.io/tracking-id",
    "app.kubernetes.io/instance",
    "kustomize.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/name",
    "meta.helm.sh/release-name",
    "config.k8s.io/owning-inventory",
];

/// When a run goes; `None`: never, as far as is known now.
pub fn due(run: &TerraformRun, status: &TerraformRunStatus, settings: &Settings) -> Option<Timestamp> {
    let ttl = run.spec.ttl_seconds_after_finished.or(settings.default_ttl_seconds)?;
    let (ended, result) = (status.completion_time.as_ref()?, status.result?);
    let kept = |key: &str| run.labels().contains_key(key) || run.annotations().contains_key(key);
    if result == RunResult::Indeterminate || KEPT_BY.iter().any(|key| kept(key)) {
        return None;
    }
    ended.0.checked_add(SignedDuration::from_secs(i64::from(ttl))).ok()
}
