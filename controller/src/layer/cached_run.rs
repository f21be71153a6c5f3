//! A run of a layer as the index keeps it: as it is while something may still become of it, and after that within the text that the cache
//! of runs keeps of it.

use serde::de::IgnoredAny;

use crds::TerraformRun;

use super::run_summary::RunSummary;
use crate::cluster::packed::Packed;

#[derive(Clone, Debug)]
pub struct CachedLayerRun(Form);

#[derive(Clone, Debug)]
enum Form {
    /// As it is.
    Open(Box<RunSummary>),
    /// The second of two values in a text.
    Within(Packed),
}

/// A run, and whose it is.
#[derive(Clone, Debug)]
pub struct LayerRun {
    /// UID of the layer.
    pub(super) layer: String,
    /// Name of the run.
    pub(super) run: Box<str>,
    pub(crate) kept: CachedLayerRun,
}

impl LayerRun {
    /// A run, as it is; `None` for one that is no layer's.
    pub fn of(run: &TerraformRun) -> Option<Self> {
        let (layer, seen) = RunSummary::of(run)?;
        Some(Self { layer, run: seen.name.clone(), kept: CachedLayerRun(Form::Open(Box::new(seen))) })
    }

    /// The same, kept in a text behind something else.
    pub(crate) fn within(self, text: &Packed) -> Self {
        Self { kept: CachedLayerRun(Form::Within(text.clone())), ..self }
    }
}

impl CachedLayerRun {
    /// The run where it is not in a text.
    pub(crate) fn at_hand(&self) -> Option<&RunSummary> {
        match &self.0 {
            Form::Open(run) => Some(run),
            Form::Within(_) => None,
        }
    }

    /// The run; `None` when one cannot be read that was packed by this process.
    pub(crate) fn run(&self) -> Option<RunSummary> {
        match &self.0 {
            Form::Open(run) => Some((**run).clone()),
            Form::Within(text) => text.read::<(IgnoredAny, RunSummary)>().map(|(_, run)| run),
        }
    }

    /// Whether another says the same of its run: what else is in a text is nothing to the layer.
    pub(super) fn says(&self, other: &Self) -> bool {
        matches!((&self.0, &other.0), (Form::Within(one), Form::Within(other)) if one == other) || self.run() == other.run()
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
    fn a_run_is_read_as_it_was_kept_and_what_stands_before_it_makes_it_no_other() {
        let within = |before: &str, run: LayerRun| {
            let text = ALIKE.keep(&(before, run.kept.at_hand())).unwrap();
            run.within(&text).kept
        };
        let (run, other) = (|| ended("Applied"), || ended("NoChanges"));
        let kept = [run().kept, within("1", run()), within("1", run()), within("2", run())];
        for one in &kept {
            assert_eq!(one.run().as_ref(), run().kept.at_hand());
            assert!(kept.iter().all(|two| one.says(two)));
            assert!(!one.says(&within("1", other())) && !one.says(&other().kept));
        }
    }
}
