//! Metrics of `controller run`, each with labels from a bounded set.

use std::sync::Mutex;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crds::{LayerState, Operation, RunResult};
use serving::metrics::{Exposition, exposition};

use crate::error::Error;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FinishedLabels {
    operation: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LayerLabels {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ClassLabels {
    class: &'static str,
}

pub struct Metrics {
    registry: Mutex<Registry>,
    finished: Family<FinishedLabels, Counter>,
    attempts: Counter,
    reconciles: Histogram,
    errors: Family<ErrorLabels, Counter>,
    policies: Gauge,
    leads: Gauge,
    layers: Family<LayerLabels, Gauge>,
    open: Family<ClassLabels, Gauge>,
    waiting: Family<ClassLabels, Gauge>,
    frozen: Gauge,
}

impl Metrics {
    pub fn new() -> Self {
        let (finished, attempts, errors, policies) = (
            Family::default(),
            Counter::default(),
            Family::default(),
            Gauge::default(),
        );
        let reconciles = Histogram::new(exponential_buckets(0.0005, 2.5, 12));
        let mut registry = Registry::with_prefix("pawl");
        registry.register(
            "runs_finished",
            "Runs that ended, by operation and result",
            finished.clone(),
        );
        registry.register(
            "attempts_opened",
            "Attempts that were opened",
            attempts.clone(),
        );
        registry.register(
            "reconcile_duration_seconds",
            "Duration of one reconcile of a run",
            reconciles.clone(),
        );
        registry.register(
            "api_errors",
            "Calls to the API server that failed, by kind",
            errors.clone(),
        );
        registry.register(
            "gate_proven",
            "1 when the last proof of the admission policies succeeded, 0 when it failed, -1 before",
            policies.clone(),
        );
        policies.set(-1);
        let leads = Gauge::default();
        registry.register(
            "leads",
            "1 while this controller leads, 0 while it is a standby",
            leads.clone(),
        );
        let layers = Family::default();
        registry.register("layers", "Layers by pending action", layers.clone());
        let (open, waiting, frozen) = (Family::default(), Family::default(), Gauge::default());
        registry.register(
            "slots_open",
            "Attempts that have a slot, by class",
            open.clone(),
        );
        registry.register(
            "slots_waiting",
            "Runs that wait for a slot, by class",
            waiting.clone(),
        );
        registry.register(
            "frozen_namespaces",
            "Namespaces that are frozen, -1 when all are",
            frozen.clone(),
        );
        Self {
            registry: Mutex::new(registry),
            finished,
            attempts,
            reconciles,
            errors,
            policies,
            leads,
            layers,
            open,
            waiting,
            frozen,
        }
    }

    pub fn run_finished(&self, operation: Operation, result: RunResult) {
        self.finished
            .get_or_create(&FinishedLabels {
                operation: operation.as_str(),
                result: result.as_str(),
            })
            .inc();
    }

    pub fn attempt_opened(&self) {
        self.attempts.inc();
    }

    pub fn reconciled(&self, seconds: f64) {
        self.reconciles.observe(seconds);
    }

    pub fn failed(&self, error: &Error) {
        self.errors
            .get_or_create(&ErrorLabels {
                kind: error.kind().as_str(),
            })
            .inc();
    }

    pub fn policies(&self, proven: bool) {
        self.policies.set(i64::from(proven));
    }

    pub fn leads(&self) {
        self.leads.set(1);
    }

    /// Shows slots, queue and freezes as they are now: plans, then approved applies, each the open attempts and the waiting runs.
    pub fn show(&self, load: [(u32, usize); 2], frozen: Option<usize>) {
        for (class, (open, waiting)) in ["plan", "apply"].into_iter().zip(load) {
            let of = ClassLabels { class };
            self.open.get_or_create(&of).set(open.into());
            let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
            self.waiting.get_or_create(&of).set(waiting);
        }
        let frozen = frozen.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        self.frozen.set(frozen.unwrap_or(-1));
    }

    /// Updates the counts after a layer was created, deleted, or changed its state.
    pub fn layer_moved(&self, from: Option<LayerState>, to: Option<LayerState>) {
        let of = |state: LayerState| {
            self.layers
                .get_or_create(&LayerLabels {
                    state: state.as_str(),
                })
                .clone()
        };
        if from != to {
            if let Some(from) = from {
                of(from).dec();
            }
            if let Some(to) = to {
                of(to).inc();
            }
        }
    }

    /// All metrics in the OpenMetrics text format.
    pub fn exposition(&self) -> Exposition {
        exposition(&self.registry)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serving::call::CallError;

    #[test]
    fn exposition_has_every_counted_metric() {
        let metrics = Metrics::new();
        metrics.run_finished(Operation::Apply, RunResult::Applied);
        metrics.attempt_opened();
        metrics.failed(&CallError::Timeout { what: "test" }.into());
        metrics.policies(true);
        metrics.leads();
        metrics.layer_moved(None, Some(LayerState::PlanNeeded));
        metrics.layer_moved(Some(LayerState::PlanNeeded), Some(LayerState::Idle));
        metrics.show([(4, 183), (1, 0)], Some(2));
        let text = metrics.exposition().1;
        for line in [
            r#"pawl_runs_finished_total{operation="Apply",result="Applied"} 1"#,
            "pawl_attempts_opened_total 1",
            r#"pawl_api_errors_total{kind="timeout"} 1"#,
            "pawl_gate_proven 1",
            "pawl_leads 1",
            r#"pawl_slots_open{class="plan"} 4"#,
            r#"pawl_slots_waiting{class="plan"} 183"#,
            r#"pawl_slots_open{class="apply"} 1"#,
            "pawl_frozen_namespaces 2",
            r#"pawl_layers{state="Idle"} 1"#,
            r#"pawl_layers{state="PlanNeeded"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
