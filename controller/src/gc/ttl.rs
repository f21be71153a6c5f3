//! Finished runs go after their time. Indeterminate ones stay, as somebody has to look at them; so do those that a tool keeps, as it
//! would make them again, and with them their apply. A layer's runs are its history, which says itself how long they are kept; the one
//! that destroyed what a layer made outlives it, and goes as any other.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crds::{RunResult, Trigger, names};

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
    let history = run.annotations().get(names::TRIGGER).is_some_and(|trigger| trigger != Trigger::Deletion.as_str());
    if history || result == RunResult::Indeterminate || KEPT_BY.iter().any(|key| kept(key)) {
        return None;
    }
    ended.0.checked_add(SignedDuration::from_secs(i64::from(ttl))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, t0};

    #[test]
    fn runs_of_a_layer_are_its_history() {
        let due = |trigger: Option<&str>| {
            let mut run = run();
            run.metadata.annotations = trigger.map(|trigger| [(names::TRIGGER.to_owned(), trigger.to_owned())].into());
            due(&run, Some(60), Some(&Time(t0())), Some(RunResult::Applied), &Settings::default())
        };
        assert!(due(None).is_some());
        assert!(due(Some("Commit")).is_none() && due(Some("Drift")).is_none());
        assert!(due(Some("Deletion")).is_some(), "nobody else deletes it when its layer is gone");
    }
}
