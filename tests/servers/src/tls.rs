//! TLS for servers of this process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use harness::cluster::pki::Pair;

const HANDSHAKE: Duration = Duration::from_secs(10);

/// The TLS configuration for a certificate.
pub fn config(pair: &Pair) -> Result<Arc<ServerConfig>> {
    let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes())
        .context("no certificate to serve with")?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).context("no key to serve with")?;
    let config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .context("certificate and key do not belong together")?;
    Ok(Arc::new(config))
}

/// A socket with TLS. Handshakes run concurrently, so a slow one blocks no other.
pub(super) struct Encrypted {
    socket: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl Encrypted {
    pub(super) fn over(socket: TcpListener, config: Arc<ServerConfig>) -> Self {
        Self {
            socket,
            acceptor: config.into(),
            handshakes: JoinSet::new(),
        }
    }
}

impl axum::serve::Listener for Encrypted {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            tokio::select! {
                accepted = self.socket.accept() => {
                    let Ok((stream, peer)) = accepted else {
                        // For example out of file descriptors, which is temporary.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    };
                    let accepting = self.acceptor.accept(stream);
                    self.handshakes.spawn(async move {
                        let stream = tokio::time::timeout(HANDSHAKE, accepting).await.ok()?.ok()?;
                        Some((stream, peer))
                    });
                }
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(ready)) = done {
                        return ready;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}
