//! Metrics of the server, each with labels from a bounded set.

use std::sync::Mutex;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use serving::metrics::{Exposition, exposition, opened};

use web_console::pages::repository::Verdict;

use super::refusal::Refusal;
use crate::error::Error;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DeliveryLabels {
    forge: &'static str,
    verdict: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PingLabels {
    forge: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    kind: &'static str,
}

pub struct Metrics {
    registry: Mutex<Registry>,
    deliveries: Family<DeliveryLabels, Counter>,
    refused: Family<RefusalLabels, Counter>,
    pings: Family<PingLabels, Counter>,
    requests: Counter,
    request_errors: Family<ErrorLabels, Counter>,
    connections: Gauge,
}

impl Metrics {
    pub fn new() -> Self {
        let (deliveries, refused, request_errors) =
            (Family::default(), Family::default(), Family::default());
        let (requests, connections) = (Counter::default(), Gauge::default());
        let mut registry = Registry::with_prefix("pawl_server");
        registry.register(
            "deliveries",
            "Deliveries whose sender was proven, by forge and verdict",
            deliveries.clone(),
        );
        registry.register(
            "refused",
            "Deliveries whose sender was not proven, by reason",
            refused.clone(),
        );
        let pings = Family::default();
        registry.register(
            "pings",
            "Tests of the connection without a proof, which set off nothing, by forge",
            pings.clone(),
        );
        registry.register(
            "reconcile_requests",
            "Repositories whose reconcile was requested",
            requests.clone(),
        );
        registry.register(
            "reconcile_request_errors",
            "Repositories that could not be, by kind of the error",
            request_errors.clone(),
        );
        registry.register(
            "connections",
            "Connections that are open",
            connections.clone(),
        );
        Self {
            registry: Mutex::new(registry),
            deliveries,
            refused,
            pings,
            requests,
            request_errors,
            connections,
        }
    }

    /// Counts an authenticated delivery.
    pub fn delivered(&self, forge: &'static str, verdict: Verdict) {
        self.deliveries
            .get_or_create(&DeliveryLabels {
                forge,
                verdict: verdict.word(),
            })
            .inc();
    }

    /// Counts an unsigned test of the connection.
    pub fn pinged(&self, forge: &'static str) {
        self.pings.get_or_create(&PingLabels { forge }).inc();
    }

    /// Counts a rejected delivery.
    pub fn refused(&self, refusal: Refusal) {
        self.refused
            .get_or_create(&RefusalLabels {
                reason: refusal.word(),
            })
            .inc();
    }

    pub fn requested(&self) {
        self.requests.inc();
    }

    pub fn request_failed(&self, error: &Error) {
        self.request_errors
            .get_or_create(&ErrorLabels {
                kind: error.kind().as_str(),
            })
            .inc();
    }

    /// Counts a connection as open until the returned guard is dropped.
    pub fn connection(&self) -> impl Drop + Send + use<> {
        opened(&self.connections)
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
