//! A run of a layer as the index keeps it: as it is while something may still become of it, and packed once it has ended.

use super::seen_run::SeenRun;
use crate::cluster::packed::{Alike, Packed};

/// Runs that have ended.
static ENDED: Alike = Alike::new();

/// A run of a layer. The same run is kept in the same way, so two of these can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeptRun {
    /// Something may still become of it.
    Open(Box<SeenRun>),
    /// It has ended: its JSON.
    Ended(Packed),
}

impl KeptRun {
    /// Keeps a run.
    pub(super) fn of(run: SeenRun) -> Self {
        let packed = if run.is_ended() { ENDED.keep(&run).ok() } else { None };
        packed.map_or_else(|| Self::Open(Box::new(run)), Self::Ended)
    }

    /// The run; `None` when one cannot be read that was packed by this process.
    pub(super) fn run(&self) -> Option<SeenRun> {
        match self {
            Self::Open(run) => Some((**run).clone()),
            Self::Ended(packed) => ENDED.read(packed),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sha2::{Digest as _, Sha256};

    use super::{super::seen_run::Stage, *};
    use crate::testing;
    use crds::{PlanStatus, TerraformRun, names};

    fn ended(number: usize) -> SeenRun {
        let sum = |of: &str| format!("sha256:{}", hex::encode(Sha256::digest(format!("{of} {number}"))));
        let at = "2026-01-01T00:00:00Z";
        let mut plan = serde_json::to_value(PlanStatus::default()).unwrap();
        testing::merge(
            &mut plan,
            &json!({"createdAt": at, "summary": "+1 ~0 -0", "stateKey": sum("state"), "checksum": sum("plan")}),
        );
        let run: TerraformRun = serde_json::from_value(json!({
            "metadata": {"name": format!("network-of-team-{number}"), "namespace": "team", "uid": format!("{number:08}-4c1d-4d0c-8b7e-0a1b2c3d4e5f"),
                "creationTimestamp": at, "labels": {names::LABEL_LAYER_UID: "layer-uid"},
                "annotations": {names::CONTENT: sum("content"), names::SETTINGS: sum("settings")}},
            "spec": {"source": {"repository": {"name": "infra", "revision": &sum("revision")[7..47]}}},
            "status": {"phase": "Succeeded", "result": "Applied", "completionTime": at, "plan": plan}}))
        .unwrap();
        SeenRun::of(&run).unwrap().1
    }

    #[test]
    fn a_run_is_read_as_it_was_kept_and_two_of_the_same_are_the_same() {
        let open = SeenRun { stage: Stage::Waiting, ..ended(2) };
        for run in [ended(1), ended(2), open] {
            let kept = KeptRun::of(run.clone());
            assert_eq!(kept.run(), Some(run.clone()));
            assert_eq!(kept, KeptRun::of(run.clone()));
            assert_ne!(kept, KeptRun::of(SeenRun { deleting: true, ..run }));
        }
    }

    #[test]
    fn one_that_has_ended_costs_little() {
        let sizes = (0..100).map(|number| match KeptRun::of(ended(number)) {
            KeptRun::Ended(packed) => packed.size(),
            KeptRun::Open(run) => panic!("{run:?}"),
        });
        let bytes = sizes.sum::<usize>() / 100;
        assert!(bytes < 300, "{bytes} bytes: {}", serde_json::to_string(&ended(0)).unwrap());
    }
}
