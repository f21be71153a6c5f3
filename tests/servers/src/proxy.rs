//! A TCP proxy that delays, cuts and drops, to simulate a bad network between pods and the API server. It does not inspect the bytes, so
//! TLS passes through.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Condition of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Weather {
    /// Works normally.
    Fair,
    /// Delays every chunk by 300 ms.
    Slow,
    /// Forwards requests and cuts the connection before the reply: the write takes effect, and the client gets no response.
    LostReplies,
    /// Cuts connections at once.
    Cut,
    /// Keeps connections open and drops everything.
    Silent,
}

impl Weather {
    /// All but [`Self::Fair`].
    pub const BAD: [Self; 4] = [Self::Slow, Self::LostReplies, Self::Cut, Self::Silent];

    const fn of(code: u8) -> Self {
        match code {
            1 => Self::Slow,
            2 => Self::LostReplies,
            3 => Self::Cut,
            4 => Self::Silent,
            _ => Self::Fair,
        }
    }
}

/// A running proxy; drop closes its socket.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    weather: Arc<AtomicU8>,
    cut: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Listens on `bind` (port 0 selects a free port) and forwards to `target`.
    pub async fn start(bind: SocketAddr, target: SocketAddr) -> Result<Self> {
        let socket = TcpListener::bind(bind)
            .await
            .with_context(|| format!("cannot listen on {bind}"))?;
        let addr = socket
            .local_addr()
            .context("a listening socket has no address")?;
        let (weather, cut) = (Arc::new(AtomicU8::new(0)), Arc::new(AtomicU64::new(0)));
        let task = tokio::spawn({
            let (weather, cut) = (weather.clone(), cut.clone());
            async move {
                while let Ok((client, _)) = socket.accept().await {
                    tokio::spawn(pass(client, target, weather.clone(), cut.clone()));
                }
            }
        });
        Ok(Self {
            addr,
            weather,
            cut,
            task,
        })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes the condition, for existing connections as well.
    pub fn set(&self, weather: Weather) {
        self.weather.store(weather as u8, Ordering::Relaxed);
    }

    /// Number of connections cut so far.
    pub fn cut(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }
}

async fn pass(client: TcpStream, target: SocketAddr, weather: Arc<AtomicU8>, cut: Arc<AtomicU64>) {
    let now = || Weather::of(weather.load(Ordering::Relaxed));
    if now() == Weather::Cut {
        cut.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let (mut up, mut down) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        let (answer, read) = tokio::select! {
            read = from_client.read(&mut up) => (false, read),
            read = from_server.read(&mut down) => (true, read),
        };
        let Ok(length @ 1..) = read else { return };
        match now() {
            Weather::Fair => {}
            Weather::Slow => tokio::time::sleep(Duration::from_millis(300)).await,
            Weather::Silent => {
                while now() == Weather::Silent {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            Weather::LostReplies if !answer => {}
            Weather::LostReplies | Weather::Cut => {
                cut.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        let written = if answer {
            to_client.write_all(&down[..length]).await
        } else {
            to_server.write_all(&up[..length]).await
        };
        if written.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts an echo server; returns what a client of the proxy gets back, if anything.
    async fn echo(weather: Weather, patience: Duration) -> Option<Vec<u8>> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = TcpListener::bind(any).await.unwrap();
        let target = server.local_addr().unwrap();
        let echoing = tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut buffer = [0; 16];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                stream.write_all(&buffer[..length]).await.unwrap();
            }
        });
        let proxy = Proxy::start(any, target).await.unwrap();
        proxy.set(weather);
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        let _ = client.write_all(b"hello").await;
        let mut buffer = vec![0; 16];
        let read = tokio::time::timeout(patience, client.read(&mut buffer)).await;
        echoing.abort();
        match read {
            Ok(Ok(length @ 1..)) => Some(buffer[..length].to_vec()),
            _ => None,
        }
    }

    #[tokio::test]
    async fn bytes_pass_in_fair_and_slow_weather_only() {
        for (weather, arrives) in [
            (Weather::Fair, true),
            (Weather::Slow, true),
            (Weather::LostReplies, false),
            (Weather::Cut, false),
            (Weather::Silent, false),
        ] {
            let patience = Duration::from_millis(if arrives { 10_000 } else { 400 });
            assert_eq!(
                echo(weather, patience).await.as_deref(),
                arrives.then_some(&b"hello"[..]),
                "{weather:?}"
            );
        }
    }
}
