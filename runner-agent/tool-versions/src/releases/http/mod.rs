//! HTTP with our rules: what a release server may do to us, and for how long.
//!
//! | rule | how |
//! |---|---|
//! | deadlines | of the connection, of silence, and of the whole with all tries: see [`Rules`] |
//! | tries | 429, 408, 425, 5xx, a 403 that asks for a wait, and cut connections; other answers are final |
//! | waiting | with jitter, or what `Retry-After` asks for, if that is not too long |
//! | length | `Content-Length` and `Content-Range` have to be true, and below the cap of the request |
//! | cuts | resumed by `Range` with `If-Range` when there is a strong `ETag`; from the start otherwise, and when the entity changed |
//! | redirects | five, no loops, to https only; credentials only to the server that was asked: see [`redirect`] |
//! | kind | a page of HTML where none is wanted is an error, whatever its status |
//!
//! Proxies are those of the environment (`HTTPS_PROXY`, `NO_PROXY`), as reqwest reads them.

use std::time::{Duration, SystemTime};

use reqwest::{StatusCode, Url, header::HeaderMap};
use tokio::{
    fs::File,
    time::{Instant, sleep, timeout_at},
};

pub mod address;
mod answer;
mod exchange;
mod received;
pub mod redirect;
pub mod waiting;

use self::{
    address::shown,
    received::{Received, Sink},
};
use crate::{Error, Result};

/// The border between small bodies (sums, signatures, lists) and large ones (archives): 16 MiB.
pub const SMALL: u64 = 16 << 20;

/// Deadlines and tries. The default is what production uses; tests have shorter ones.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How long a connection may take, with TLS: 10 s.
    pub connect: Duration,
    /// How long nothing may come, of the head of an answer as of its body: 30 s.
    pub silence: Duration,
    /// How long a body of up to [`SMALL`] may take in all, tries and waits included: 2 min.
    pub small: Duration,
    /// How long a larger one may take: 15 min, which is 0.2 MB/s for the largest release.
    pub large: Duration,
    /// How often it is tried in all: 3.
    pub tries: u32,
    /// The base of the wait between tries: 0.5 s.
    pub backoff: Duration,
    /// The longest wait that a server may ask for: 60 s. One that asks for more is unavailable.
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
    /// What is there, for messages: `OpenTofu 1.10.6`.
    pub what: &'a str,
    /// What to log in with, at that server and no other.
    pub auth: &'a Auth,
    /// The most bytes of a body. It also decides on the deadline: see [`Rules`].
    pub cap: u64,
    /// Whether a page of HTML is what is wanted.
    pub html: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Body {
        bytes: Vec<u8>,
        /// Its tag, to ask again with.
        etag: Option<String>,
    },
    /// It is as it was when it had the tag that was sent.
    NotModified,
}

/// Told of every piece that came: the bytes so far, and those of the whole when the server says. It goes back to 0 when the server
/// made us begin again.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, Option<u64>) + Send);

#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    rules: Rules,
}

/// Why one try failed.
#[derive(Debug)]
enum Trouble {
    /// The next one will fail as well.
    Final(Error),
    /// The next one may not, after this wait if the server asked for one.
    Again { error: Error, after: Option<Duration> },
}

