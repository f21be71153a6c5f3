//! Sessions: a person's token in encrypted cookies. Nothing is stored, so a session is valid on each replica with the same key.

pub mod cookies;
mod keep;
mod pack;
mod seal;
pub mod secret;

use std::{collections::HashMap, sync::Arc};

use anyhow::{Context as _, ensure};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use jiff::Timestamp;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::watch;

use serving::auth::expiry;

use crate::{address::Address, api_server::Token, method::Method, problem::Problem};

pub use keep::keep;
use seal::Key;

/// Lifetime of a session without use, in seconds.
const UNUSED: i64 = 15 * 60;
/// Remaining lifetime at which use renews a session, in seconds.
const RENEWED: i64 = 10 * 60;
/// The first byte of the content of a login that is under way. No version of a session has it.
const ATTEMPT: u8 = 255;
/// Most ended sessions that are remembered.
const ENDED: usize = 10_000;

/// The name of a session.
pub type Id = [u8; 16];

/// A person's session.
#[derive(Clone)]
pub struct Session {
    pub id: Id,
    pub method: Method,
    pub token: Token,
    /// Seconds since 1970.
    pub until: i64,
}

impl Session {
    /// A new session with this token.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn new(token: Token, method: Method) -> Result<Self, Problem> {
        let mut id = Id::default();
        fill(&mut id)?;
        Ok(Self {
            id,
            method,
            until: latest(&token),
            token,
        })
    }

    /// This session, extended; `None` if that is not due or not possible.
    fn renewed(&self) -> Option<Self> {
        let until = latest(&self.token);
        let is_due = self.until - Timestamp::now().as_second() < RENEWED;
        (is_due && until > self.until).then(|| Self {
            until,
            ..self.clone()
        })
    }
}

/// The latest end of a session with this token.
fn latest(token: &Token) -> i64 {
    let until = Timestamp::now().as_second() + UNUSED;
    expiry(token.secret()).map_or(until, |expiry| expiry.min(until))
}

pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), Problem> {
    SystemRandom::new().fill(bytes).map_err(|_| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "NoRandomBytes",
            "the system provides no random bytes; no session was made",
        )
    })
}

/// The sessions of this installation.
pub struct Sessions {
    key: Key,
    /// The name of the first cookie.
    name: String,
    is_secure: bool,
    /// Sessions that ended here, with the time of their end.
    ended: watch::Sender<Arc<HashMap<Id, i64>>>,
}

impl Sessions {
    /// Sessions encrypted with these random bytes. The cookie's name follows from URL and key, because a browser sends the cookies of all
    /// installations under one host to each of them.
    ///
    /// # Errors
    /// There are fewer than 32 bytes.
    pub fn new(secret: &[u8], address: &Address) -> anyhow::Result<Self> {
        ensure!(secret.len() >= 32, "a session key has at least 32 bytes");
        let url = address.to_string();
        let key = Key::new(secret, &url).context("no cipher")?;
        let is_secure = address.is_https() || !address.is_loopback();
        let prefix = if is_secure { "__Host-" } else { "" };
        Ok(Self {
            name: format!("{prefix}pawl-{}", Key::name(secret, &url)),
            key,
            is_secure,
            ended: watch::channel(Arc::default()).0,
        })
    }

    /// The session of these headers. Without cookies, or with cookies that are damaged, expired, ended or of another key, there is none.
    ///
    /// # Errors
    /// A cookie of ours is there twice.
    pub fn of(&self, headers: &HeaderMap) -> Result<Option<Session>, Problem> {
        let Some(value) = cookies::read(headers, &self.name)? else {
            return Ok(None);
        };
        let session = self.key.open(&value);
        let is_live = |session: &Session| {
            Timestamp::now().as_second() < session.until
                && !self.ended.borrow().contains_key(&session.id)
        };
        Ok(session.filter(is_live))
    }

    /// The cookies of a session.
    ///
    /// # Errors
    /// The token is too large for cookies.
    pub fn cookies(&self, session: &Session) -> Result<Vec<HeaderValue>, Problem> {
        let life = session.until - Timestamp::now().as_second();
        cookies::write(&self.name, &self.key.seal(session)?, life, self.is_secure)
    }

    /// Headers that remove the cookies.
    pub fn no_cookies(&self) -> Vec<HeaderValue> {
        cookies::remove(&self.name, self.is_secure)
    }

    /// The cookies of a login that is under way.
    pub(crate) fn attempt_cookies(
        &self,
        content: &[u8],
        life: i64,
    ) -> Result<Vec<HeaderValue>, Problem> {
        let value = self.key.encrypt([&[ATTEMPT], content].concat())?;
        cookies::write(&self.attempt_name(), &value, life, self.is_secure)
    }

    /// The content of these cookies.
    pub(crate) fn attempt_of(&self, headers: &HeaderMap) -> Result<Option<Vec<u8>>, Problem> {
        let value = cookies::read(headers, &self.attempt_name())?;
        let content = value.and_then(|value| self.key.decrypt(&value));
        Ok(content.and_then(|content| Some(content.strip_prefix(&[ATTEMPT])?.to_vec())))
    }

    pub(crate) fn no_attempt_cookies(&self) -> Vec<HeaderValue> {
        let mut all = cookies::remove(&self.attempt_name(), self.is_secure);
        // It fits into one.
        all.truncate(1);
        all
    }

    fn attempt_name(&self) -> String {
        format!("{}-login", self.name)
    }

    /// Ends a session on this replica. Elsewhere it ends by itself when it is not used.
    pub fn end(&self, id: Id) {
        let now = Timestamp::now().as_second();
        self.ended.send_modify(|ended| {
            let ended = Arc::make_mut(ended);
            if ended.len() >= ENDED {
                let oldest = ended.iter().min_by_key(|(_, ended)| **ended);
                if let Some(id) = oldest.map(|(id, _)| *id) {
                    ended.remove(&id);
                }
            }
            ended.insert(id, now);
        });
    }

    /// Waits until a session ends on this replica.
    pub async fn ended(&self, id: Id) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(|ended| ended.contains_key(&id)).await;
    }
}

#[cfg(test)]
mod tests;
