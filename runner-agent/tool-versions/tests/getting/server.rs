//! A server that does what release servers and proxies do on bad days: HTTP/1.1 by hand, over loopback, without TLS.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// With the query.
    pub(crate) path: String,
    /// By lower-case name.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What the server does; after the last one it closes the connection.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Send(Vec<u8>),
    Wait(Duration),
    /// Nothing more, with the connection open.
    Hang,
}

/// An answer: status line and headers, with a body.
pub(crate) fn answer(head: &str, body: &[u8]) -> Vec<Act> {
    let head = head.trim().lines().map(str::trim).collect::<Vec<_>>().join("\r\n");
    let mut bytes = format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").into_bytes();
    bytes.extend_from_slice(body);
    vec![Act::Send(bytes)]
}

/// `200` with a true length.
pub(crate) fn ok(headers: &str, body: &[u8]) -> Vec<Act> {
    answer(&format!("200 OK\nContent-Length: {}\n{headers}", body.len()), body)
}

pub(crate) fn redirect(to: &str) -> Vec<Act> {
    answer(&format!("302 Found\nContent-Length: 0\nLocation: {to}"), b"")
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Serves what `script` says to a request and the count of those before it.
    pub(crate) async fn start(script: impl Fn(&Request, usize) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (script, log) = (Arc::new(script), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (script, log) = (Arc::clone(&script), Arc::clone(&log));
                tokio::spawn(async move { serve(stream, &*script, &log).await });
            }
        });
        Self { address, seen, task }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The same server by another name.
    pub(crate) fn other_host(&self, path: &str) -> String {
        format!("http://localhost:{}{path}", self.address.port())
    }

    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, script: &(dyn Fn(&Request, usize) -> Vec<Act> + Send + Sync), log: &Mutex<Vec<Request>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            // A client that speaks TLS, or has gone.
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    let request = Request { path, headers };
    let acts = {
        let mut log = log.lock().unwrap();
        log.push(request.clone());
        script(&request, log.len() - 1)
    };
    for act in acts {
        let sent = match act {
            Act::Send(bytes) => stream.write_all(&bytes).await,
            Act::Wait(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Act::Hang => std::future::pending().await,
        };
        if sent.is_err() {
            return;
        }
    }
    let _ = stream.shutdown().await;
}
