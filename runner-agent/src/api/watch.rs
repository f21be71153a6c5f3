//! Follows the run with a watch, and reads it whenever the watch is lost. Publishes only the newest version.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::sync::watch;

use crate::ports::{Api, ApiError, Seen};

/// Maximum silence of a watch before it is replaced; longer than the requested duration of a watch.
const SILENCE: Duration = Duration::from_secs(270);

/// Follows the run from `version` on and publishes each version to `newest`, until the receiver is dropped. The process's `nonce`
/// seeds the jitter of the retries.
pub async fn follow<A: Api>(
    api: Arc<A>,
    nonce: String,
    version: String,
    newest: watch::Sender<Option<Seen>>,
) {
    let mut version = Some(version);
    let mut failures = 0_u32;
    while !newest.is_closed() {
        let from = match version.take() {
            Some(version) => version,
            None => match api.get().await {
                Ok(run) => {
                    let version = run.metadata.resource_version.clone().unwrap_or_default();
                    newest.send_replace(Some(Seen::Run(Arc::new(run))));
                    version
                }
                Err(error) => {
                    failures += 1;
                    // A single 404 may be an error like any other; several in a row mean that the run is gone.
                    if error.code == Some(404) && failures >= 4 {
                        newest.send_replace(Some(Seen::Gone));
                        return;
                    }
                    tracing::debug!(%error, "could not read the run");
                    tokio::time::sleep(
                        super::backoff_of(failures, &nonce).max(asked(&error, &newest)),
                    )
                    .await;
                    continue;
                }
            },
        };
        match api.watch(&from).await {
            Ok(events) => {
                let mut events = pin!(events);
                while let Ok(Some(seen)) = tokio::time::timeout(SILENCE, events.next()).await {
                    failures = 0;
                    match seen {
                        Seen::Lost => break,
                        Seen::Gone => {
                            newest.send_replace(Some(Seen::Gone));
                            return;
                        }
                        Seen::Run(_) => {
                            newest.send_replace(Some(seen));
                        }
                    }
                }
                // Prevents a request loop if each watch ends at once.
                failures += 1;
                tokio::time::sleep(super::backoff_of(failures.min(3), &nonce)).await;
            }
            Err(error) => {
                failures += 1;
                tracing::debug!(%error, "could not watch the run");
                tokio::time::sleep(super::backoff_of(failures, &nonce).max(asked(&error, &newest)))
                    .await;
            }
        }
    }
}

/// The wait that a busy server requests; zero if the last version of the run is claimed.
fn asked(error: &ApiError, newest: &watch::Sender<Option<Seen>>) -> Duration {
    let claimed = match &*newest.borrow() {
        Some(Seen::Run(run)) => run
            .status
            .as_ref()
            .is_some_and(|status| status.claim.is_some()),
        Some(Seen::Gone | Seen::Lost) | None => false,
    };
    error.wait(claimed)
}
