//! The HTTP client for release servers: deadlines, retries, redirects and bounds.
//!
//! | concern | rule |
//! |---|---|
//! | deadlines | connect, silence, and the whole over all tries: see [`Rules`] |
//! | retries | 408, 425, 429, 5xx, a 403 that requests a wait, and broken connections; other answers are final |
//! | wait | exponential backoff with jitter, or `Retry-After` when it is not too long |
//! | length | within the cap of the request; hyper checks it against `Content-Length` |
//! | redirects | at most five, no loops, to https only; credentials only to the server that was requested: see [`redirect`] |
//! | type | an HTML page where none is expected is an error, with any status |
//!
//! Proxies come from the environment (`HTTPS_PROXY`, `NO_PROXY`), as reqwest reads them.

use std::time::{Duration, SystemTime};

use reqwest::{StatusCode, Url, header::HeaderMap};
use tokio::{
    fs::File,
    time::{Instant, sleep, timeout_at},
};

pub mod address;
mod exchange;
pub mod redirect;
pub mod waiting;

use self::{
    address::shown,
    exchange::{Body, Sink},
};
use crate::{Error, Result};

/// Bodies up to 16 MiB (sums, signatures, lists) have the short deadline, larger ones (archives) the long one.
pub const SMALL: u64 = 16 << 20;

/// Deadlines and retries. The defaults are production's; tests use shorter ones.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The longest time for a connection, TLS included: 10 s.
    pub connect: Duration,
    /// The longest wait for the head of an answer, redirects included, and for each piece of its body: 30 s.
    pub silence: Duration,
    /// The longest time for a body of up to [`SMALL`], tries and waits included: 2 min.
    pub small: Duration,
    /// The same for a larger body: 15 min, which is 0.2 MB/s for the largest release.
    pub large: Duration,
    /// Tries in all: 3.
    pub tries: u32,
    /// The base of the backoff: 0.5 s.
    pub backoff: Duration,
    /// The longest wait that a server may request: 60 s. A server that requests more is unavailable.
    pub longest_wait: Duration,
    /// Whether the proxies of the environment are used.
    pub proxies: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(30),
            small: Duration::from_secs(120),
            large: Duration::from_secs(900),
            tries: 3,
            backoff: Duration::from_millis(500),
            longest_wait: Duration::from_secs(60),
            proxies: true,
        }
    }
}

#[derive(Clone, Default, PartialEq, Eq)]
pub enum Auth {
    #[default]
    None,
    Basic {
        user: String,
        password: String,
    },
    Bearer(String),
}

impl std::fmt::Debug for Auth {
    /// The kind only: logs show this.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Basic { .. } => "Basic(..)",
            Self::Bearer(_) => "Bearer(..)",
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub url: &'a str,
    /// The object, for messages: `OpenTofu 1.10.6`.
    pub what: &'a str,
    /// Credentials, for that server and no other.
    pub auth: &'a Auth,
    /// The most bytes of a body. It selects the deadline as well: see [`Rules`].
    pub cap: u64,
    /// Whether an HTML page is expected.
    pub html: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Body {
        bytes: Vec<u8>,
        /// The ETag, for the next conditional request.
        etag: Option<String>,
    },
    /// The entity still has the ETag that was sent.
    NotModified,
}

/// Called for each piece: bytes so far in this try, and the length of the whole when the server gave it.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, Option<u64>) + Send);

#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    rules: Rules,
}

/// The failure of one try.
#[derive(Debug)]
enum Trouble {
    /// A retry fails as well.
    Final(Error),
    /// A retry may succeed, after this wait if the server requested one.
    Again {
        error: Error,
        after: Option<Duration>,
    },
}

