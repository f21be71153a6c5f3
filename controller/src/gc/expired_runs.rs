//! Deletes finished runs after their TTL. Indeterminate runs remain for people to examine. Runs managed by a GitOps
//! tool remain, because the tool would recreate them and apply again. Runs of a layer follow the layer's own retention;
//! the run that destroyed a layer's resources outlives the layer and follows the TTL.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crds::{RunResult, Trigger, names};

use crate::settings::Settings;

/// Interval of sweeps. A timer per run would cost more than the run itself.
pub const SWEEP: Duration = Duration::from_secs(600);

/// Labels and annotations of tools that recreate deleted objects.
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

/// When a run is deleted; `None` when it is never due, according to its current state.
pub fn due(
    run: &impl ResourceExt,
    ttl_seconds: Option<u32>,
    ended: Option<&Time>,
    result: Option<RunResult>,
    settings: &Settings,
) -> Option<Timestamp> {
    let (ttl, ended, result) = (
        ttl_seconds.or(settings.default_ttl_seconds)?,
        ended?,
        result?,
    );
    let kept = |key: &str| run.labels().contains_key(key) || run.annotations().contains_key(key);
    let history = run
        .annotations()
        .get(names::TRIGGER)
        .is_some_and(|trigger| trigger != Trigger::Deletion.as_str());
    if history || result == RunResult::Indeterminate || KEPT_BY.iter().any(|key| kept(key)) {
        return None;
    }
    ended
        .0
        .checked_add(SignedDuration::from_secs(i64::from(ttl)))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, t0};

    #[test]
    fn runs_of_a_layer_are_its_history() {
        let due = |trigger: Option<&str>| {
            let mut run = run();
            run.metadata.annotations =
                trigger.map(|trigger| [(names::TRIGGER.to_owned(), trigger.to_owned())].into());
            due(
                &run,
                Some(60),
                Some(&Time(t0())),
                Some(RunResult::Applied),
                &Settings::default(),
            )
        };
        assert!(due(None).is_some());
        assert!(due(Some("Commit")).is_none());
        assert!(due(Some("Drift")).is_none());
        assert!(
            due(Some("Deletion")).is_some(),
            "nobody else deletes it when its layer is gone"
        );
    }
}
