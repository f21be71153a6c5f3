//! Where the datastore is, and whom it is trusted by.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use reqwest::{Certificate, Client, Method, RequestBuilder, redirect};

use crate::error::RequestError;

/// A text that is known, or stands in a file that is read for each request: what is mounted into a pod may change.
#[derive(Clone, Debug)]
pub enum Text {
    /// The text.
    Known(String),
    /// The file.
    File(PathBuf),
}

/// How long things may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// To connect; as long as the system waits when empty.
    pub connect: Option<Duration>,
    /// A whole request with its answer; any time when empty.
    pub whole: Option<Duration>,
    /// Between two pieces of an answer; any time when empty.
    pub silence: Option<Duration>,
}

/// The way to a datastore.
#[derive(Debug)]
pub struct Connection {
    url: String,
    authority: Text,
    limits: Limits,
    resolved: Option<(String, SocketAddr)>,
    /// With the certificate authority that it trusts.
    client: Mutex<Option<(String, Client)>>,
}

impl Connection {
    /// The datastore at `https://HOST[:PORT]`, trusted by that authority (PEM) only. Nothing is sent yet.
    pub fn new(url: &str, authority: Text, limits: Limits) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), authority, limits, resolved: None, client: Mutex::default() }
    }

    /// The same where its host's name is not resolved: it is at that address.
    #[must_use]
    pub fn at(self, host: &str, address: SocketAddr) -> Self {
        Self { resolved: Some((host.to_owned(), address)), ..self }
    }

    /// The datastore's address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate authority, as PEM.
    ///
    /// # Errors
    /// [`RequestError::File`].
    pub fn authority(&self) -> Result<String, RequestError> {
        match &self.authority {
            Text::Known(text) => Ok(text.clone()),
            Text::File(path) => read(path),
        }
    }

    /// A request without a token.
    ///
    /// # Errors
    /// [`RequestError::File`], [`RequestError::Authority`].
    pub fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, RequestError> {
        Ok(self.client()?.request(method, format!("{}{path}", self.url)))
    }

    /// The client that trusts the authority as it is now.
    pub(crate) fn client(&self) -> Result<Client, RequestError> {
        let authority = self.authority()?;
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, client)) = &*kept
            && *of == authority
        {
            return Ok(client.clone());
        }
        let client = self.build(&authority).map_err(|error| RequestError::Authority(Arc::new(error)))?;
        *kept = Some((authority, client.clone()));
        Ok(client)
    }

    fn build(&self, authority: &str) -> reqwest::Result<Client> {
        let mut builder = Client::builder()
            .tls_certs_only(Certificate::from_pem_bundle(authority.as_bytes())?)
            .https_only(true)
            // Proxies are for the tool's traffic, not for the cluster's.
            .no_proxy()
            .redirect(redirect::Policy::none())
            // The server closes what is idle for a minute.
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(4);
        let Limits { connect, whole, silence } = self.limits;
        if let Some(connect) = connect {
            builder = builder.connect_timeout(connect);
        }
        if let Some(whole) = whole {
            builder = builder.timeout(whole);
        }
        if let Some(silence) = silence {
            builder = builder.read_timeout(silence);
        }
        if let Some((host, address)) = &self.resolved {
            builder = builder.resolve(host, *address);
        }
        builder.build()
    }
}

pub(crate) fn read(path: &Path) -> Result<String, RequestError> {
    fs::read_to_string(path).map_err(|error| RequestError::file(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Burrito 11.19: a request that nobody answered had no end, and stopped the one worker.
    #[tokio::test]
    async fn who_never_answers_is_waited_for_no_longer_than_is_said() {
        // A program does it at its start.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", silent.local_addr().unwrap());
        let limits = Limits { whole: Some(Duration::from_millis(50)), ..Limits::default() };
        let connection = Connection::new(&url, Text::Known(String::new()), limits);
        let error = connection.request(Method::GET, "/healthz").unwrap().send().await.unwrap_err();
        assert!(error.is_timeout(), "{error:?}");
    }
}
