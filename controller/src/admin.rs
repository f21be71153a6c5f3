//! `/metrics`, `/healthz` and `/readyz`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};

use datastore::metrics::Exposition;

use crate::metrics::Metrics;

/// How many caches are still to be filled before the controller is ready.
#[derive(Debug, Default)]
pub struct Readiness {
    caches: AtomicUsize,
    stands_by: AtomicBool,
}

impl Readiness {
    pub fn awaiting(caches: usize) -> Self {
        Self { caches: AtomicUsize::new(caches), stands_by: AtomicBool::new(false) }
    }

    pub fn filled(&self) {
        // Saturates: a cache says so once, but a bug here must not make a ready controller unready.
        let _ = self.caches.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    /// Another controller leads, and this one is ready to.
    pub fn stands_by(&self, stands_by: bool) {
        self.stands_by.store(stands_by, Ordering::Relaxed);
    }

    /// Whether all are, or none is needed yet.
    pub fn is_ready(&self) -> bool {
        self.stands_by.load(Ordering::Relaxed) || self.caches.load(Ordering::Relaxed) == 0
    }
}

#[derive(Clone)]
struct Admin {
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
}

pub fn router(metrics: Arc<Metrics>, readiness: Arc<Readiness>) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(Admin { metrics, readiness })
}

async fn metrics_text(State(admin): State<Admin>) -> Exposition {
    admin.metrics.exposition()
}

async fn ready(State(admin): State<Admin>) -> impl IntoResponse {
    if admin.readiness.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are being filled\n")
    }
}

/// Serves until the process ends.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(listen: SocketAddr, router: Router) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(listen).await?;
    axum::serve(listener, router).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_cache_is() {
        let readiness = Readiness::awaiting(2);
        readiness.filled();
        assert!(!readiness.is_ready());
        readiness.stands_by(true);
        assert!(readiness.is_ready(), "the caches are filled when it leads");
        readiness.stands_by(false);
        assert!(!readiness.is_ready());
        readiness.filled();
        readiness.filled();
        assert!(readiness.is_ready());
    }
}
