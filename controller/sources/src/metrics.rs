//! What `controller sources` counts, each with labels from a bounded set, and where that is read.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
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

/// The metrics of `controller sources`, and how many caches are still to be filled before it is ready.
pub struct Metrics {
    registry: Mutex<Registry>,
    looks: Family<LookLabels, Counter>,
    seconds: Histogram,
    writes: Family<WriteLabels, Counter>,
    repositories: Gauge,
    deleted: Counter,
    awaited: AtomicUsize,
}

impl Metrics {
    /// Nothing is counted yet, and so many caches are awaited.
    pub fn awaiting(caches: usize) -> Self {
        let (looks, writes) = (Family::default(), Family::default());
        let (repositories, deleted) = (Gauge::default(), Counter::default());
        let seconds = Histogram::new(exponential_buckets(0.05, 2.0, 13));
        let mut registry = Registry::with_prefix("pawl_sources");
        registry.register("looks", "Looks at repositories, by cause and by whether there was an answer", looks.clone());
        registry.register("look_seconds", "How long looks took, in seconds", seconds.clone());
        registry.register("writes", "Writes of statuses, by kind of the object", writes.clone());
        registry.register("repositories", "Repositories that are followed", repositories.clone());
        registry.register("bundles_deleted", "Bundles that nobody needed any more", deleted.clone());
        Self { registry: Mutex::new(registry), looks, seconds, writes, repositories, deleted, awaited: AtomicUsize::new(caches) }
    }

    pub fn looked(&self, cause: &'static str, failed: bool, took: Duration) {
        self.looks.get_or_create(&LookLabels { cause, result: if failed { "failed" } else { "answered" } }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub fn wrote(&self, kind: &'static str) {
        self.writes.get_or_create(&WriteLabels { kind }).inc();
    }

    pub fn follows(&self, repositories: usize) {
        self.repositories.set(i64::try_from(repositories).unwrap_or(i64::MAX));
    }

    /// A bundle was deleted.
    pub fn deleted(&self) {
        self.deleted.inc();
    }

    /// A cache is filled.
    pub fn filled(&self) {
        let _ = self.awaited.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if let Ok(registry) = self.registry.lock()
            && encode(&mut text, &registry).is_err()
        {
            text.clear();
        }
        text
    }
}

/// Serves `/metrics`, `/healthz` and `/readyz` until the process ends.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(listen: SocketAddr, metrics: Arc<Metrics>) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(metrics);
    axum::serve(tokio::net::TcpListener::bind(listen).await?, routes).await
}

async fn metrics_text(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], metrics.text())
}

async fn ready(State(metrics): State<Arc<Metrics>>) -> (StatusCode, &'static str) {
    if metrics.awaited.load(Ordering::Relaxed) == 0 {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are being filled\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_ready_when_the_caches_are_filled() {
        let metrics = Arc::new(Metrics::awaiting(1));
        assert_eq!(ready(State(metrics.clone())).await.0, StatusCode::SERVICE_UNAVAILABLE);
        metrics.filled();
        metrics.filled();
        assert_eq!(ready(State(metrics.clone())).await.0, StatusCode::OK);
        metrics.looked("interval", false, Duration::from_millis(120));
        assert!(
            metrics.text().contains(r#"pawl_sources_looks_total{cause="interval",result="answered"} 1"#),
            "{}",
            metrics.text()
        );
    }
}
