//! Handles a delivery from its first byte to the response. It waits only for the sender, and for the read of a Secret
//! that is not cached.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::{
    Router,
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode, header},
    response::Response,
    routing::post,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use serde_json::json;
use tokio::sync::Notify;

use crds::clock::ServerClock;
use serving::{
    auth::{Authenticates, Authenticator, Reviews},
    problem,
};

use web_console::pages::repository::{Delivery, Verdict};

use super::{
    body::Incoming,
    delivery_log::Deliveries,
    forges::Forge,
    metrics::Metrics,
    pending::Pending,
    refusal::Refusal,
    repositories::{Repositories, Repository},
    secrets::Secrets,
    verify::{Check, Signed},
};

/// Audience of the tokens for reading deliveries.
pub const AUDIENCE: &str = "pawl-server";

pub struct Receiver {
    pub repositories: Arc<Repositories>,
    pub deliveries: Deliveries,
    pub metrics: Metrics,
    /// Notified when a repository is to be reconciled.
    pub wanted: Notify,
    callers: Authenticator,
    secrets: Secrets,
    pending: Mutex<Pending>,
    clock: ServerClock,
}

impl Authenticates for Receiver {
    fn authenticator(&self) -> &Authenticator {
        &self.callers
    }
}

impl Receiver {
    pub fn new(client: Client, clock: ServerClock) -> Self {
        Self {
            repositories: Arc::default(),
            deliveries: Deliveries::default(),
            metrics: Metrics::new(),
            wanted: Notify::new(),
            callers: Authenticator::new(Arc::new(Reviews::new(
                client.clone(),
                clock.clone(),
                AUDIENCE,
            ))),
            secrets: Secrets::new(client),
            pending: Mutex::default(),
            clock,
        }
    }

    pub fn pending(&self) -> MutexGuard<'_, Pending> {
        // Consistent between any two deliveries, so a poisoned lock still holds a valid value.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges a delivery for the repository with this UID.
    ///
    /// # Errors
    /// When its sender is not authenticated.
    async fn judge(
        &self,
        uid: &str,
        headers: &HeaderMap,
        body: &mut Incoming,
    ) -> Result<Verdict, Refusal> {
        let unknown = || {
            if self.repositories.listings.is_ready() {
                Refusal::Unknown
            } else {
                Refusal::Starting
            }
        };
        let repository = self.repositories.get(uid).ok_or_else(unknown)?;
        let secret = repository.secret.as_deref().ok_or(Refusal::NoSecret)?;
        body.fits()?;
        if let Some(forge) = Forge::of_ping(headers) {
            self.metrics.pinged(forge.name);
            body.drain().await;
            return Ok(Verdict::Ping);
        }
        let keys = self.secrets.get(&repository.namespace, secret).await?;
        let mut check = Check::begin(headers, &keys)?;
        body.read(|piece| check.update(piece)).await?;
        Ok(self.proven(uid, &repository, check.end()?, is_form(headers)))
    }

    /// Records an authenticated delivery and decides its verdict.
    fn proven(&self, uid: &str, repository: &Repository, signed: Signed, is_form: bool) -> Verdict {
        let verdict = if is_form {
            Verdict::Form
        } else if signed.moves {
            Verdict::Accepted
        } else {
            Verdict::Ignored
        };
        if verdict == Verdict::Accepted {
            self.pending().want(uid);
            self.wanted.notify_one();
        }
        self.metrics.delivered(signed.forge, verdict);
        let repository = format!("{}/{}", repository.namespace, repository.name);
        tracing::info!(
            repository,
            forge = signed.forge,
            event = signed.event,
            id = signed.id,
            verdict = verdict.word(),
            "delivered"
        );
        self.deliveries.push(Delivery {
            time: Time(self.clock.now()),
            repository,
            forge: signed.forge,
            event: signed.event,
            id: signed.id,
            verdict,
            reason: verdict.reason(),
        });
        verdict
    }
}

/// The router for forges.
pub fn router(receiver: Arc<Receiver>) -> Router {
    Router::new()
        .route("/hooks/{uid}", post(deliver))
        .with_state(receiver)
}

async fn deliver(
    State(receiver): State<Arc<Receiver>>,
    Path(uid): Path<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let mut body = Incoming::new(body);
    match receiver.judge(&uid, &parts.headers, &mut body).await {
        Ok(verdict) => answer(status(verdict), verdict.word(), verdict.reason()),
        Err(refusal) => {
            receiver.metrics.refused(refusal);
            body.drain().await;
            answer(refusal.status(), refusal.word(), refusal.message())
        }
    }
}

/// The HTTP code of the response. Forges disable a webhook that returns other codes than 2xx for some time.
const fn status(verdict: Verdict) -> StatusCode {
    match verdict {
        Verdict::Accepted | Verdict::Ignored => StatusCode::ACCEPTED,
        Verdict::Form => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Verdict::Ping => StatusCode::OK,
    }
}

fn answer(status: StatusCode, verdict: &str, reason: &str) -> Response {
    problem::json(status, &json!({"verdict": verdict, "reason": reason}))
}

/// Whether the body is an HTML form. Forges send JSON; nothing else is parsed.
fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default()
        .to_ascii_lowercase();
    kind.starts_with("application/x-www-form-urlencoded") || kind.starts_with("multipart/")
}

#[cfg(test)]
mod tests;
