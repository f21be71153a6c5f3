//! Requests of an attempt's pod. Each request reads the token's file, and ends as success, as a refusal, or without an answer.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::{Body, Method, RequestBuilder, Response, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crds::{
    Claim, OutputsStatus,
    apply_log::Replay,
    datastore::{
        HEADER_DIGEST, HEADER_NONCE, LastState, Length, ObjectKind, Stored, attempt_path,
        hex_digest,
    },
    outputs::Taken,
    termination::TerminationMessage,
};

use crate::{
    connection::{self, Connection, Limits, Text},
    error::{RequestError, answer, parsed, read, read_up_to},
};

/// The datastore reads back an object of a gigabyte before it responds.
const LIMITS: Limits = Limits {
    connect: Some(Duration::from_secs(5)),
    whole: None,
    silence: Some(Duration::from_secs(120)),
};
/// Timeout of a small request.
const SMALL: Duration = Duration::from_secs(10);
/// Timeout of a request for outputs: the datastore writes objects before it responds.
const PUBLISHING: Duration = Duration::from_secs(40);
/// Maximum size of the outputs that a run reads, in bytes.
const MAX_TAKEN: usize = 4 << 20;

/// A body with known length and digest.
pub struct Content {
    /// The bytes.
    pub body: Body,
    /// The length in bytes.
    pub size: u64,
    /// `sha256:` and the hexadecimal digest.
    pub digest: String,
}

/// A client of the datastore for one attempt.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
    namespace: String,
    run: String,
    attempt: u32,
    nonce: String,
    token: PathBuf,
}

impl Client {
    /// A client of the datastore at `https://HOST[:PORT]`; sends nothing yet. Reads the token's file for each request,
    /// because the kubelet renews it.
    ///
    /// # Errors
    /// When the certificate authority is not PEM.
    pub fn new(
        url: &str,
        authority: &str,
        token: PathBuf,
        of: &AttemptId,
    ) -> Result<Self, RequestError> {
        let connection = Arc::new(Connection::new(
            url,
            Text::Known(authority.to_owned()),
            LIMITS,
        ));
        connection.client()?;
        let AttemptId {
            namespace,
            run,
            attempt,
            nonce,
        } = of.clone();
        Ok(Self {
            connection,
            namespace,
            run,
            attempt,
            nonce,
            token,
        })
    }

    fn request(
        &self,
        method: Method,
        attempt: u32,
        rest: &str,
    ) -> Result<RequestBuilder, RequestError> {
        let token = connection::read(&self.token)?;
        let path = format!(
            "{}/{rest}",
            attempt_path(&self.namespace, &self.run, attempt)
        );
        Ok(self
            .connection
            .request(method, &path)?
            .bearer_auth(token.trim())
            .header(HEADER_NONCE, &self.nonce))
    }

    fn own(&self, method: Method, rest: &str) -> Result<RequestBuilder, RequestError> {
        self.request(method, self.attempt, rest)
    }

    /// Writes an object once. Repeating the same content succeeds.
    pub async fn put(&self, kind: ObjectKind, content: Content) -> Result<(), RequestError> {
        let request = self.own(Method::PUT, &format!("objects/{}", kind.as_str()))?;
        answer(with(request, content)).await.map(drop)
    }

    /// Digest and size of an object, read back from the store.
    pub async fn stored(&self, kind: ObjectKind) -> Result<Stored, RequestError> {
        let response =
            answer(self.own(Method::GET, &format!("objects/{}/digest", kind.as_str()))?).await?;
        parsed(&read(response).await?)
    }

    /// Reads an object of any attempt of this run.
    pub async fn get(&self, kind: ObjectKind, attempt: u32) -> Result<Response, RequestError> {
        answer(self.request(Method::GET, attempt, &format!("objects/{}", kind.as_str()))?).await
    }

    /// Appends to the log of a phase; returns the new length.
    pub async fn append(
        &self,
        phase: &str,
        offset: u64,
        bytes: Bytes,
        end: bool,
    ) -> Result<u64, RequestError> {
        let mut rest = format!("log/{phase}?offset={offset}");
        if end {
            rest.push_str("&end=true");
        }
        let response = answer(self.own(Method::PUT, &rest)?.timeout(SMALL).body(bytes)).await?;
        parsed::<Length>(&read(response).await?).map(|length| length.length)
    }