impl Trouble {
    fn again(text: impl Into<String>) -> Self {
        Self::Again { error: Error::unavailable(text), after: None }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl Client {
    /// A client that trusts the authorities of the system and, besides, those in `authority` (PEM). Nothing is sent yet.
    ///
    /// # Errors
    /// Configuration: the PEM cannot be read, or there is no authority at all.
    pub fn new(rules: Rules, authority: Option<&str>) -> Result<Self> {
        // The program installs it; whoever uses this crate alone may not have, and reqwest would panic.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Fails when another thread was faster, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("pawl-tool-versions/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(rules.connect)
            .referer(false)
            .pool_idle_timeout(Duration::from_secs(30));
        if !rules.proxies {
            builder = builder.no_proxy();
        }
        if let Some(pem) = authority {
            let authorities = reqwest::Certificate::from_pem_bundle(pem.as_bytes()).ok().filter(|all| !all.is_empty());
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

    /// Gets a body into memory; with the tag of an earlier one, only if it is another now.
    ///
    /// # Errors
    /// Unavailable for what a later try may change, configuration for what is not there or not for us, integrity for what is not
    /// what the server said it is. It names the address without secrets.
    pub async fn get(&self, ask: Ask<'_>, etag: Option<&str>) -> Result<Answer> {
        let mut received = Received::new(Sink::Memory(Vec::new()));
        let changed = self.fetch(ask, etag, &mut received, &mut |_, _| {}).await?;
        let etag = received.etag.take();
        Ok(match received.sink {
            Sink::Memory(bytes) if changed => Answer::Body { bytes, etag },
            _ => Answer::NotModified,
        })
    }

    /// Writes a body to a file, from its start, whatever was in it; how many bytes there are. Nothing is synced.
    ///
    /// # Errors
    /// As [`Self::get`], and storage for the file. What is in the file then is of no use.
    pub async fn download(&self, ask: Ask<'_>, file: &mut File, progress: Progress<'_>) -> Result<u64> {
        let mut received = Received::new(Sink::File(file));
        received.restart(ask.what).await?;
        self.fetch(ask, None, &mut received, progress).await?;
        received.finish(ask.what).await?;
        Ok(received.bytes)
    }

    /// All tries; whether there is a body, and not only the word that it is the same.
    async fn fetch(&self, ask: Ask<'_>, etag: Option<&str>, to: &mut Received<'_>, progress: Progress<'_>) -> Result<bool> {
        let url = address::read(&format!("the address of {}", ask.what), ask.url)?;
        let whole = if ask.cap > SMALL { self.rules.large } else { self.rules.small };
        let deadline = Instant::now() + whole;
        let mut tries = 0;
        loop {
            tries += 1;
            let (error, after) = match timeout_at(deadline, self.once(ask, &url, etag, to, progress)).await {
                Ok(Ok(changed)) => return Ok(changed),
                Ok(Err(Trouble::Final(error))) => return Err(error),
                Ok(Err(Trouble::Again { error, after })) => (error, after),
                Err(_) => {
                    let (seconds, bytes) = (whole.as_secs_f64(), to.bytes);
                    return Err(Error::unavailable(format!(
                        "{} did not give {} within {seconds} s, but {bytes} bytes",
                        shown(&url),
                        ask.what
                    )));
                }
            };
            if tries >= self.rules.tries {
                return Err(Error { text: format!("{}; tried {tries} times", error.text), ..error });
            }
            let wait = backoff(&self.rules, tries).max(after.unwrap_or_default());
            if wait > self.rules.longest_wait || Instant::now() + wait >= deadline {
                let text = format!("{}; the next try would be in {} s, which is too late", error.text, wait.as_secs());
                return Err(Error { text, ..error });
            }
            tracing::info!(%error, wait_ms = wait.as_millis(), "a release server is asked again");
            sleep(wait).await;
        }
    }
}

fn backoff(rules: &Rules, tries: u32) -> Duration {
    waiting::backoff(rules.backoff, tries)
}

/// What an answer that is no success means.
fn refused(ask: Ask<'_>, url: &Url, status: StatusCode, headers: &HeaderMap) -> Trouble {
    let (what, url) = (ask.what, shown(url));
    let later = matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error();
    let after = waiting::asked_for(headers, SystemTime::now());
    // GitHub's second limit says for how long, and nothing of how much is left.
    if later || status == StatusCode::FORBIDDEN && (after.is_some() || waiting::is_limit_used_up(headers)) {
        return Trouble::Again { error: Error::unavailable(format!("{url} answered {status} to {what}")), after };
    }
    let error = match status.as_u16() {
        404 | 410 => Error::absent(what, format_args!("{url} ({status})")),
        401 | 403 => {
            Error::configuration(format!("{url} does not give us {what} ({status}): see to the credentials of the mirror"))
        }
        407 => Error::configuration(format!("the proxy before {url} wants credentials ({status}): put them into HTTPS_PROXY")),
        400..=499 => Error::configuration(format!("{url} refuses to give {what} ({status}): is it a release server?")),
        _ => Error::integrity(format!("{url} answered {status} to {what}, which is no file")),
    };
    Trouble::Final(Error { status: Some(status.as_u16()), ..error })
}

/// An error of reqwest with its causes, without the address, which may hold a secret.
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
