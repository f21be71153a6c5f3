//! A listening socket that can be closed and opened again on the same port.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use axum::Router;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::tls::Encrypted;

/// A server behind a socket; dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct Listener {
    addr: SocketAddr,
    app: Router,
    tls: Option<Arc<ServerConfig>>,
    /// The accept loop; none while connections are refused.
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    /// Listens on `bind` (port 0 takes any free one) and serves `app` there.
    pub(crate) async fn start(bind: SocketAddr, app: Router) -> anyhow::Result<Self> {
        Self::start_with(bind, app, None).await
    }

    /// The same, with TLS if there is a configuration of it.
    pub(crate) async fn start_with(bind: SocketAddr, app: Router, tls: Option<Arc<ServerConfig>>) -> anyhow::Result<Self> {
        let socket = TcpListener::bind(bind).await.with_context(|| format!("failed to listen on {bind}"))?;
        let addr = socket.local_addr().context("a listening socket has no address")?;
        let listener = Self { addr, app, tls, accepting: Mutex::new(None) };
        listener.serve(socket);
        Ok(listener)
    }

    /// The address it listens on, with the real port.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes the socket: new connections are refused until [`Self::accept`].
    pub(crate) async fn refuse(&self) {
        let accepting = self.guard().take();
        if let Some(task) = accepting {
            task.abort();
            // The socket is closed when the task is gone, not when it is told to go.
            let _ = task.await;
        }
    }

    /// Opens the socket again on the same port; does nothing if it is open.
    pub(crate) async fn accept(&self) -> anyhow::Result<()> {
        if self.guard().is_some() {
            return Ok(());
        }
        let socket = TcpListener::bind(self.addr).await.with_context(|| format!("failed to listen on {}", self.addr))?;
        self.serve(socket);
        Ok(())
    }

    fn serve(&self, socket: TcpListener) {
        let (app, tls) = (self.app.clone(), self.tls.clone());
        let task = tokio::spawn(async move {
            // It ends only with the task: errors of one connection are that connection's.
            let _ = match tls {
                Some(tls) => axum::serve(Encrypted::over(socket, tls), app).await,
                None => axum::serve(socket, app).await,
            };
        });
        if let Some(old) = self.guard().replace(task) {
            old.abort();
        }
    }

    fn guard(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.accepting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.guard().take() {
            task.abort();
        }
    }
}
