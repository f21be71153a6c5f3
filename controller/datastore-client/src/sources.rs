//! Requests of `controller sources`: snapshots of repositories, by the repository's UID and the commit id.

use std::{path::PathBuf, time::Duration};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use reqwest::{Method, RequestBuilder};

use crds::datastore::{Stored, WANTED_PATH, WantedRevision, snapshots_path};

use crate::{
    attempt::{Content, with},
    connection::{self, Connection, Limits, Text},
    error::{RequestError, answer, found, parsed, read, read_up_to},
};

/// The transfer of a snapshot of a gigabyte takes a while.
const LIMITS: Limits = Limits {
    connect: Some(Duration::from_secs(5)),
    whole: None,
    silence: Some(Duration::from_secs(120)),
};
/// Timeout of a request without content.
const SMALL: Duration = Duration::from_secs(30);
/// Maximum size of a list of revisions, in bytes; room for 90000.
const MAX_LIST: usize = 4 << 20;

/// The identity of a repository's snapshots. A repository recreated under the same name does not get its predecessor's.
#[derive(Clone, Copy, Debug)]
pub struct RepositoryId<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// A stream of lists of the revisions that runs wait for.
pub type Lists = BoxStream<'static, Result<Vec<WantedRevision>, RequestError>>;

/// A client of the datastore for `controller sources`.
#[derive(Debug)]
pub struct Sources {
    connection: Connection,
    token: PathBuf,
}

impl Sources {
    /// The datastore at `https://HOST[:PORT]`. Reads the files of certificate authority and token for each request.
    pub fn new(url: &str, authority: PathBuf, token: PathBuf) -> Self {
        Self {
            connection: Connection::new(url, Text::File(authority), LIMITS),
            token,
        }
    }

    /// Stores the snapshot of a commit; returns the stored one. An existing snapshot remains: a commit has one tree,
    /// but another release may pack it into different bytes.
    ///
    /// # Errors
    /// When it may not be stored. `TooLarge` beyond [`crds::datastore::MAX_SOURCE`].
    pub async fn put(
        &self,
        of: RepositoryId<'_>,
        revision: &str,
        content: Content,
    ) -> Result<Stored, RequestError> {
        let request = self.request(Method::PUT, of, &format!("/{revision}"))?;
        parsed(&read(answer(with(request, content)).await?).await?)
    }

    /// Digest and size of a commit's snapshot; `None` when it does not exist.
    ///
    /// # Errors
    /// When the datastore does not give a definite answer.
    pub async fn digest(
        &self,
        of: RepositoryId<'_>,
        revision: &str,
    ) -> Result<Option<Stored>, RequestError> {
        let request = self
            .request(Method::GET, of, &format!("/{revision}/digest"))?
            .timeout(SMALL);
        match found(request.send().await?).await? {
            Some(response) => parsed(&read(response).await?).map(Some),
            None => Ok(None),
        }
    }

    /// The commits with a stored snapshot, unordered.
    ///
    /// # Errors
    /// When the datastore does not give a definite answer.
    pub async fn list(&self, of: RepositoryId<'_>) -> Result<Vec<String>, RequestError> {
        let response = answer(self.request(Method::GET, of, "")?.timeout(SMALL)).await?;
        parsed(&read_up_to(response, MAX_LIST).await?)
    }

    /// Deletes the snapshot of a commit. A missing one is no error.
    ///
    /// # Errors
    /// When it may still exist.
    pub async fn delete(&self, of: RepositoryId<'_>, revision: &str) -> Result<(), RequestError> {
        let request = self
            .request(Method::DELETE, of, &format!("/{revision}"))?
            .timeout(SMALL);
        found(request.send().await?).await.map(drop)
    }

    /// The revisions that runs of all repositories wait for: a stream of lists, until the datastore ends it.
    ///
    /// # Errors
    /// When the datastore does not give a definite answer.
    pub async fn wanted(&self) -> Result<Lists, RequestError> {
        let response = answer(self.at(Method::GET, WANTED_PATH)?).await?;
        let lists = stream::try_unfold(
            (response, Vec::new()),
            |(mut response, mut read)| async move {
                loop {
                    if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                        let rest = read.split_off(end + 1);
                        return Ok(Some((parsed(&read)?, (response, rest))));
                    }
                    match response.chunk().await? {
                        Some(chunk) if read.len() + chunk.len() <= MAX_LIST => read.extend(chunk),
                        Some(_) => {
                            return Err(RequestError::unanswered("a list that is longer than any"));
                        }
                        None => return Ok(None),
                    }
                }
            },
        );
        Ok(lists.boxed())
    }

    fn request(
        &self,
        method: Method,
        of: RepositoryId<'_>,
        rest: &str,
    ) -> Result<RequestBuilder, RequestError> {
        self.at(
            method,
            &format!("{}{rest}", snapshots_path(of.namespace, of.uid)),
        )
    }

    fn at(&self, method: Method, path: &str) -> Result<RequestBuilder, RequestError> {
        let token = connection::read(&self.token)?;
        Ok(self
            .connection
            .request(method, path)?
            .bearer_auth(token.trim()))
    }
}
