//! Follows the run: one watch, and a read whenever it is lost. The newest version is kept, older ones are of no interest.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::sync::watch;

use crate::ports::{Api, ApiError, Seen};

/// How long nothing may be heard of a watch before it is made anew; longer than the watch itself is asked to last.
const SILENCE: Duration = Duration::from_secs(270);

/// Follows the run from `version` on and puts what is seen into `newest`, until nobody looks any more.
/// `nonce` is that of the process, and spreads its waits.
pub async fn follow<A: Api>(api: Arc<A>, nonce: String, version: String, newest: watch::Sender<Option<Seen>>) {
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
                    // One answer of that kind may be an error like any other; several say that the run is gone.
                    if error.code == Some(404) && failures >= 4 {
                        newest.send_replace(Some(Seen::Gone));
                        return;
                    }
                    tracing::debug!(%error, "could not read the run");
                    tokio::time::sleep(super::backoff_of(failures, &nonce).max(asked(&error, &newest))).await;
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
                // A watch that ends at once must not become a loop of requests.
                failures += 1;
                tokio::time::sleep(super::backoff_of(failures.min(3), &nonce)).await;
            }
            Err(error) => {
                failures += 1;
                tracing::debug!(%error, "could not watch the run");
                tokio::time::sleep(super::backoff_of(failures, &nonce).max(asked(&error, &newest))).await;
            }
        }
    }
}

/// How long a busy server asks to be left alone, unless the run is claimed by what was last seen of it.
fn asked(error: &ApiError, newest: &watch::Sender<Option<Seen>>) -> Duration {
    let claimed = match &*newest.borrow() {
        Some(Seen::Run(run)) => run.status.as_ref().is_some_and(|status| status.claim.is_some()),
        Some(Seen::Gone | Seen::Lost) | None => false,
    };
    error.wait(claimed)
}
