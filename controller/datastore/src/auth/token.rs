//! Bearer tokens: reviewed by the API server, and remembered for a minute at most.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, header};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use crds::datastore::{Problem, UNAUTHENTICATED};

use crate::{
    cluster::{Cluster, Identity},
    problem::{problem, unavailable},
};

/// How long an answer is good for.
const GOOD: Duration = Duration::from_secs(60);
/// How long a token that proves nothing is not asked about again.
const BAD: Duration = Duration::from_secs(5);
/// The most answers that are kept.
const KEPT: usize = 4096;
/// The longest token, in bytes.
const LONGEST: usize = 16 << 10;
/// The most reviews at a time.
const AT_ONCE: usize = 16;

#[derive(Clone)]
struct Answer {
    until: Instant,
    identity: Option<Arc<Identity>>,
}

/// Answers of the API server about tokens, by the tokens' SHA-256.
pub struct Tokens {
    cluster: Arc<dyn Cluster>,
    answers: Mutex<HashMap<[u8; 32], Answer>>,
    asking: Semaphore,
}

impl Tokens {
    pub fn new(cluster: Arc<dyn Cluster>) -> Self {
        Self { cluster, answers: Mutex::default(), asking: Semaphore::new(AT_ONCE) }
    }

    /// Who sends these headers.
    ///
    /// # Errors
    /// `Unauthenticated`; `Unavailable` when the API server does not say.
    pub async fn identify(&self, headers: &HeaderMap) -> Result<Arc<Identity>, Problem> {
        let refused = || problem(UNAUTHENTICATED, "the token proves nothing here: not of this audience, expired, or none");
        let token = bearer(headers).ok_or_else(refused)?;
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.known(&hash) {
            return known.identity.ok_or_else(refused);
        }
        let _permit = self.asking.acquire().await.map_err(|error| unavailable("the API server", &error))?;
        // Another request may have asked meanwhile.
        if let Some(known) = self.known(&hash) {
            return known.identity.ok_or_else(refused);
        }
        let begun = Instant::now();
        let answer = self.cluster.review(token).await.map_err(|error| unavailable("the API server", &error))?;
        let identity = answer.map(Arc::new);
        let good = if identity.is_some() { GOOD.min(rest_of_life(token, self.cluster.now())) } else { BAD };
        self.remember(hash, Answer { until: begun + good, identity: identity.clone() });
        identity.ok_or_else(refused)
    }

    /// How long the token of these headers lives, which was accepted a moment ago.
    pub fn life(&self, headers: &HeaderMap) -> Duration {
        bearer(headers).map_or(Duration::ZERO, |token| rest_of_life(token, self.cluster.now()))
    }

    fn known(&self, hash: &[u8; 32]) -> Option<Answer> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.get(hash).filter(|answer| Instant::now() < answer.until).cloned()
    }

    fn remember(&self, hash: [u8; 32], answer: Answer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= KEPT {
            let now = Instant::now();
            answers.retain(|_, answer| now < answer.until);
        }
        if answers.len() >= KEPT {
            answers.clear();
        }
        answers.insert(hash, answer);
    }
}

/// The one token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let token = value.to_str().ok()?.strip_prefix("Bearer ")?.trim();
    Some(token).filter(|token| !token.is_empty() && token.len() <= LONGEST)
}

/// How long a token lives that the API server has just accepted; the default when it does not say.
fn rest_of_life(token: &str, now: Timestamp) -> Duration {
    let claims = token.split('.').nth(1).and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
    let claims: Option<serde_json::Value> = claims.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    match claims.and_then(|claims| claims.get("exp")?.as_i64()) {
        Some(expiry) => Duration::from_secs(u64::try_from(expiry.saturating_sub(now.as_second())).unwrap_or_default()),
        None => GOOD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_remembered_beyond_a_tokens_life() {
        let token = |claims: &str| format!("h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let now = Timestamp::from_second(1000).unwrap();
        assert_eq!(rest_of_life(&token(r#"{"exp": 1007}"#), now), Duration::from_secs(7));
        assert_eq!(rest_of_life(&token(r#"{"exp": 900}"#), now), Duration::ZERO);
        assert_eq!(rest_of_life("opaque", now), GOOD);
    }
}