impl Trouble {
    fn again(text: impl Into<String>) -> Self {
        Self::Again {
            error: Error::unavailable(text),
            after: None,
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl Client {
    /// Makes a client that trusts the certificate authorities of the system and those in `authority` (PEM).
    ///
    /// # Errors
    /// Configuration: the PEM cannot be parsed, or there is no authority at all.
    pub fn new(rules: Rules, authority: Option<&str>) -> Result<Self> {
        // reqwest panics without a provider. The agent installs one; a program with this crate alone may not.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Fails when another thread was faster.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("pawl-tool-versions/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::policy())
            .connect_timeout(rules.connect)
            .read_timeout(rules.silence)
            .referer(false)
            .pool_idle_timeout(Duration::from_secs(30));
        if !rules.proxies {
            builder = builder.no_proxy();
        }
        if let Some(pem) = authority {
            let authorities = reqwest::Certificate::from_pem_bundle(pem.as_bytes())
                .ok()
                .filter(|all| !all.is_empty());
            let authorities = authorities
                .ok_or_else(|| Error::configuration("the certificate authorities of the mirror, or those of all that is fetched, are no PEM with a certificate in it"))?;
            builder = builder.tls_certs_merge(authorities);
        }
        let http = builder.build().map_err(|error| {
            Error::configuration(format!(
                "no client for release servers: {}; certificate authorities come from the system (/etc/ssl/certs, SSL_CERT_FILE) \
                 and from the mirror's own setting",
                causes(error)
            ))
        })?;
        Ok(Self { http, rules })
    }

    /// Reads a body into memory. With the ETag of an earlier answer, only if the entity changed.
    ///
    /// # Errors
    /// Unavailable when a later try may succeed, configuration for a missing or forbidden object, integrity for an answer that
    /// contradicts its headers. The text has the address without secrets.
    pub async fn get(&self, ask: Ask<'_>, etag: Option<&str>) -> Result<Answer> {
        let mut to = Sink::Memory(Vec::new());
        let body = self.fetch(ask, etag, &mut to, &mut |_, _| {}).await?;
        Ok(match (to, body) {
            (Sink::Memory(bytes), Some(Body { etag, .. })) => Answer::Body { bytes, etag },
            _ => Answer::NotModified,
        })
    }

    /// Replaces the content of a file with a body, and returns its length in bytes. Does not sync.
    ///
    /// # Errors
    /// As [`Self::get`], and storage for the file, whose content is then undefined.
    pub async fn download(
        &self,
        ask: Ask<'_>,
        file: &mut File,
        progress: Progress<'_>,
    ) -> Result<u64> {
        let body = self
            .fetch(ask, None, &mut Sink::File(file), progress)
            .await?;
        Ok(body.map_or(0, |body| body.bytes))
    }

    /// Retries until success, a final error or the deadline. `None` when the entity is unchanged.
    async fn fetch(
        &self,
        ask: Ask<'_>,
        etag: Option<&str>,
        to: &mut Sink<'_>,
        progress: Progress<'_>,
    ) -> Result<Option<Body>> {
        let url = address::read(&format!("the address of {}", ask.what), ask.url)?;
        let whole = if ask.cap > SMALL {
            self.rules.large
        } else {
            self.rules.small
        };
        let deadline = Instant::now() + whole;
        let mut tries = 0;
        loop {
            tries += 1;
            let (error, after) =
                match timeout_at(deadline, self.once(ask, &url, etag, to, progress)).await {
                    Ok(Ok(body)) => return Ok(body),
                    Ok(Err(Trouble::Final(error))) => return Err(error),
                    Ok(Err(Trouble::Again { error, after })) => (error, after),
                    Err(_) => {
                        let seconds = whole.as_secs_f64();
                        return Err(Error::unavailable(format!(
                            "{} did not give {} within {seconds} s",
                            shown(&url),
                            ask.what
                        )));
                    }
                };
            if tries >= self.rules.tries {
                return Err(Error {
                    text: format!("{}; tried {tries} times", error.text),
                    ..error
                });
            }
            let wait = waiting::backoff(self.rules.backoff, tries).max(after.unwrap_or_default());
            if wait > self.rules.longest_wait || Instant::now() + wait >= deadline {
                let text = format!(
                    "{}; the next try would be in {} s, which is too late",
                    error.text,
                    wait.as_secs()
                );
                return Err(Error { text, ..error });
            }
            tracing::info!(%error, wait_ms = wait.as_millis(), "a request to a release server is retried");
            sleep(wait).await;
        }
    }
}

/// The error of an answer without a body for us.
fn refused(ask: Ask<'_>, url: &Url, status: StatusCode, headers: &HeaderMap) -> Trouble {
    let (what, url) = (ask.what, shown(url));
    let later = matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error();
    let after = waiting::asked_for(headers, SystemTime::now());
    // GitHub's secondary rate limit has `Retry-After` with some of the primary limit left.
    if later
        || status == StatusCode::FORBIDDEN
            && (after.is_some() || waiting::is_limit_used_up(headers))
    {
        return Trouble::Again {
            error: Error::unavailable(format!("{url} answered {status} to {what}")),
            after,
        };
    }
    let error = match status.as_u16() {
        404 | 410 => Error::absent(what, format_args!("{url} ({status})")),
        401 | 403 => Error::configuration(format!(
            "{url} does not give us {what} ({status}): see to the credentials of the mirror"
        )),
        407 => Error::configuration(format!(
            "the proxy before {url} wants credentials ({status}): put them into HTTPS_PROXY"
        )),
        400..=499 => Error::configuration(format!(
            "{url} refuses to give {what} ({status}): is it a release server?"
        )),
        _ => Error::integrity(format!(
            "{url} answered {status} to {what}, which is no file"
        )),
    };
    Trouble::Final(Error {
        status: Some(status.as_u16()),
        ..error
    })
}

/// A reqwest error with its causes. The URL is left out: it may hold a secret.
fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
