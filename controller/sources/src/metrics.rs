//! Metrics of `controller sources`, each with labels from a bounded set.

use std::{sync::Mutex, time::Duration};

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
use serving::{
    health::Readiness,
    metrics::{Exposition, exposition},
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LookLabels {
    cause: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WriteLabels {
    kind: &'static str,
}

/// The metrics of `controller sources`, and its readiness.
pub struct Metrics {
    pub readiness: Readiness,
    registry: Mutex<Registry>,
    looks: Family<LookLabels, Counter>,
    seconds: Histogram,
    writes: Family<WriteLabels, Counter>,
    repositories: Gauge,
    deleted: Counter,
}

impl Metrics {
    /// Starts with zero counts and waits for this many caches.
    pub fn awaiting(caches: usize) -> Self {
        let (looks, writes) = (Family::default(), Family::default());
        let (repositories, deleted) = (Gauge::default(), Counter::default());
        let seconds = Histogram::new(exponential_buckets(0.05, 2.0, 13));
        let mut registry = Registry::with_prefix("pawl_sources");
        registry.register(
            "looks",
            "Checks of repositories, by cause and result",
            looks.clone(),
        );
        registry.register(
            "look_seconds",
            "Duration of checks, in seconds",
            seconds.clone(),
        );
        registry.register(
            "writes",
            "Writes of statuses, by kind of the object",
            writes.clone(),
        );
        registry.register(
            "repositories",
            "Repositories that are followed",
            repositories.clone(),
        );
        registry.register(
            "snapshots_deleted",
            "Deleted unused snapshots",
            deleted.clone(),
        );
        let (readiness, registry) = (Readiness::awaiting(caches), Mutex::new(registry));
        Self {
            readiness,
            registry,
            looks,
            seconds,
            writes,
            repositories,
            deleted,
        }
    }

    pub fn looked(&self, cause: &'static str, failed: bool, took: Duration) {
        self.looks
            .get_or_create(&LookLabels {
                cause,
                result: if failed { "failed" } else { "answered" },
            })
            .inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub fn wrote(&self, kind: &'static str) {
        self.writes.get_or_create(&WriteLabels { kind }).inc();
    }

    pub fn follows(&self, repositories: usize) {
        self.repositories
            .set(i64::try_from(repositories).unwrap_or(i64::MAX));
    }

    /// Counts a deleted snapshot.
    pub fn deleted(&self) {
        self.deleted.inc();
    }

    /// Encodes all metrics.
    pub fn exposition(&self) -> Exposition {
        exposition(&self.registry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_counted_by_cause_and_result() {
        let metrics = Metrics::awaiting(1);
        metrics.looked("interval", false, Duration::from_millis(120));
        let text = metrics.exposition().1;
        assert!(
            text.contains(r#"pawl_sources_looks_total{cause="interval",result="answered"} 1"#),
            "{text}"
        );
    }
}
