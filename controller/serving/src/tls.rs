//! TLS: the certificate of a service, and the authority of its clients' certificates. Both are reloaded while the service runs.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::sync::watch;

/// Time between two reads of the files.
const FILES: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {source}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file has no PEM of this kind.
    #[error("no {0} in PEM: {1}")]
    Pem(&'static str, rustls::pki_types::pem::Error),
    #[error("the certificate cannot be used: {0}")]
    Rustls(#[from] rustls::Error),
}

#[derive(Clone, PartialEq, Eq)]
pub struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    /// Reads both files.
    ///
    /// # Errors
    /// [`TlsError::Read`].
    pub fn read(cert: &PathBuf, key: &PathBuf) -> Result<Self, TlsError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| TlsError::Read {
                path: path.clone(),
                source,
            })
        };
        Ok(Self {
            cert: read(cert)?,
            key: read(key)?,
        })
    }

    /// A chain and its key, PEM.
    pub fn of(cert: Vec<u8>, key: Vec<u8>) -> Self {
        Self { cert, key }
    }

    /// The configuration of the service. With an authority (PEM) for clients it requests a client certificate, but
    /// never requires one.
    ///
    /// # Errors
    /// [`TlsError::Pem`], [`TlsError::Rustls`].
    pub fn config(&self, authority: Option<&str>) -> Result<ServerConfig, TlsError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.cert).collect();
        let chain = chain.map_err(|error| TlsError::Pem("certificate", error))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| TlsError::Pem("private key", error))?;
        let provider = Arc::new(ring::default_provider());
        let clients: Arc<dyn ClientCertVerifier> =
            match authority.and_then(|authority| verifier(authority, &provider)) {
                Some(verifier) => verifier,
                None => Arc::new(NoClientAuth),
            };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// `None` when the authority is unusable, which is logged: clients without a certificate must still be served.
fn verifier(
    authority: &str,
    provider: &Arc<rustls::crypto::CryptoProvider>,
) -> Option<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_slice_iter(authority.as_bytes()).flatten();
    let (added, _) = roots.add_parsable_certificates(certificates);
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build();
    match built {
        Ok(verifier) if added > 0 => Some(verifier),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!(%error, "the authority of client certificates cannot be used; no certificate is accepted");
            None
        }
    }
}

/// Serves TLS with these files, reloaded from their paths when they change. `authorities` yields the authority (PEM) that client
/// certificates are verified against, whenever it changes. The configuration is current as long as the process runs.
///
/// # Errors
/// [`TlsError::Pem`], [`TlsError::Rustls`].
pub fn serve(
    paths: (PathBuf, PathBuf),
    files: Files,
    authorities: impl Stream<Item = Option<String>> + Send + Unpin + 'static,
) -> Result<watch::Receiver<Arc<ServerConfig>>, TlsError> {
    let (configs, config) = watch::channel(Arc::new(files.config(None)?));
    tokio::spawn(follow(paths, files, authorities, configs));
    Ok(config)
}

async fn follow(
    (cert, key): (PathBuf, PathBuf),
    mut files: Files,
    mut authorities: impl Stream<Item = Option<String>> + Unpin,
    configs: watch::Sender<Arc<ServerConfig>>,
) {
    let (mut authority, mut ticks) = (None, tokio::time::interval(FILES));
    loop {
        tokio::select! {
            Some(found) = authorities.next() => {
                if authority == found {
                    continue;
                }
                authority = found;
            }
            _ = ticks.tick() => match Files::read(&cert, &key) {
                Ok(read) if read != files => files = read,
                Ok(_) => continue,
                // A mounted Secret lags up to a minute behind the object.
                Err(error) => {
                    tracing::info!(%error, "the certificate cannot be reloaded; the previous one is used");
                    continue;
                }
            },
        }
        match files.config(authority.as_deref()) {
            Ok(config) => drop(configs.send_replace(Arc::new(config))),
            // Half of a renewal: the next read finds the other half.
            Err(error) => {
                tracing::warn!(%error, "the certificate cannot be used; the previous one is used");
            }
        }
    }
}
