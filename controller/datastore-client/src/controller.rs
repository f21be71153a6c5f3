//! Requests of the controller: results of claimed runs, and deletions.

use std::{path::PathBuf, time::Duration};

use futures::future::BoxFuture;
use reqwest::{Method, Response};
use serde::de::DeserializeOwned;

use crds::{
    Journal,
    datastore::{JOURNAL, LogStand, ObjectKind},
    termination::TerminationMessage,
};

use crate::{
    connection::{self, Connection, Limits, Text},
    error::{RequestError, found, parsed, read, sorted},
};

/// The reconcile of a run waits for the response.
const LIMITS: Limits = Limits {
    connect: Some(Duration::from_secs(3)),
    whole: Some(Duration::from_secs(5)),
    silence: None,
};

/// A client of the datastore for the controller.
pub struct Datastore {
    connection: Connection,
    token: PathBuf,
    played: Option<Played>,
}

/// Replaces the network in tests: answers a request with this method and path.
pub type Played =
    Box<dyn Fn(Method, String) -> BoxFuture<'static, Result<Response, RequestError>> + Send + Sync>;

impl Datastore {
    /// The datastore at `https://HOST[:PORT]`. Reads the files of certificate authority and token for each request.
    pub fn new(url: &str, authority: PathBuf, token: PathBuf) -> Self {
        Self {
            connection: Connection::new(url, Text::File(authority), LIMITS),
            token,
            played: None,
        }
    }

    /// A fake datastore: `played` answers every request except the readiness check. Its certificate authority is empty.
    pub fn played(url: &str, played: Played) -> Self {
        let connection = Connection::new(url, Text::Known(String::new()), LIMITS);
        Self {
            connection,
            token: PathBuf::new(),
            played: Some(played),
        }
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        self.connection.url()
    }

    /// The certificate authority, PEM.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn authority(&self) -> Result<String, RequestError> {
        self.connection.authority()
    }

    /// The result that an attempt's agent stored; `None` when it stored none.
    ///
    /// # Errors
    /// When the datastore does not give a definite answer.
    pub async fn result(
        &self,
        namespace: &str,
        uid: &str,
        attempt: u32,
    ) -> Result<Option<TerminationMessage>, RequestError> {
        let path = format!(
            "/v1/namespaces/{namespace}/uids/{uid}/attempts/{attempt}/objects/{}",
            ObjectKind::Result.as_str()
        );
        self.get(&path).await
    }

    /// An attempt's journal, compared with the run's managed state.
    ///
    /// # Errors
    /// When the datastore does not give a definite answer.
    pub async fn journal(
        &self,
        namespace: &str,
        uid: &str,
        attempt: u32,
    ) -> Result<Journal, RequestError> {
        let path = format!("/v1/namespaces/{namespace}/uids/{uid}/attempts/{attempt}/{JOURNAL}");
        let answer = self.send(Method::GET, &path).await?;
        parsed(&read(sorted(answer).await?).await?)
    }

    /// Whether an attempt's log is complete; `false` when the datastore has nothing of the attempt.
    ///
    /// # Errors
    /// When the datastore does not give a definite answer.
    pub async fn log_is_whole(
        &self,
        namespace: &str,
        uid: &str,
        attempt: u32,
    ) -> Result<bool, RequestError> {
        let path = format!("/v1/namespaces/{namespace}/uids/{uid}/attempts/{attempt}/log");
        Ok(self
            .get(&path)
            .await?
            .is_some_and(|stand: LogStand| stand.whole))
    }

    /// Whether the revision of a run's repository is stored. From then on `controller sources` stores it.
    ///
    /// # Errors
    /// `SourceNotReady`, `RepositoryNotAllowed`; when the datastore does not answer.
    pub async fn source_is_stored(
        &self,
        namespace: &str,
        uid: &str,
        run: &str,
    ) -> Result<(), RequestError> {
        let path = format!("/v1/namespaces/{namespace}/uids/{uid}/source/{run}");
        sorted(self.send(Method::GET, &path).await?).await.map(drop)
    }

    /// Deletes the bundles of a run.
    ///
    /// # Errors
    /// When they may still exist.
    pub async fn delete_bundles(&self, namespace: &str, uid: &str) -> Result<(), RequestError> {
        self.delete(&format!(
            "/v1/namespaces/{namespace}/uids/{uid}?only={}",
            ObjectKind::Bundle.as_str()
        ))
        .await
    }

    /// Releases the lock that a run left on its managed state; keeps the lock of another run.
    ///
    /// # Errors
    /// When it may still exist.
    pub async fn release_lock(&self, namespace: &str, uid: &str) -> Result<(), RequestError> {
        self.delete(&format!("/v1/namespaces/{namespace}/uids/{uid}/lock"))
            .await
    }

    /// Deletes all data of a run except its claim.
    ///
    /// # Errors
    /// When some may still exist.
    pub async fn delete_run(&self, namespace: &str, uid: &str) -> Result<(), RequestError> {
        self.delete(&format!("/v1/namespaces/{namespace}/uids/{uid}"))
            .await
    }

    /// Checks readiness, without a token.
    ///
    /// # Errors
    /// When it is not ready, or does not respond.
    pub async fn ready(&self) -> Result<(), RequestError> {
        let answer = self
            .connection
            .request(Method::GET, "/readyz")?
            .send()
            .await?;
        sorted(answer).await.map(drop)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, RequestError> {
        match found(self.send(Method::GET, path).await?).await? {
            Some(answer) => parsed(&read(answer).await?).map(Some),
            None => Ok(None),
        }
    }

    async fn delete(&self, path: &str) -> Result<(), RequestError> {
        found(self.send(Method::DELETE, path).await?)
            .await
            .map(drop)
    }

    async fn send(&self, method: Method, path: &str) -> Result<Response, RequestError> {
        if let Some(played) = &self.played {
            return played(method, path.to_owned()).await;
        }
        let token = connection::read(&self.token)?;
        Ok(self
            .connection
            .request(method, path)?
            .bearer_auth(token.trim())
            .send()
            .await?)
    }
}
