//! The controller's requests: what became of a claimed run, and what is to be deleted.

use std::{path::PathBuf, time::Duration};

use futures::future::BoxFuture;
use reqwest::{Method, Response, StatusCode};

use crds::{
    Journal,
    datastore::{JOURNAL, LogStand, ObjectKind},
    termination::TerminationMessage,
};

use crate::{
    connection::{self, Connection, Limits, Text},
    error::{RequestError, parsed, read, sorted},
};

/// A look at a run waits for the answer.
const LIMITS: Limits = Limits { connect: Some(Duration::from_secs(3)), whole: Some(Duration::from_secs(5)), silence: None };

/// The datastore, as the controller was told of it.
pub struct Datastore {
    connection: Connection,
    token: PathBuf,
    played: Option<Played>,
}

/// Stands in for the network: answers a request of that method and path.
pub type Played = Box<dyn Fn(Method, String) -> BoxFuture<'static, Result<Response, RequestError>> + Send + Sync>;

impl Datastore {
    /// The datastore at `https://HOST[:PORT]`. The files of its certificate authority and of the token are read for each request.
    pub fn new(url: &str, authority: PathBuf, token: PathBuf) -> Self {
        Self { connection: Connection::new(url, Text::File(authority), LIMITS), token, played: None }
    }

    /// A datastore that is played: every request but the question whether it is ready is answered by `played`, and its
    /// certificate authority is empty.
    pub fn played(url: &str, played: Played) -> Self {
        let connection = Connection::new(url, Text::Known(String::new()), LIMITS);
        Self { connection, token: PathBuf::new(), played: Some(played) }
    }

    /// Its address.
    pub fn url(&self) -> &str {
        self.connection.url()
    }

    /// The certificate authority, as PEM.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn authority(&self) -> Result<String, RequestError> {
        self.connection.authority()
    }

    /// How an attempt ended, in the words of its agent; `None` when it said nothing.
    ///
    /// # Errors
    /// When there is no answer that says so.
    pub async fn result(&self, namespace: &str, uid: &str, attempt: u32) -> Result<Option<TerminationMessage>, RequestError> {
        let path = format!("/v1/namespaces/{namespace}/uids/{uid}/attempts/{attempt}/objects/{}", ObjectKind::Result.as_str());
        let answer = self.send(Method::GET, &path).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        parsed(&read(sorted(answer).await?).await?).map(Some)
    }

    /// An attempt's journal, compared with the run's managed state.
    ///
    /// # Errors
    /// When there is no answer that says so.
    pub async fn journal(&self, namespace: &str, uid: &str, attempt: u32) -> Result<Journal, RequestError> {
        let path = format!("/v1/namespaces/{namespace}/uids/{uid}/attempts/{attempt}/{JOURNAL}");
        let answer = self.send(Method::GET, &path).await?;
        parsed(&read(sorted(answer).await?).await?)
    }

    /// Whether all that an attempt's agent had to say is in its log; `false` where the datastore has nothing of the attempt.
    ///
    /// # Errors
    /// When there is no answer that says so.
    pub async fn log_is_whole(&self, namespace: &str, uid: &str, attempt: u32) -> Result<bool, RequestError> {
        let path = format!("/v1/namespaces/{namespace}/uids/{uid}/attempts/{attempt}/log");
        let answer = self.send(Method::GET, &path).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(false);
        }
        parsed::<LogStand>(&read(sorted(answer).await?).await?).map(|stand| stand.whole)
    }

    /// Deletes the bundles of a run.
    ///
    /// # Errors
    /// When they may still be there.
    pub async fn delete_bundles(&self, namespace: &str, uid: &str) -> Result<(), RequestError> {
        self.delete(&format!("/v1/namespaces/{namespace}/uids/{uid}?only={}", ObjectKind::Bundle.as_str())).await
    }

    /// Releases the lock that a run left on its managed state; one of another run stays.
    ///
    /// # Errors
    /// When it may still be there.
    pub async fn release_lock(&self, namespace: &str, uid: &str) -> Result<(), RequestError> {
        self.delete(&format!("/v1/namespaces/{namespace}/uids/{uid}/lock")).await
    }

    /// Deletes everything of a run but its claim.
    ///
    /// # Errors
    /// When something may still be there.
    pub async fn delete_run(&self, namespace: &str, uid: &str) -> Result<(), RequestError> {
        self.delete(&format!("/v1/namespaces/{namespace}/uids/{uid}")).await
    }

    /// Whether it is ready to serve; asked without a token.
    ///
    /// # Errors
    /// When it is not, or does not say.
    pub async fn ready(&self) -> Result<(), RequestError> {
        let answer = self.connection.request(Method::GET, "/readyz")?.send().await?;
        sorted(answer).await.map(drop)
    }

    async fn delete(&self, path: &str) -> Result<(), RequestError> {
        let answer = self.send(Method::DELETE, path).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(());
        }
        sorted(answer).await.map(drop)
    }

    async fn send(&self, method: Method, path: &str) -> Result<Response, RequestError> {
        if let Some(played) = &self.played {
            return played(method, path.to_owned()).await;
        }
        let token = connection::read(&self.token)?;
        Ok(self.connection.request(method, path)?.bearer_auth(token.trim()).send().await?)
    }
}
