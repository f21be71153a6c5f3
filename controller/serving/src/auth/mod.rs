//! Authentication by bearer token and authorization, both decided by the API server.

mod readable;
mod review;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, header};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};

use crds::datastore::{FORBIDDEN, Problem, UNAUTHENTICATED};

use crate::problem::{problem, unavailable};

pub use readable::{Authenticates, Readable};
pub use review::{Identity, PodIdentity, Reviewer, Reviews};

/// Lifetime of a positive answer in the cache.
const GOOD: Duration = Duration::from_secs(60);
/// Lifetime of a negative answer in the cache.
const BAD: Duration = Duration::from_secs(5);
/// Maximum number of cached answers of each kind.
const KEPT: usize = 4096;
/// Maximum length of a token, in bytes.
const LONGEST: usize = 16 << 10;
/// Maximum concurrent reviews.
const AT_ONCE: usize = 16;

#[derive(Clone)]
struct Answer {
    until: Instant,
    identity: Option<Arc<Identity>>,
}

/// Identifies the callers of a service and checks their rights. Caches reviews of tokens by the tokens' SHA-256; reviews of access are
/// not cached, so a revoked right counts at once.
pub struct Authenticator {
    reviewer: Arc<dyn Reviewer>,
    /// Of accepted tokens, also expired ones, and of refused tokens. Apart, so that forged tokens push no person's answer out.
    answers: [Mutex<HashMap<[u8; 32], Answer>>; 2],
    asking: Semaphore,
}

impl Authenticator {
    pub fn new(reviewer: Arc<dyn Reviewer>) -> Self {
        Self {
            reviewer,
            answers: <[_; 2]>::default(),
            asking: Semaphore::new(AT_ONCE),
        }
    }

    /// The sender of these headers.
    ///
    /// # Errors
    /// `Unauthenticated`; `Unavailable` when the API server does not respond.
    pub async fn identify(&self, headers: &HeaderMap) -> Result<Arc<Identity>, Problem> {
        self.identify_token(bearer(headers).ok_or_else(unauthenticated)?)
            .await
    }

    /// The owner of a token.
    ///
    /// # Errors
    /// Those of [`Self::identify`].
    pub async fn identify_token(&self, token: &str) -> Result<Arc<Identity>, Problem> {
        let hash = hash(token);
        if let Some(known) = self.known(&hash) {
            return known.identity.ok_or_else(unauthenticated);
        }
        let _permit = self.permit().await?;
        // A concurrent request may have reviewed the token meanwhile.
        if let Some(known) = self.known(&hash) {
            return known.identity.ok_or_else(unauthenticated);
        }
        let begun = Instant::now();
        let answer = self
            .reviewer
            .review(token)
            .await
            .map_err(|error| unavailable("the API server", &error))?;
        let identity = answer.map(Arc::new);
        let good = if identity.is_some() {
            GOOD.min(rest_of_life(token, self.reviewer.now()))
        } else {
            BAD
        };
        self.remember(
            hash,
            Answer {
                until: begun + good,
                identity: identity.clone(),
            },
        );
        identity.ok_or_else(unauthenticated)
    }

    /// Whether [`Self::identify_token`] asks about a token that was accepted before, or does not ask at all.
    pub fn has_met(&self, token: &str) -> bool {
        let hash = hash(token);
        self.known(&hash).is_some() || lock(&self.answers[0]).contains_key(&hash)
    }

    /// Checks that the API server would allow this access.
    ///
    /// # Errors
    /// [`hidden`]; `Unavailable` when the API server does not respond.
    pub async fn authorize(
        &self,
        caller: &Identity,
        access: ResourceAttributes,
    ) -> Result<(), Problem> {
        let _permit = self.permit().await?;
        let allowed = self
            .reviewer
            .allows(caller, access)
            .await
            .map_err(|error| unavailable("the API server", &error))?;
        if allowed { Ok(()) } else { Err(hidden()) }
    }

    /// The remaining lifetime of the token in these headers, which was just accepted.
    pub fn life(&self, headers: &HeaderMap) -> Duration {
        bearer(headers).map_or(Duration::ZERO, |token| {
            rest_of_life(token, self.reviewer.now())
        })
    }

