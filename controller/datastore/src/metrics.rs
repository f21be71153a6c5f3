//! Metrics of the datastore, each with labels from a bounded set.

use std::sync::Mutex;

use axum::http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use serving::metrics::{Exposition, exposition, opened};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    kind: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    received: Counter,
    sent: Counter,
    connections: Gauge,
    swept: Family<KindLabels, Counter>,
    sweeps_failed: Counter,
}

impl Metrics {
    pub fn new() -> Self {
        let (requests, swept) = (Family::default(), Family::default());
        let (received, sent, sweeps_failed) =
            (Counter::default(), Counter::default(), Counter::default());
        let connections = Gauge::default();
        let mut registry = Registry::with_prefix("pawl_datastore");
        registry.register(
            "requests",
            "Requests that were answered, by kind and code",
            requests.clone(),
        );
        registry.register(
            "received_bytes",
            "Bytes of bodies that were received",
            received.clone(),
        );
        registry.register(
            "sent_bytes",
            "Bytes of content that were sent",
            sent.clone(),
        );
        registry.register(
            "connections",
            "Connections that are open",
            connections.clone(),
        );
        registry.register(
            "swept",
            "Objects that the sweep deleted, by kind",
            swept.clone(),
        );
        registry.register(
            "sweeps_failed",
            "Sweeps that were not finished",
            sweeps_failed.clone(),
        );
        Self {
            registry: Mutex::new(registry),
            requests,
            received,
            sent,
            connections,
            swept,
            sweeps_failed,
        }
    }

    pub fn answered(&self, kind: &'static str, code: StatusCode) {
        self.requests
            .get_or_create(&RequestLabels {
                kind,
                code: code.as_u16(),
            })
            .inc();
    }

    pub fn received(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }

    pub fn sent(&self, bytes: usize) {
        self.sent.inc_by(bytes as u64);
    }

    /// Counts a connection as open until the returned guard is dropped.
    pub fn connection(&self) -> impl Drop + Send + use<> {
        opened(&self.connections)
    }

    pub fn swept(&self, kind: &'static str, count: usize) {
        self.swept
            .get_or_create(&KindLabels { kind })
            .inc_by(count as u64);
    }

    pub fn sweep_failed(&self) {
        self.sweeps_failed.inc();
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
