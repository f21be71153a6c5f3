//! A proxy for downloads of pods: it opens tunnels (`CONNECT`) and records their targets.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Limit of a request's head, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// A running proxy; drop closes its socket.
#[derive(Debug)]
pub struct ForwardProxy {
    addr: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for ForwardProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ForwardProxy {
    /// Listens on `bind`; port 0 selects a free port.
    pub async fn start(bind: SocketAddr) -> Result<Self> {
        let socket = TcpListener::bind(bind)
            .await
            .with_context(|| format!("cannot listen on {bind}"))?;
        let addr = socket.local_addr()?;
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let noted = asked.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = socket.accept().await {
                let noted = noted.clone();
                // An error only affects its connection.
                tokio::spawn(async move { tunnel(stream, &noted).await });
            }
        });
        Ok(Self { addr, asked, task })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The requested targets so far: `HOST:PORT`.
    pub fn asked(&self) -> Vec<String> {
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn tunnel(mut client: TcpStream, noted: &Mutex<Vec<String>>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        anyhow::ensure!(head.len() < MAX_HEAD, "a head that is too long");
        head.push(client.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let Some(target) = text
        .strip_prefix("CONNECT ")
        .and_then(|rest| rest.split(' ').next())
    else {
        client
            .write_all(
                b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            )
            .await?;
        return Ok(());
    };
    noted
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(target.to_owned());
    let mut server = TcpStream::connect(target).await?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
