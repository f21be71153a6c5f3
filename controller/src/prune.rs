//! Finished runs go after their time. Indeterminate ones stay, as somebody has to look at them; so do those that a tool keeps, as it
//! would make them again, and with them their apply.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crds::RunResult;

use crate::{
    run::{Action, Decision, RunView},
    settings::Settings,
};

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

/// Whether the run goes now, later or never.
pub fn decide(run: &RunView, settings: &Settings, now: Timestamp) -> Decision {
    let status = &run.status;
    let Some(ttl) = run.spec.ttl_seconds_after_finished.or(settings.default_ttl_seconds) else { return Decision::wait() };
    let (Some(ended), Some(result)) = (&status.completion_time, status.result) else { return Decision::wait() };
    let kept = |key: &str| run.labels().contains_key(key) || run.annotations().contains_key(key);
    if result == RunResult::Indeterminate || KEPT_BY.iter().any(|key| kept(key)) {
        return Decision::wait();
    }
    match ended.0.checked_add(SignedDuration::from_secs(i64::from(ttl))) {
        Ok(due) if now >= due => Decision::act(Action::Prune),
        Ok(due) => Decision::until(due, now),
        Err(_) => Decision::wait(),
    }
}
