//! The requests of `controller sources`: bundles of repositories, by the UID of the repository and the id of the commit.

use std::{path::PathBuf, time::Duration};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use reqwest::{Method, RequestBuilder, Response, StatusCode};

use crds::datastore::{FOLLOW_WANTED_PATH, NOT_FOUND, Problem, Stored, WANTED_PATH, WantedRevision, bundles_path};

use crate::{
    attempt::{Content, with},
    connection::{self, Connection, Limits, Text},
    error::{RequestError, parsed, read, read_up_to, sorted},
};

/// A bundle of a gigabyte is on its way for a while.
const LIMITS: Limits = Limits { connect: Some(Duration::from_secs(5)), whole: None, silence: Some(Duration::from_secs(120)) };
/// How long a request without content may take in all.
const SMALL: Duration = Duration::from_secs(30);
/// The longest list of revisions, in bytes: of 90000.
const MAX_LIST: usize = 4 << 20;

/// A repository, as its bundles are kept: one that is made again under its name has none of its predecessor's.
#[derive(Clone, Copy, Debug)]
pub struct RepositoryId<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// What runs wait for, again and again.
pub type Lists = BoxStream<'static, Result<Vec<WantedRevision>, RequestError>>;

/// The datastore, for whoever follows repositories.
#[derive(Debug)]
pub struct Sources {
    connection: Connection,
    token: PathBuf,
}

impl Sources {
    /// The datastore at `https://HOST[:PORT]`. The files of its certificate authority and of the token are read for each request.
    pub fn new(url: &str, authority: PathBuf, token: PathBuf) -> Self {
        Self { connection: Connection::new(url, Text::File(authority), LIMITS), token }
    }

    /// Stores the bundle of a commit; what is there then. One that is there stays: a commit has one tree, whose bundle may have other
    /// bytes when another release packs it.
    ///
    /// # Errors
    /// When it may not be there. `TooLarge` beyond [`crds::datastore::MAX_SOURCE`].
    pub async fn put(&self, of: RepositoryId<'_>, revision: &str, content: Content) -> Result<Stored, RequestError> {
        let request = self.request(Method::PUT, of, &format!("/{revision}"))?;
        parsed(&read(answer(with(request, content)).await?).await?)
    }

    /// Digest and size of the bundle of a commit; none when there is none.
    ///
    /// # Errors
    /// When there is no answer that says so.
    pub async fn digest(&self, of: RepositoryId<'_>, revision: &str) -> Result<Option<Stored>, RequestError> {
        let request = self.request(Method::GET, of, &format!("/{revision}/digest"))?.timeout(SMALL);
        match answer(request).await {
            Ok(response) => parsed(&read(response).await?).map(Some),
            Err(RequestError::Refused(Problem { reason, .. })) if reason == NOT_FOUND => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The commits that there are bundles of, in no order.
    ///
    /// # Errors
    /// When there is no answer that says so.
    pub async fn list(&self, of: RepositoryId<'_>) -> Result<Vec<String>, RequestError> {
        let response = answer(self.request(Method::GET, of, "")?.timeout(SMALL)).await?;
        parsed(&read_up_to(response, MAX_LIST).await?)
    }

    /// Deletes the bundle of a commit; one that is not there is deleted already.
    ///
    /// # Errors
    /// When it may still be there.
    pub async fn delete(&self, of: RepositoryId<'_>, revision: &str) -> Result<(), RequestError> {
        let response = self.request(Method::DELETE, of, &format!("/{revision}"))?.timeout(SMALL).send().await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(());
        }
        sorted(response).await.map(drop)
    }

    /// The revisions that runs wait for, of all repositories: a list again and again, as long as the datastore says it. Of one of the release
    /// before it is one list.
    ///
    /// # Errors
    /// When there is no answer that says so.
    pub async fn wanted(&self) -> Result<Lists, RequestError> {
        let followed = answer(self.at(Method::GET, FOLLOW_WANTED_PATH)?).await;
        let response = match followed {
            Err(RequestError::Refused(Problem { reason, .. })) if reason == NOT_FOUND => {
                answer(self.at(Method::GET, WANTED_PATH)?.timeout(SMALL)).await?
            }
            followed => followed?,
        };
        let lists = stream::try_unfold((response, Vec::new()), |(mut response, mut read)| async move {
            loop {
                if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                    let rest = read.split_off(end + 1);
                    return Ok(Some((parsed(&read)?, (response, rest))));
                }
                match response.chunk().await? {
                    Some(chunk) if read.len() + chunk.len() <= MAX_LIST => read.extend(chunk),
                    Some(_) => return Err(RequestError::unanswered("a list that is longer than any")),
                    None if read.is_empty() => return Ok(None),
                    None => return Ok(Some((parsed(&std::mem::take(&mut read))?, (response, read)))),
                }
            }
        });
        Ok(lists.boxed())
    }

    fn request(&self, method: Method, of: RepositoryId<'_>, rest: &str) -> Result<RequestBuilder, RequestError> {
        self.at(method, &format!("{}{rest}", bundles_path(of.namespace, of.uid)))
    }

    fn at(&self, method: Method, path: &str) -> Result<RequestBuilder, RequestError> {
        let token = connection::read(&self.token)?;
        Ok(self.connection.request(method, path)?.bearer_auth(token.trim()))
    }
}

async fn answer(request: RequestBuilder) -> Result<Response, RequestError> {
    sorted(request.send().await?).await
}
