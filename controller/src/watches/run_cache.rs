//! The cached form of a run: the object itself while the run may still change, packed text once it is finished.

use std::sync::Arc;

use watching::{Index, Key};

use crds::{TerraformRun, conditions};

use crate::{
    cluster::{
        Cluster,
        cached::{Cached, Store},
        packed::Alike,
    },
    gc::expired_runs,
    layer::{LayerRun, Layers},
    run::cached_run::{trim, wake_hash},
    settings::Settings,
};

/// Packs finished runs, each with the summary that its layer reads.
static FINISHED: Alike = Alike::new();

/// Fills the store of runs, and the layers with their runs.
pub(super) struct RunCache {
    pub(super) layers: Arc<Layers>,
    pub(super) store: Arc<Store<TerraformRun>>,
    pub(super) cluster: Arc<Cluster>,
}

impl Index<TerraformRun> for RunCache {
    fn apply(&self, key: &Key, run: &TerraformRun) {
        if let Some(field) = run.unknown_word() {
            tracing::warn!(run.namespace = %key.0, run.name = %key.1, field, "a word of a newer version: the run is left alone");
        }
        let (cached, of) = cached(run, &self.cluster.settings);
        match of {
            Some(of) => self.layers.apply_run(key, of),
            None => self.layers.delete_run(key),
        }
        self.store.put(key, cached);
    }

    fn delete(&self, key: &Key) {
        self.layers.delete_run(key);
        self.store.remove(key);
    }
}

/// The cached form of a run, and its layer's. A finished run and its layer's summary share one packed text.
fn cached(run: &TerraformRun, settings: &Settings) -> (Cached<TerraformRun>, Option<LayerRun>) {
    let of = LayerRun::of(run);
    let mut run = run.clone();
    trim(&mut run);
    let wakes = wake_hash(&run);
    if !is_finished(&run) {
        return (Cached::whole(run, wakes), of);
    }
    let status = run.status.as_ref();
    let ended = status.and_then(|status| status.completion_time.as_ref());
    let result = status.and_then(|status| status.result);
    let due = expired_runs::due(
        &run,
        run.spec.ttl_seconds_after_finished,
        ended,
        result,
        settings,
    );
    let seen = of.as_ref().and_then(|of| of.kept.at_hand());
    let cached = Cached::packed(run, &seen, &FINISHED, wakes).until(due);
    let of = of.map(|of| match cached.text() {
        Some(text) => of.within(text),
        None => of,
    });
    (cached, of)
}

