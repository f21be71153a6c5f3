//! A server on a socket of this process.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::tls::Encrypted;

/// A running server; drop closes its socket.
#[derive(Debug)]
pub struct Listener {
    addr: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Listener {
    /// Listens on `bind` (port 0 selects a free port) and serves `app`, with TLS if configured.
    pub async fn start(
        bind: SocketAddr,
        app: Router,
        tls: Option<Arc<ServerConfig>>,
    ) -> anyhow::Result<Self> {
        let socket = TcpListener::bind(bind)
            .await
            .with_context(|| format!("failed to listen on {bind}"))?;
        let addr = socket
            .local_addr()
            .context("a listening socket has no address")?;
        let accepting = tokio::spawn(async move {
            // It ends only with the task: an error only affects its connection.
            let _ = match tls {
                Some(tls) => axum::serve(Encrypted::over(socket, tls), app).await,
                None => axum::serve(socket, app).await,
            };
        });
        Ok(Self { addr, accepting })
    }

    /// The address with the actual port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
