//! Metrics in the OpenMetrics text format.

use std::sync::Mutex;

use axum::http::{HeaderName, header::CONTENT_TYPE};
use prometheus_client::{encoding::text::encode, metrics::gauge::Gauge, registry::Registry};

/// Content type and text of an answer to `GET /metrics`.
pub type Exposition = ([(HeaderName, &'static str); 1], String);

/// Counts one more until the guard is dropped.
pub fn opened(gauge: &Gauge) -> impl Drop + Send + use<> {
    struct Open(Gauge);
    impl Drop for Open {
        fn drop(&mut self) {
            self.0.dec();
        }
    }
    gauge.inc();
    Open(gauge.clone())
}

/// Encodes all metrics of a registry.
pub fn exposition(registry: &Mutex<Registry>) -> Exposition {
    let mut text = String::new();
    if let Ok(registry) = registry.lock() {
        // Writing to a String cannot fail; a half text would be worse than an empty one.
        if encode(&mut text, &registry).is_err() {
            text.clear();
        }
    }
    (
        [(
            CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
}
