//! Requests to the datastore: each with the token of the moment, each answered, refused or not answered.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use crds::{
    Claim,
    apply_log::Replay,
    datastore::{self as words, HEADER_DIGEST, HEADER_NONCE, Length, ObjectKind, Problem, Stored},
    termination::TerminationMessage,
};
use reqwest::{Body, Method, RequestBuilder, Response, StatusCode, header};
use sha2::{Digest as _, Sha256};
use tokio::{
    fs::File,
    io::AsyncWriteExt as _,
    time::{Instant, sleep},
};
use tokio_util::io::ReaderStream;

use crate::{api::backoff, files::Scratch, settings::Store};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long nothing may come of an answer. An object of a gigabyte is read back before it is answered.
const SILENCE: Duration = Duration::from_secs(120);
/// How long a small request may take in all.
const SMALL: Duration = Duration::from_secs(10);

/// A request that was not carried out, or of which nobody knows.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Trouble {
    /// No answer, or one that says that a later one may be another.
    #[error("{0}")]
    Unavailable(String),
    /// An answer that will be the same the next time.
    #[error("{0}")]
    Refused(Problem),
}

impl Trouble {
    /// Whether the datastore answered with this reason.
    pub fn is(&self, reason: &str) -> bool {
        matches!(self, Self::Refused(problem) if problem.reason == reason)
    }
}

/// The datastore, for one attempt.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    namespace: String,
    run: String,
    attempt: u32,
    nonce: String,
    token: PathBuf,
}

