//! A layer's run in the index: unpacked until it is finished, then inside the packed text that the cache of runs stores for it.

use serde::de::IgnoredAny;

use crds::TerraformRun;

use super::run_summary::RunSummary;
use crate::cluster::packed::Packed;

#[derive(Clone, Debug)]
pub struct CachedLayerRun(Form);

#[derive(Clone, Debug)]
enum Form {
    /// Unpacked.
    Open(Box<RunSummary>),
    /// The second of the two values in a packed text.
    Within(Packed),
}

/// A run and its layer.
#[derive(Clone, Debug)]
pub struct LayerRun {
    /// UID of the layer.
    pub(super) layer: String,
    pub(crate) kept: CachedLayerRun,
}

impl LayerRun {
    /// `None` for a run without a layer.
    pub fn of(run: &TerraformRun) -> Option<Self> {
        let (layer, seen) = RunSummary::of(run)?;
        Some(Self {
            layer,
            kept: CachedLayerRun(Form::Open(Box::new(seen))),
        })
    }

    /// The same run, as the second value of a packed text.
    pub(crate) fn within(self, text: &Packed) -> Self {
        Self {
            kept: CachedLayerRun(Form::Within(text.clone())),
            ..self
        }
    }
}

impl CachedLayerRun {
    /// The run, unless it is packed.
    pub(crate) fn at_hand(&self) -> Option<&RunSummary> {
        match &self.0 {
            Form::Open(run) => Some(run),
            Form::Within(_) => None,
        }
    }

    /// The run; `None`, which is logged, if the packed text cannot be read.
    pub(crate) fn run(&self) -> Option<RunSummary> {
        match &self.0 {
            Form::Open(run) => Some((**run).clone()),
            Form::Within(text) => text.read::<(IgnoredAny, RunSummary)>().map(|(_, run)| run),
        }
    }

    /// Compares the runs alone. The first value of a packed text does not concern the layer.
    pub(super) fn says(&self, other: &Self) -> bool {
        matches!((&self.0, &other.0), (Form::Within(one), Form::Within(other)) if one == other)
            || self.run() == other.run()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::packed::Alike;

    static ALIKE: Alike = Alike::new();

    fn ended(result: &str) -> LayerRun {
        let run = json!({"metadata": {"name": "a", "namespace": "team", "labels": {crds::names::LABEL_LAYER_UID: "layer-uid"}},
            "spec": {"source": {"inline": {"files": {}}}}, "status": {"phase": "Succeeded", "result": result}});
        LayerRun::of(&serde_json::from_value(run).unwrap()).unwrap()
    }

    #[test]
    fn packed_runs_compare_by_the_run_alone() {
        let within = |before: &str, run: LayerRun| {
            let text = ALIKE.keep(&(before, run.kept.at_hand())).unwrap();
            run.within(&text).kept
        };
        let (run, other) = (|| ended("Applied"), || ended("NoChanges"));
        let kept = [
            run().kept,
            within("1", run()),
            within("1", run()),
            within("2", run()),
        ];
        for one in &kept {
            assert_eq!(one.run().as_ref(), run().kept.at_hand());
            assert!(kept.iter().all(|two| one.says(two)));
            assert!(!one.says(&within("1", other())) && !one.says(&other().kept));
        }
    }
}
