//! The connection to the datastore and its certificate authority.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use reqwest::{Certificate, Client, Method, RequestBuilder, redirect};

use crate::error::RequestError;

/// A text, or a file that is read for each request, because files mounted into a pod may change.
#[derive(Clone, Debug)]
pub enum Text {
    /// The text.
    Known(String),
    /// The file.
    File(PathBuf),
}

/// Timeouts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// For connecting; `None` for the system's default.
    pub connect: Option<Duration>,
    /// For a whole request including its response; `None` for no limit.
    pub whole: Option<Duration>,
    /// Between two chunks of a response; `None` for no limit.
    pub silence: Option<Duration>,
}

/// A connection to a datastore.
#[derive(Debug)]
pub struct Connection {
    url: String,
    authority: Text,
    limits: Limits,
    resolved: Option<(String, SocketAddr)>,
    /// The client, with the certificate authority that it trusts.
    client: Mutex<Option<(String, Client)>>,
}

impl Connection {
    /// The datastore at `https://HOST[:PORT]`, with this authority (PEM) as the only trusted one. Sends nothing yet.
    pub fn new(url: &str, authority: Text, limits: Limits) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            authority,
            limits,
            resolved: None,
            client: Mutex::default(),
        }
    }

    /// Connects to this address instead of resolving the host's name.
    #[must_use]
    pub fn at(self, host: &str, address: SocketAddr) -> Self {
        Self {
            resolved: Some((host.to_owned(), address)),
            ..self
        }
    }

    /// The datastore's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate authority, PEM.
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
        Ok(self
            .client()?
            .request(method, format!("{}{path}", self.url)))
    }

    /// The client that trusts the current authority.
    pub(crate) fn client(&self) -> Result<Client, RequestError> {
        let authority = self.authority()?;
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, client)) = &*kept
            && *of == authority
        {
            return Ok(client.clone());
        }
        let client = self
            .build(&authority)
            .map_err(|error| RequestError::Authority(Arc::new(error)))?;
        *kept = Some((authority, client.clone()));
        Ok(client)
    }

    fn build(&self, authority: &str) -> reqwest::Result<Client> {
        let mut builder = Client::builder()
            .tls_certs_only(Certificate::from_pem_bundle(authority.as_bytes())?)
            .https_only(true)
            // Proxies apply to the tool's traffic, not to traffic within the cluster.
            .no_proxy()
            .redirect(redirect::Policy::none())
            // The server closes connections that are idle for one minute.
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(4);
        let Limits {
            connect,
            whole,
            silence,
        } = self.limits;
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

    /// Burrito 11.19: a request without a response never ended and blocked the only worker.
    #[tokio::test]
    async fn silent_server_is_bounded_by_the_timeout() {
        // A program does this at its start.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", silent.local_addr().unwrap());
        let limits = Limits {
            whole: Some(Duration::from_millis(50)),
            ..Limits::default()
        };
        let connection = Connection::new(&url, Text::Known(String::new()), limits);
        let error = connection
            .request(Method::GET, "/healthz")
            .unwrap()
            .send()
            .await
            .unwrap_err();
        assert!(error.is_timeout(), "{error:?}");
    }
}
