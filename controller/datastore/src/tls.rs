//! TLS: the service's certificate, and whose client certificates are looked at. Both are read again while the service runs.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::StreamExt as _;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::sync::watch;

use crate::{cluster::FrontProxyConfig, service::Service};

/// How often the files are read again.
const FILES: Duration = Duration::from_secs(30);
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    /// It holds no PEM of the kind that is wanted.
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
    /// Reads both.
    ///
    /// # Errors
    /// [`TlsError::Read`].
    pub fn read(cert: &PathBuf, key: &PathBuf) -> Result<Self, TlsError> {
        let read = |path: &PathBuf| std::fs::read(path).map_err(|source| TlsError::Read { path: path.clone(), source });
        Ok(Self { cert: read(cert)?, key: read(key)? })
    }

    /// A chain and its key, as PEM, that were read elsewhere.
    pub fn of(cert: Vec<u8>, key: Vec<u8>) -> Self {
        Self { cert, key }
    }

    /// The configuration of the service. A client certificate is asked for when somebody's is looked at, and never required.
    ///
    /// # Errors
    /// [`TlsError::Pem`], [`TlsError::Rustls`].
    pub fn config(&self, proxy: Option<&FrontProxyConfig>) -> Result<ServerConfig, TlsError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.cert).collect();
        let chain = chain.map_err(|error| TlsError::Pem("certificate", error))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| TlsError::Pem("private key", error))?;
        let provider = Arc::new(ring::default_provider());
        let clients: Arc<dyn ClientCertVerifier> = match proxy.and_then(|proxy| verifier(proxy, &provider)) {
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

/// None when the authority cannot be used, which is logged: the pods must be served all the same.
fn verifier(proxy: &FrontProxyConfig, provider: &Arc<rustls::crypto::CryptoProvider>) -> Option<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_slice_iter(proxy.authority.as_bytes()).flatten();
    let (added, _) = roots.add_parsable_certificates(certificates);
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).allow_unauthenticated().build();
    match built {
        Ok(verifier) if added > 0 => Some(verifier),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!(%error, "the front proxy's authority cannot be used; nothing is read through it");
            None
        }
    }
}

/// Keeps the configuration as files and cluster have it, for ever.
pub async fn refresh(
    service: Arc<Service>,
    (cert, key): (PathBuf, PathBuf),
    read_api: bool,
    mut files: Files,
    configs: watch::Sender<Arc<ServerConfig>>,
) {
    let mut proxies = if read_api { service.cluster.front_proxy() } else { futures::stream::pending().boxed() };
    let mut looks = tokio::time::interval(FILES);
    loop {
        let changed = tokio::select! {
            Some(found) = proxies.next() => service.front_proxy.send_if_modified(|known| {
                let found = found.map(Arc::new);
                let differs = *known != found;
                *known = found;
                differs
            }),
            _ = looks.tick() => match Files::read(&cert, &key) {
                Ok(read) if read != files => {
                    files = read;
                    true
                }
                Ok(_) => false,
                // A mounted Secret follows what was written into it by a minute.
                Err(error) => {
                    tracing::info!(%error, "the certificate cannot be read again; the one before is used");
                    false
                }
            },
        };
        if changed {
            let proxy = service.front_proxy.borrow().clone();
            match files.config(proxy.as_deref()) {
                Ok(config) => drop(configs.send_replace(Arc::new(config))),
                // Half of a renewal: the next look finds the other half.
                Err(error) => tracing::warn!(%error, "the certificate cannot be used"),
            }
        }
    }
}

/// Keeps the configuration as the files have it, for ever, where nobody's client certificate is looked at.
pub async fn follow((cert, key): (PathBuf, PathBuf), mut files: Files, configs: watch::Sender<Arc<ServerConfig>>) {
    loop {
        tokio::time::sleep(FILES).await;
        match Files::read(&cert, &key) {
            Ok(read) if read != files => match read.config(None) {
                Ok(config) => {
                    files = read;
                    drop(configs.send_replace(Arc::new(config)));
                }
                Err(error) => tracing::warn!(%error, "the certificate cannot be used; the one before is"),
            },
            Ok(_) => {}
            Err(error) => tracing::info!(%error, "the certificate cannot be read again; the one before is used"),
        }
    }
}
