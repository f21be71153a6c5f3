//! The accept loop of an HTTP service: bounds connections, heads and idle time, and shuts down gracefully.

use std::{
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, Sleep},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

/// Bounds of a service.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum concurrent connections; others wait.
    pub connections: usize,
    /// Timeout for the head of a request and for an idle connection.
    pub head: Duration,
}

/// The common name of the connection's client certificate, if it has one that was verified. An extension of each request.
#[derive(Clone)]
pub struct CommonName(pub Option<Arc<str>>);

/// The address of the connection's other end. An extension of each request.
#[derive(Clone, Copy)]
pub struct Peer(pub IpAddr);

const HANDSHAKE: Duration = Duration::from_secs(10);
/// Maximum size of a head, and of buffered body data, in bytes.
const BUFFER: usize = 64 << 10;
/// Maximum number of headers of a request.
const HEADERS: usize = 64;
/// Timeout of a client that does not read the response.
const STUCK: Duration = Duration::from_secs(60);
/// Time for requests in progress to finish at shutdown.
const GRACE: Duration = Duration::from_secs(25);

/// Serves until `stopped` becomes true, then until requests in progress have finished. Plain HTTP without TLS
/// configurations. The value from `opened` lives as long as its connection.
pub async fn serve<O: Send + 'static>(
    router: Router,
    opened: impl Fn() -> O,
    limits: Limits,
    listener: TcpListener,
    configs: Option<watch::Receiver<Arc<ServerConfig>>>,
    mut stopped: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            accepted = async {
                let slot = slots.clone().acquire_owned().await;
                (listener.accept().await, slot)
            } => accepted,
            // Reap finished connections.
            Some(_) = connections.join_next() => continue,
        };
        let (Ok((stream, peer)), Ok(slot)) = accepted else {
            // For example out of file descriptors, which is transient.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let config = configs.as_ref().map(|configs| configs.borrow().clone());
        let peer = Peer(peer.ip().to_canonical());
        let (router, open, stopped) = (router.clone(), opened(), stopped.clone());
        connections.spawn(async move {
            let _open = open;
            connection(router, (stream, peer), config, limits.head, stopped).await;
            drop(slot);
        });
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, ended).await.is_err() {
        tracing::warn!("requests were still in progress");
    }
}

async fn connection(
    router: Router,
    (stream, peer): (TcpStream, Peer),
    config: Option<Arc<ServerConfig>>,
    head: Duration,
    stopped: watch::Receiver<bool>,
) {
    // Responses are short and must not wait for further packets.
    let _ = stream.set_nodelay(true);
    let stream = Patient::new(stream);
    let Some(config) = config else {
        return requests(router, stream, (peer, None), head, stopped).await;
    };
    let stream =
        match tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "no TLS"),
            Err(_) => return tracing::debug!("no TLS in time"),
        };
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first());
    let name = certificate.and_then(|certificate| common_name(certificate));
    requests(router, stream, (peer, name), head, stopped).await;
}

/// The last common name in the subject of a certificate (DER); `None` when it has none.
pub fn common_name(certificate: &[u8]) -> Option<Arc<str>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    certificate
        .subject()
        .iter_common_name()
        .last()?
        .as_str()
        .ok()
        .map(Into::into)
}

/// Serves the requests of one connection.
async fn requests(
    router: Router,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    (peer, name): (Peer, Option<Arc<str>>),
    head: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    let answer = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(CommonName(name.clone()));
        request.extensions_mut().insert(peer);
        router.clone().oneshot(request.map(Body::new))
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(BUFFER)
        .max_headers(HEADERS);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), answer));
    let told = async { drop(stopped.wait_for(|stopped| *stopped).await) };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// A stream that fails when the peer reads nothing for [`STUCK`].
struct Patient {
    stream: TcpStream,
    stuck: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            stuck: None,
        }
    }

    /// Starts the timer when a write blocks, and resets it when a write succeeds.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if polled.is_ready() {
            self.stuck = None;
            return polled;
        }
        let stuck = self
            .stuck
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + STUCK)));
        match stuck.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(std::io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, polled)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, polled)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, polled)
    }
}
