//! Finished runs go after their time. Indeterminate ones stay, as somebody has to look at them; so do those that a tool keeps, as it
//! would make them again, and with them their apply.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crds::RunResult;

use crate::settings::Settings;

/// How often somebody looks which finished runs go before the next such look: a timer for each would cost more than the run.
pub const SWEEP: Duration = Duration::from_secs(600);

/// Labels and annotations of tools that make again what is deleted.
pub const KEPT_BY: [&str; 8] = [
    "argocd.argoproj.io/instance",
    "argocd.argoproj.io/tracking-id",
    "app.kubernetes.io/instance",
    "kustomize.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/name",
    "meta.helm.sh/release-name",
    "config.k8s.io/owning-inventory",
    "applyset.kubernetes.io/part-of",
];

/// When a run goes; `None`: never, as far as is known now.
pub fn due(
    run: &impl ResourceExt,
    ttl_seconds: Option<u32>,
    ended: Option<&Time>,
    result: Option<RunResult>,
    settings: &Settings,
) -> Option<Timestamp> {
    let (ttl, ended, result) = (ttl_seconds.or(settings.default_ttl_seconds)?, ended?, result?);
    let kept = |key: &str| run.labels().contains_key(key) || run.annotations().contains_key(key);
    if result == RunResult::Indeterminate || KEPT_BY.iter().any(|key| kept(key)) {
        return None;
    }
    ended.0.checked_add(SignedDuration::from_secs(i64::from(ttl))).ok()
}