    /// The readable part of the journal of the run in this run's spec.
    pub async fn recovered_journal(&self) -> Result<Replay, RequestError> {
        let mut response = answer(self.own(Method::GET, "recover")?).await?;
        let mut replay = Replay::default();
        while let Some(chunk) = response.chunk().await? {
            replay.feed(&chunk);
        }
        replay.finish();
        Ok(replay)
    }

    /// Proves that the record of a claim can be written.
    pub async fn prove_claim(&self) -> Result<(), RequestError> {
        answer(self.own(Method::PUT, "intent")?.timeout(SMALL))
            .await
            .map(drop)
    }

    /// Writes the claim's record, once.
    pub async fn claim(&self, claim: &Claim) -> Result<(), RequestError> {
        let body = serde_json::to_vec(claim).unwrap_or_default();
        answer(self.own(Method::PUT, "claim")?.timeout(SMALL).body(body))
            .await
            .map(drop)
    }

    /// Writes the result of this attempt.
    pub async fn result(&self, message: &TerminationMessage) -> Result<(), RequestError> {
        let body = message.to_bytes();
        let request = self
            .own(
                Method::PUT,
                &format!("objects/{}", ObjectKind::Result.as_str()),
            )?
            .header(HEADER_DIGEST, hex_digest(&Sha256::digest(&body)))
            .timeout(SMALL)
            .body(body);
        answer(request).await.map(drop)
    }

    /// Publishes these outputs, or those of the managed state if these are of none; returns the result.
    pub async fn publish(&self, outputs: Bytes) -> Result<OutputsStatus, RequestError> {
        let request = self
            .own(Method::PUT, "outputs")?
            .timeout(PUBLISHING)
            .body(outputs);
        parsed(&read(answer(request).await?).await?)
    }

    /// Reads the outputs of other stacks that this run's spec references.
    pub async fn outputs(&self) -> Result<Vec<Taken>, RequestError> {
        let response = answer(self.own(Method::GET, "outputs")?.timeout(PUBLISHING)).await?;
        parsed(&read_up_to(response, MAX_TAKEN).await?)
    }

    /// Reads the snapshot of the revision in this run's spec.
    pub async fn source(&self) -> Result<Response, RequestError> {
        answer(self.own(Method::GET, "source")?).await
    }

    /// Reads the newest state; `None` before the first.
    pub async fn state(&self) -> Result<Option<Response>, RequestError> {
        let response = answer(self.own(Method::GET, "state")?).await?;
        Ok((response.status() != StatusCode::NO_CONTENT).then_some(response))
    }

    /// Writes a new version of the state, under its lock.
    pub async fn put_state(&self, lock: &str, content: Content) -> Result<(), RequestError> {
        answer(with(
            self.own(Method::PUT, "state")?.query(&[("lock", lock)]),
            content,
        ))
        .await
        .map(drop)
    }

    /// The state of the last apply of the run's stack and workspace; `None` before the first.
    pub async fn last_state(&self) -> Result<Option<LastState>, RequestError> {
        let response = answer(self.own(Method::GET, "laststate")?.timeout(SMALL)).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        parsed(&read(response).await?).map(Some)
    }

    /// Records the state of this apply, which is not with the datastore.
    pub async fn applied_elsewhere(&self, last: &LastState) -> Result<(), RequestError> {
        let body = serde_json::to_vec(last).unwrap_or_default();
        answer(
            self.own(Method::PUT, "laststate")?
                .timeout(SMALL)
                .body(body),
        )
        .await
        .map(drop)
    }

    /// Takes the lock of the state.
    pub async fn lock(&self, info: Bytes) -> Result<(), RequestError> {
        answer(self.own(Method::PUT, "lock")?.timeout(SMALL).body(info))
            .await
            .map(drop)
    }

    /// Releases the lock of the state.
    pub async fn unlock(&self, id: &str) -> Result<(), RequestError> {
        answer(
            self.own(Method::DELETE, "lock")?
                .query(&[("lock", id)])
                .timeout(SMALL),
        )
        .await
        .map(drop)
    }
}

/// The attempt that sends the requests.
#[derive(Clone, Debug)]
pub struct AttemptId {
    /// Namespace of the run.
    pub namespace: String,
    /// Its name.
    pub run: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Nonce of the process.
    pub nonce: String,
}

pub(crate) fn with(request: RequestBuilder, content: Content) -> RequestBuilder {
    let Content { body, size, digest } = content;
    request
        .header(HEADER_DIGEST, digest)
        .header(header::CONTENT_LENGTH, size)
        .body(body)
}