/// Whether the run changes no more until it is deleted.
fn is_finished(run: &TerraformRun) -> bool {
    let Some(status) = &run.status else {
        return false;
    };
    let open = status.attempt.as_ref().is_some_and(|attempt| attempt.open);
    let told = conditions::status(&status.conditions, conditions::FINISHED) == Some(true);
    status.is_terminal() && !open && told && status.lease.is_none() && run.unknown_word().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        layer::{CachedLayerRun, RunSummary},
        testing,
    };
    use crds::names;
    use kube::ResourceExt;
    use serde_json::json;
    use sha2::{Digest as _, Sha256};

    /// A run of a layer that has ended, as the API server returns it.
    fn ended(number: usize) -> TerraformRun {
        let at = "2026-01-01T00:00:00Z";
        // Hashes differ from run to run.
        let hash = |what: &str| hex::encode(Sha256::digest(format!("{what} {number}")));
        let sum = |what: &str| format!("sha256:{}", hash(what));
        let mut run = testing::run();
        let meta = &mut run.metadata;
        meta.name = Some(format!("layer-of-a-team-{number:05}-bcdfghjklm"));
        let uid = hash("uid");
        meta.uid = Some(format!(
            "{}-{}-4c07-9d43-{}",
            &uid[..8],
            &uid[8..12],
            &uid[12..24]
        ));
        meta.resource_version = Some(format!("{}", 1_000_000 + number));
        meta.creation_timestamp = Some(serde_json::from_value(json!(at)).unwrap());
        meta.labels = Some(
            [
                (names::LABEL_LAYER, "layer-of-a-team"),
                (names::LABEL_LAYER_UID, testing::UID),
            ]
            .map(|(k, v)| (k.into(), v.into()))
            .into(),
        );
        meta.annotations = Some(
            [
                (names::TRIGGER, "Commit".to_owned()),
                (names::CONTENT, sum("4")),
                (names::SETTINGS, sum("5")),
                (names::LIFE, meta.uid.clone().unwrap()),
                (names::APPROVE, sum("1")),
                (names::APPROVED_BY, "alice@example.com".to_owned()),
            ]
            .map(|(k, v)| (k.into(), v))
            .into(),
        );
        let condition = |type_: &str, status: &str, reason: &str| json!({"type": type_, "status": status, "reason": reason, "message": "applied +1 ~0 -0", "lastTransitionTime": at});
        let mut plan = serde_json::to_value(crds::PlanStatus::default()).unwrap();
        let of_plan = json!({"checksum": sum("1"), "attempt": 1, "summary": "+1 ~0 -0", "stateKey": sum("3"), "bundle": sum("2"),
            "createdAt": at, "add": 1, "tool": "OpenTofu 1.10.6"});
        testing::merge(&mut plan, &of_plan);
        run.status = serde_json::from_value(json!({
            "phase": "Succeeded", "result": "Applied", "completionTime": at, "startTime": at, "message": "applied +1 ~0 -0",
            "observedGeneration": 1, "history": ["00:00:00  Setup  a", "00:00:00  Plan  b"],
            "attempt": {"number": 1, "podName": "p", "open": false, "openedAt": at, "closedAt": at, "tries": 1, "image": "i",
                "nodeName": "node-1"},
            "adopted": {"attempt": 1, "podUID": testing::POD, "nonce": testing::NONCE},
            "claim": {"checksum": sum("1"), "attempt": 1, "podUID": testing::POD, "nonce": testing::NONCE, "at": at},
            "approval": {"checksum": sum("1"), "by": "alice@example.com", "at": at},
            "plan": plan,
            "conditions": [condition("Planned", "True", "Planned"), condition("Approved", "True", "Approved"),
                condition("Succeeded", "True", "Applied"), condition("Finished", "True", "Applied")]}))
        .unwrap();
        run
    }

    fn trimmed(number: usize) -> TerraformRun {
        let mut run = ended(number);
        trim(&mut run);
        run
    }

    #[test]
    fn packed_run_and_its_summary_round_trip() {
        let (kept, of) = cached(&ended(1), &Settings::default());
        assert!(kept.at_hand().is_none());
        assert_eq!(
            serde_json::to_value(&*kept.object().unwrap()).unwrap(),
            serde_json::to_value(trimmed(1)).unwrap()
        );
        let (of, seen) = (of.unwrap().kept, RunSummary::of(&ended(1)).unwrap().1);
        assert_eq!(
            (of.at_hand(), of.run()),
            (None, Some(seen)),
            "within that text"
        );
    }

    #[test]
    fn run_is_due_after_its_ttl_unless_it_is_a_layers_history() {
        let settings = Settings {
            default_ttl_seconds: Some(60),
            ..Settings::default()
        };
        let due = |layer: bool, settings: &Settings| {
            let mut run = ended(1);
            run.annotations_mut()
                .retain(|key, _| layer || key != names::TRIGGER);
            cached(&run, settings).0.due()
        };
        assert_eq!(
            due(false, &settings),
            Some("2026-01-01T00:01:00Z".parse().unwrap())
        );
        assert_eq!(due(false, &Settings::default()), None);
        assert_eq!(
            due(true, &settings),
            None,
            "each reconcile that checks its deletion would unpack it"
        );
    }

    #[test]
    fn unfinished_runs_are_not_packed() {
        let changes: [fn(&mut TerraformRun); 4] = [
            |run| run.status = None,
            |run| run.status.as_mut().unwrap().attempt.as_mut().unwrap().open = true,
            |run| run.status.as_mut().unwrap().conditions.clear(),
            |run| {
                let lease = json!({"stateKey": "k", "name": "n", "at": "2026-01-01T00:00:00Z"});
                run.status.as_mut().unwrap().lease = serde_json::from_value(lease).unwrap();
            },
        ];
        for change in changes {
            let mut run = ended(1);
            change(&mut run);
            assert!(cached(&run, &Settings::default()).0.at_hand().is_some());
        }
    }

    /// Counts the key, which all indexes share, and the entries of the watch, the store and the layer.
    #[test]
    fn finished_run_costs_little() {
        const RUNS: usize = 2_000;
        const BOUND: usize = 800;
        let of = |text: usize| text.next_multiple_of(16) + 16;
        let kept: Vec<_> = (0..RUNS)
            .map(|number| cached(&ended(number), &Settings::default()).0)
            .collect();
        let texts = kept
            .iter()
            .map(|run| run.text().unwrap().size())
            .sum::<usize>()
            / RUNS;
        let run = trimmed(0);
        let key = of(size_of::<watching::Name>()) + of(run.name_any().len()) + of(4);
        let of_layer = size_of::<([u8; 16], CachedLayerRun)>() + size_of::<([u8; 16], Key)>();
        // A tree node is half full.
        let tables = 2
            * (size_of::<(Key, u64, u64)>()
                + size_of::<(Key, Cached<TerraformRun>)>()
                + size_of::<Key>()
                + of_layer);
        let bytes = of(texts) + key + tables;
        println!("{bytes} bytes for each, {texts} of them text");
        assert!(
            bytes < BOUND,
            "{bytes} bytes, {texts} of them of {}",
            serde_json::to_string(&(run, RunSummary::of(&ended(0)))).unwrap()
        );
    }
}
