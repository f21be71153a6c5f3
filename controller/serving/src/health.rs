//! `/metrics`, `/healthz` and `/readyz` over plain HTTP, for the kubelet and Prometheus.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use anyhow::Context as _;
use axum::{Router, http::StatusCode, routing::get};
use tokio::net::TcpListener;

use crate::metrics::Exposition;

/// Counts the caches that have to fill before the process is ready.
#[derive(Debug, Default)]
pub struct Readiness {
    caches: AtomicUsize,
    stands_by: AtomicBool,
}

impl Readiness {
    pub fn awaiting(caches: usize) -> Self {
        Self {
            caches: AtomicUsize::new(caches),
            stands_by: AtomicBool::new(false),
        }
    }

    /// Takes note of a cache that has filled for the first time.
    pub fn filled(&self) {
        // Saturates: a second call for one cache must not make a ready process unready.
        let _ = self
            .caches
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    /// Marks a process that waits for leadership: it is ready, and fills its caches when it leads.
    pub fn stands_by(&self, stands_by: bool) {
        self.stands_by.store(stands_by, Ordering::Relaxed);
    }

    /// # Errors
    /// The text of `/readyz` while a cache is empty.
    pub fn check(&self) -> Result<(), String> {
        if self.stands_by.load(Ordering::Relaxed) || self.caches.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        Err("the caches are being filled".to_owned())
    }
}

/// Routes the three paths. `ready` returns the reason when the process is not ready; `/readyz` answers 503 with it.
pub fn router<R: Future<Output = Result<(), String>> + Send + 'static>(
    exposition: impl Fn() -> Exposition + Clone + Send + Sync + 'static,
    ready: impl Fn() -> R + Clone + Send + Sync + 'static,
) -> Router {
    probes(ready).route("/metrics", get(move || async move { exposition() }))
}

/// Routes `/healthz` and `/readyz` only, for a listener that strangers reach.
pub fn probes<R>(ready: impl Fn() -> R + Clone + Send + Sync + 'static) -> Router
where
    R: Future<Output = Result<(), String>> + Send + 'static,
{
    let readyz = move || async move {
        match ready().await {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
}

/// Serves until the process ends.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(listen: SocketAddr, router: Router) -> anyhow::Result<()> {
    let served = async { axum::serve(TcpListener::bind(listen).await?, router).await };
    served
        .await
        .with_context(|| format!("cannot listen on {listen}"))
}

#[cfg(test)]
mod tests {
    use std::{future::ready, sync::Arc};

    use axum::{body::Body, http::Request};
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn ready_when_every_cache_is_filled() {
        let readiness = Arc::new(Readiness::awaiting(2));
        let asked = readiness.clone();
        let router = router(
            || {
                (
                    [(axum::http::header::CONTENT_TYPE, "text/plain")],
                    String::new(),
                )
            },
            move || ready(asked.check()),
        );
        let code = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            router
                .clone()
                .oneshot(request)
                .await
                .unwrap()
                .status()
                .as_u16()
        };
        readiness.filled();
        assert_eq!(
            (
                code("/readyz").await,
                code("/healthz").await,
                code("/metrics").await
            ),
            (503, 200, 200)
        );
        readiness.stands_by(true);
        assert_eq!(code("/readyz").await, 200, "the caches fill when it leads");
        readiness.stands_by(false);
        assert_eq!(code("/readyz").await, 503);
        readiness.filled();
        readiness.filled();
        assert_eq!(code("/readyz").await, 200);
    }
}