impl Client {
    /// A client; nothing is sent yet.
    ///
    /// # Errors
    /// When the certificate authority is no PEM.
    pub fn new(store: &Store, namespace: &str, run: &str, attempt: u32, nonce: &str) -> anyhow::Result<Self> {
        let authority =
            reqwest::Certificate::from_pem_bundle(store.ca.as_bytes()).context("the datastore's authority is no PEM")?;
        // Proxies are for the tool's traffic, not for the cluster's.
        let http = reqwest::Client::builder()
            .tls_certs_only(authority)
            .https_only(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            // The server closes what is idle for a minute.
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(4)
            .build()
            .context("no client for the datastore")?;
        Ok(Self {
            http,
            base: store.url.trim_end_matches('/').to_owned(),
            namespace: namespace.to_owned(),
            run: run.to_owned(),
            attempt,
            nonce: nonce.to_owned(),
            token: store.token.clone(),
        })
    }

    fn request(&self, method: Method, attempt: u32, rest: &str) -> Result<RequestBuilder, Trouble> {
        // The kubelet renews it; a client that keeps it would use an expired one.
        let token = std::fs::read_to_string(&self.token)
            .map_err(|error| Trouble::Unavailable(format!("{} cannot be read: {error}", self.token.display())))?;
        let url = format!("{}{}/{rest}", self.base, words::attempt_path(&self.namespace, &self.run, attempt));
        Ok(self.http.request(method, url).bearer_auth(token.trim()).header(HEADER_NONCE, &self.nonce))
    }

    fn own(&self, method: Method, rest: &str) -> Result<RequestBuilder, Trouble> {
        self.request(method, self.attempt, rest)
    }

    /// Writes a file as an object, once; the same content a second time is success.
    pub async fn put_file(&self, kind: ObjectKind, file: &Scratch, digest: &str) -> Result<(), Trouble> {
        let size = file.size().map_err(|error| local(Path::new(kind.as_str()), &error))?;
        let request = self
            .own(Method::PUT, &format!("objects/{}", kind.as_str()))?
            .header(HEADER_DIGEST, digest)
            .header(header::CONTENT_LENGTH, size)
            .body(Body::wrap_stream(file.stream()));
        answer(request).await.map(drop)
    }

    /// What stands in the store, read back from there.
    pub async fn stored(&self, kind: ObjectKind) -> Result<Stored, Trouble> {
        let response = answer(self.own(Method::GET, &format!("objects/{}/digest", kind.as_str()))?).await?;
        json(response).await
    }

    /// Reads an object of an attempt of this run into a file of our own, on the file system of a directory.
    pub async fn get_file(&self, kind: ObjectKind, attempt: u32, dir: &Path) -> Result<Scratch, Trouble> {
        let request = self.request(Method::GET, attempt, &format!("objects/{}", kind.as_str()))?;
        let mut response = answer(request).await?;
        let scratch = Scratch::create(dir).map_err(|error| local(dir, &error))?;
        let mut file = File::from_std(scratch.file().try_clone().map_err(|error| local(dir, &error))?);
        while let Some(chunk) = response.chunk().await.map_err(|error| unavailable(&error))? {
            file.write_all(&chunk).await.map_err(|error| local(dir, &error))?;
        }
        file.flush().await.map_err(|error| local(dir, &error))?;
        Ok(scratch)
    }

    /// Appends to the log of a phase; how long it is then.
    pub async fn append(&self, phase: &str, offset: u64, bytes: Bytes, end: bool) -> Result<u64, Trouble> {
        let mut rest = format!("log/{phase}?offset={offset}");
        if end {
            rest.push_str("&end=true");
        }
        let response = answer(self.own(Method::PUT, &rest)?.timeout(SMALL).body(bytes)).await?;
        json::<Length>(response).await.map(|length| length.length)
    }

    /// The journal of the run that this run's own spec names, as far as it can be read.
    pub async fn recovered_journal(&self) -> Result<Replay, Trouble> {
        let mut response = answer(self.own(Method::GET, "recover")?).await?;
        let mut replay = Replay::default();
        while let Some(chunk) = response.chunk().await.map_err(|error| unavailable(&error))? {
            replay.feed(&chunk);
        }
        replay.finish();
        Ok(replay)
    }

    /// Proves that the record of a claim can be written.
    pub async fn prove_claim(&self) -> Result<(), Trouble> {
        answer(self.own(Method::PUT, "intent")?.timeout(SMALL)).await.map(drop)
    }

    /// The write-once record of the claim.
    pub async fn claim(&self, claim: &Claim) -> Result<(), Trouble> {
        let body = serde_json::to_vec(claim).unwrap_or_default();
        answer(self.own(Method::PUT, "claim")?.timeout(SMALL).body(body)).await.map(drop)
    }

    /// The result of this attempt.
    pub async fn result(&self, message: &TerminationMessage) -> Result<(), Trouble> {
        let body = message.to_bytes();
        let request = self
            .own(Method::PUT, &format!("objects/{}", ObjectKind::Result.as_str()))?
            .header(HEADER_DIGEST, words::hex_digest(&Sha256::digest(&body)))
            .timeout(SMALL)
            .body(body);
        answer(request).await.map(drop)
    }

    /// The newest state; none before the first.
    pub async fn state(&self) -> Result<Option<Response>, Trouble> {
        let response = answer(self.own(Method::GET, "state")?).await?;
        Ok((response.status() != StatusCode::NO_CONTENT).then_some(response))
    }

    /// A new version of the state, under its lock.
    pub async fn put_state(&self, lock: &str, path: &Path, digest: &str) -> Result<(), Trouble> {
        let file = File::open(path).await.map_err(|error| local(path, &error))?;
        let size = file.metadata().await.map_err(|error| local(path, &error))?.len();
        let request = self
            .own(Method::PUT, "state")?
            .query_pair("lock", lock)
            .header(HEADER_DIGEST, digest)
            .header(header::CONTENT_LENGTH, size)
            .body(Body::wrap_stream(ReaderStream::with_capacity(file, 256 << 10)));
        answer(request).await.map(drop)
    }

    /// Takes the lock of the state.
    pub async fn lock(&self, info: Bytes) -> Result<(), Trouble> {
        answer(self.own(Method::PUT, "lock")?.timeout(SMALL).body(info)).await.map(drop)
    }

    /// Gives the lock of the state back.
    pub async fn unlock(&self, id: &str) -> Result<(), Trouble> {
        answer(self.own(Method::DELETE, "lock")?.query_pair("lock", id).timeout(SMALL)).await.map(drop)
    }
}

/// A query of one pair, without a serializer for it.
trait QueryPair {
    fn query_pair(self, name: &str, value: &str) -> Self;
}

impl QueryPair for RequestBuilder {
    fn query_pair(self, name: &str, value: &str) -> Self {
        let (client, request) = self.build_split();
        match request {
            Ok(mut request) => {
                request.url_mut().query_pairs_mut().append_pair(name, value);
                Self::from_parts(client, request)
            }
            // It fails again, and says why, when it is sent.
            Err(_) => client.get(""),
        }
    }
}

fn local(path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::Unavailable(format!("{}: {error}", path.display()))
}

fn unavailable(error: &reqwest::Error) -> Trouble {
    Trouble::Unavailable(words::causes(error))
}

/// Sends, and sorts answers: what may be another the next time, and what will not.
async fn answer(request: RequestBuilder) -> Result<Response, Trouble> {
    let response = request.send().await.map_err(|error| unavailable(&error))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let text = response.bytes().await.unwrap_or_default();
    let problem = serde_json::from_slice::<Problem>(&text).unwrap_or_else(|_| Problem {
        reason: words::INVALID.to_owned(),
        message: format!("{status}: {}", crds::text::clip(&String::from_utf8_lossy(&text), 200)),
        ..Problem::default()
    });
    let definite = [words::CORRUPT, words::KEY_MISSING].contains(&problem.reason.as_str());
    let later = status.is_server_error() && !definite || status == StatusCode::TOO_MANY_REQUESTS;
    Err(if later { Trouble::Unavailable(problem.to_string()) } else { Trouble::Refused(problem) })
}

async fn json<T: serde::de::DeserializeOwned>(response: Response) -> Result<T, Trouble> {
    let bytes = response.bytes().await.map_err(|error| unavailable(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| Trouble::Unavailable(format!("an answer that is no JSON: {error}")))
}

/// Tries until there is an answer, or the time is over. A token that is refused may be one that was renewed a moment ago, and
/// rights of a fresh pod may not be in force yet, so those are tried again for some seconds as well.
///
/// # Errors
/// The last trouble.
pub async fn patiently<T, F: Future<Output = Result<T, Trouble>>>(
    limit: Duration,
    mut request: impl FnMut() -> F,
) -> Result<T, Trouble> {
    let begun = Instant::now();
    let mut tries = 0;
    loop {
        let trouble = match request().await {
            Ok(value) => return Ok(value),
            Err(trouble) => trouble,
        };
        let fresh = [words::UNAUTHENTICATED, words::FORBIDDEN].iter().any(|reason| trouble.is(reason))
            && begun.elapsed() < Duration::from_secs(3);
        if matches!(trouble, Trouble::Refused(_)) && !fresh {
            return Err(trouble);
        }
        tries += 1;
        let wait = backoff(tries);
        if begun.elapsed() + wait > limit {
            return Err(trouble);
        }
        tracing::info!(%trouble, "the datastore did not carry out a request; it is sent again");
        sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_may_change_is_tried_again() {
        let mut times = 0;
        let refused = || Trouble::Refused(Problem { reason: words::TOO_LARGE.into(), ..Problem::default() });
        let result: Result<(), _> = patiently(Duration::from_secs(60), || {
            times += 1;
            async { Err(refused()) }
        })
        .await;
        assert!(result.unwrap_err().is(words::TOO_LARGE));
        assert_eq!(times, 1);
        let mut times = 0;
        let result = patiently(Duration::from_secs(60), || {
            times += 1;
            let done = times == 4;
            async move { if done { Ok(7) } else { Err(Trouble::Unavailable("away".into())) } }
        })
        .await;
        assert_eq!((result.unwrap(), times), (7, 4));
        let mut times = 0;
        let result: Result<(), _> = patiently(Duration::from_millis(400), || {
            times += 1;
            async { Err(Trouble::Unavailable("away".into())) }
        })
        .await;
        assert!(result.is_err() && times > 1);
    }
}
