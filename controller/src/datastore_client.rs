//! The controller's side of the datastore: what became of a claimed run, and what is to be deleted
//! (`design/0009-datastore.md`; the service itself is the subcommand `datastore`).

use std::{
    fs, io,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use reqwest::{Certificate, Client, Method, Response, StatusCode};

use crds::{
    Journal,
    datastore::{JOURNAL, ObjectKind, causes},
    termination::TerminationMessage,
};

use crate::{pod::Handout, settings::Settings};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a whole request may take.
const WHOLE: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const MAX_ANSWER: usize = 64 << 10;

/// No answer, or none that says anything.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Certificate authority or token cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// No connection, or it broke.
    #[error("the datastore does not answer: {0}")]
    Transport(String),
    /// It refused.
    #[error("the datastore answers {status}: {said}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// What it said.
        said: String,
    },
    /// The answer cannot be read.
    #[error("the datastore's answer makes no sense: {0}")]
    Senseless(#[from] serde_json::Error),
}

impl From<reqwest::Error> for Unanswered {
    fn from(error: reqwest::Error) -> Self {
        Self::Transport(causes(&error))
    }
}

/// The datastore, as the controller was told of it.
pub struct Datastore {
    url: String,
    ca: PathBuf,
    token: PathBuf,
    /// With the certificate authority that it trusts.
    client: Mutex<Option<(String, Client)>>,
    played: Option<Played>,
}

/// Stands in for the network: answers a request of that method and path.
pub type Played = Box<dyn Fn(Method, String) -> BoxFuture<'static, Result<Response, Unanswered>> + Send + Sync>;

impl Datastore {
    /// The datastore of the settings; `None` when there is none.
    pub fn of(settings: &Settings) -> Option<Self> {
        let url = settings.datastore_url.as_deref().filter(|_| settings.has_datastore())?;
        Some(Self {
            url: url.trim_end_matches('/').to_owned(),
            ca: settings.datastore_ca.clone().unwrap_or_default(),
            token: settings.datastore_token.clone().unwrap_or_default(),
            client: Mutex::default(),
            played: None,
        })
    }

    /// A datastore that is played: every request but the question whether it is ready is answered by `played`, and its
    /// certificate authority is empty.
    pub fn played(url: &str, played: Played) -> Self {
        let nothing = PathBuf::from("/dev/null");
        Self { url: url.to_owned(), ca: nothing.clone(), token: nothing, client: Mutex::default(), played: Some(played) }
    }

    /// What pods are told of it. The file is read each time: a mounted Secret may change.
    ///
    /// # Errors
    /// When the certificate authority cannot be read.
    pub fn handout(&self) -> Result<Handout, Unanswered> {
        Ok(Handout { url: self.url.clone(), ca: self.authority()? })
    }

    /// How an attempt ended, in the words of its agent; `None` when it said nothing.
    ///
    /// # Errors
    /// When there is no answer that says so.
    pub async fn result(&self, namespace: &str, uid: &str, attempt: u32) -> Result<Option<TerminationMessage>, Unanswered> {
        let path = format!("/v1/namespaces/{namespace}/uids/{uid}/attempts/{attempt}/objects/{}", ObjectKind::Result.as_str());
        let answer = self.send(Method::GET, &path).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&accepted(answer).await?)?))
    }

    /// An attempt's journal, compared with the run's managed state.
    ///
    /// # Errors
    /// When there is no answer that says so.
    pub async fn journal(&self, namespace: &str, uid: &str, attempt: u32) -> Result<Journal, Unanswered> {
        let path = format!("/v1/namespaces/{namespace}/uids/{uid}/attempts/{attempt}/{JOURNAL}");
        let answer = self.send(Method::GET, &path).await?;
        Ok(serde_json::from_slice(&accepted(answer).await?)?)
    }

    /// Deletes the bundles of a run.
    ///
    /// # Errors
    /// When they may still be there.
    pub async fn delete_bundles(&self, namespace: &str, uid: &str) -> Result<(), Unanswered> {
        self.delete(&format!("/v1/namespaces/{namespace}/uids/{uid}?only={}", ObjectKind::Bundle.as_str())).await
    }

    /// Releases the lock that a run left on its managed state; one of another run stays.
    ///
    /// # Errors
    /// When it may still be there.
    pub async fn release_lock(&self, namespace: &str, uid: &str) -> Result<(), Unanswered> {
        self.delete(&format!("/v1/namespaces/{namespace}/uids/{uid}/lock")).await
    }

    /// Deletes everything of a run but its claim.
    ///
    /// # Errors
    /// When something may still be there.
    pub async fn delete_run(&self, namespace: &str, uid: &str) -> Result<(), Unanswered> {
        self.delete(&format!("/v1/namespaces/{namespace}/uids/{uid}")).await
    }

    /// Whether it is ready to serve; asked without a token.
    ///
    /// # Errors
    /// When it is not, or does not say.
    pub async fn ready(&self) -> Result<(), Unanswered> {
        let answer = self.client()?.get(format!("{}/readyz", self.url)).send().await?;
        accepted(answer).await.map(drop)
    }

    /// The certificate authority, as PEM.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn authority(&self) -> Result<String, Unanswered> {
        read(&self.ca)
    }

    async fn delete(&self, path: &str) -> Result<(), Unanswered> {
        let answer = self.send(Method::DELETE, path).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(());
        }
        accepted(answer).await.map(drop)
    }

    async fn send(&self, method: Method, path: &str) -> Result<Response, Unanswered> {
        if let Some(played) = &self.played {
            return played(method, path.to_owned()).await;
        }
        let token = read(&self.token)?;
        Ok(self.client()?.request(method, format!("{}{path}", self.url)).bearer_auth(token.trim()).send().await?)
    }

    /// The client that trusts the authority as it is now.
    fn client(&self) -> Result<Client, Unanswered> {
        let authority = self.authority()?;
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, client)) = &*kept
            && *of == authority
        {
            return Ok(client.clone());
        }
        let client = Client::builder()
            .tls_certs_only(Certificate::from_pem_bundle(authority.as_bytes())?)
            .https_only(true)
            .no_proxy()
            .connect_timeout(CONNECT)
            .timeout(WHOLE)
            .pool_max_idle_per_host(2)
            .build()?;
        *kept = Some((authority, client.clone()));
        Ok(client)
    }
}

fn read(path: &PathBuf) -> Result<String, Unanswered> {
    fs::read_to_string(path).map_err(|source| Unanswered::File { path: path.display().to_string(), source })
}

/// The body of an answer that is a success.
async fn accepted(mut answer: Response) -> Result<Vec<u8>, Unanswered> {
    let status = answer.status();
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_ANSWER {
            return Err(Unanswered::Transport(format!("an answer of more than {MAX_ANSWER} bytes")));
        }
    }
    if status.is_success() {
        return Ok(body);
    }
    let said = crds::text::clip(&String::from_utf8_lossy(&body), 300);
    Err(Unanswered::Refused { status, said })
}
