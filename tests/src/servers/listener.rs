//! A listening socket that can be closed and opened again on the same port.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A server behind a socket; dropping it closes the socket.
#[derive(Debug)]
pub(super) struct Listener {
    addr: SocketAddr,
    app: Router,
    /// The accept loop; none while connections are refused.
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    /// Listens on `bind` (port 0 takes any free one) and serves `app` there.
    pub(super) async fn start(bind: SocketAddr, app: Router) -> anyhow::Result<Self> {
        let socket = TcpListener::bind(bind).await.with_context(|| format!("failed to listen on {bind}"))?;
        let addr = socket.local_addr().context("a listening socket has no address")?;
        let listener = Self { addr, app, accepting: Mutex::new(None) };
        listener.serve(socket);
        Ok(listener)
    }

    /// The address it listens on, with the real port.
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes the socket: new connections are refused until [`Self::accept`].
    pub(super) async fn refuse(&self) {
        let accepting = self.guard().take();
        if let Some(task) = accepting {
            task.abort();
            // The socket is closed when the task is gone, not when it is told to go.
            let _ = task.await;
        }
    }

    /// Opens the socket again on the same port; does nothing if it is open.
    pub(super) async fn accept(&self) -> anyhow::Result<()> {
        if self.guard().is_some() {
            return Ok(());
        }
        let socket = TcpListener::bind(self.addr).await.with_context(|| format!("failed to listen on {}", self.addr))?;
        self.serve(socket);
        Ok(())
    }

    fn serve(&self, socket: TcpListener) {
        let app = self.app.clone();
        let task = tokio::spawn(async move {
            // It ends only with the task: errors of one connection are that connection's.
            let _ = axum::serve(socket, app).await;
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