    async fn permit(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.asking
            .acquire()
            .await
            .map_err(|error| unavailable("the API server", &error))
    }

    fn known(&self, hash: &[u8; 32]) -> Option<Answer> {
        let now = Instant::now();
        let mut answers = self.answers.iter();
        answers.find_map(|answers| {
            let answer = lock(answers).get(hash).cloned();
            answer.filter(|answer| now < answer.until)
        })
    }

    fn remember(&self, hash: [u8; 32], answer: Answer) {
        let [accepted, refused] = &self.answers;
        let kind = if answer.identity.is_some() {
            accepted
        } else {
            lock(accepted).remove(&hash);
            refused
        };
        let mut answers = lock(kind);
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

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn unauthenticated() -> Problem {
    problem(
        UNAUTHENTICATED,
        "the token is missing, expired or of another audience",
    )
}

/// The rejection for an object that does not exist and for one that the caller may not read. The text is the same, so a
/// caller cannot probe for names.
pub fn hidden() -> Problem {
    problem(FORBIDDEN, "there is no such object, or you may not read it")
}

/// The bearer token of a request with exactly one.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let token = value.to_str().ok()?.strip_prefix("Bearer ")?.trim();
    Some(token).filter(|token| !token.is_empty() && token.len() <= LONGEST)
}

/// The remaining lifetime of a token that the API server has just accepted; [`GOOD`] when the token has no expiry.
fn rest_of_life(token: &str, now: Timestamp) -> Duration {
    match expiry(token) {
        Some(expiry) => Duration::from_secs(
            u64::try_from(expiry.saturating_sub(now.as_second())).unwrap_or_default(),
        ),
        None => GOOD,
    }
}

/// The expiry of a token that the API server has accepted, in seconds since 1970; `None` when it tells none.
pub fn expiry(token: &str) -> Option<i64> {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?);
    let claims: serde_json::Value = serde_json::from_slice(&claims.ok()?).ok()?;
    claims.get("exp")?.as_i64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Reply;

    struct Anyone;

    impl Reviewer for Anyone {
        fn review<'a>(&'a self, token: &'a str) -> Reply<'a, Option<Identity>> {
            Box::pin(async {
                Ok(Some(Identity {
                    user: token.to_owned(),
                    ..Identity::default()
                }))
            })
        }
    }

    #[tokio::test]
    async fn service_without_access_review_grants_nothing() {
        let callers = Authenticator::new(Arc::new(Anyone));
        let headers = HeaderMap::from_iter([(
            header::AUTHORIZATION,
            header::HeaderValue::from_static("Bearer ada"),
        )]);
        let caller = callers.identify(&headers).await.unwrap();
        assert_eq!(caller.user, "ada");
        assert_eq!(
            callers
                .authorize(&caller, ResourceAttributes::default())
                .await,
            Err(hidden())
        );
    }

    #[tokio::test]
    async fn forged_tokens_push_no_accepted_one_out() {
        struct Names;
        impl Reviewer for Names {
            fn review<'a>(&'a self, token: &'a str) -> Reply<'a, Option<Identity>> {
                Box::pin(async move { Ok((token == "ada").then(Identity::default)) })
            }
        }
        let callers = Authenticator::new(Arc::new(Names));
        callers.identify_token("ada").await.unwrap();
        for number in 0..=KEPT {
            let forged = callers.identify_token(&format!("forged-{number}")).await;
            assert_eq!(forged, Err(unauthenticated()));
        }
        assert!(callers.has_met("ada") && !callers.has_met("bob"));
    }

    #[test]
    fn cached_review_expires_with_the_token() {
        let token = |claims: &str| format!("h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let now = Timestamp::from_second(1000).unwrap();
        assert_eq!(
            rest_of_life(&token(r#"{"exp": 1007}"#), now),
            Duration::from_secs(7)
        );
        assert_eq!(rest_of_life(&token(r#"{"exp": 900}"#), now), Duration::ZERO);
        assert_eq!(rest_of_life("opaque", now), GOOD);
    }
}
