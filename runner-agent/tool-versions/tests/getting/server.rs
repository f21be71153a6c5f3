//! A scripted HTTP/1.1 server on loopback, without TLS, that fails as release servers and proxies do.

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
    /// The path with the query.
    pub(crate) path: String,
    /// Headers by lower-case name.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A step of the server. It closes the connection after the last one.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Send(Vec<u8>),
    Wait(Duration),
    /// Leave the connection open and send nothing more.
    Hang,
}

/// An answer with a status line, headers and a body.
pub(crate) fn answer(head: &str, body: &[u8]) -> Vec<Act> {
    let head = head
        .trim()
        .lines()
        .map(str::trim)
        .collect::<Vec<_>>()
        .join("\r\n");
    let mut bytes = format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").into_bytes();
    bytes.extend_from_slice(body);
    vec![Act::Send(bytes)]
}

/// `200` with the correct length.
pub(crate) fn ok(headers: &str, body: &[u8]) -> Vec<Act> {
    answer(
        &format!("200 OK\nContent-Length: {}\n{headers}", body.len()),
        body,
    )
}

pub(crate) fn redirect(to: &str) -> Vec<Act> {
    answer(
        &format!("302 Found\nContent-Length: 0\nLocation: {to}"),
        b"",
    )
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
    /// Serves the steps that `script` returns for a request and the count of requests before it.
    pub(crate) async fn start(
        script: impl Fn(&Request, usize) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
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
        Self {
            address,
            seen,
            task,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    script: &(dyn Fn(&Request, usize) -> Vec<Act> + Send + Sync),
    log: &Mutex<Vec<Request>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            // The client speaks TLS, or closed the connection.
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let path = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .unwrap_or_default()
        .to_owned();
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
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
