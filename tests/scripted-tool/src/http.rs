//! A blocking HTTP/1.0 client for plain `http://`, just sufficient for the protocols of the state server. HTTP/1.1 could answer in chunks.
//!
//! The tool is synchronous, so that its effects occur in the order of its lines. It uses one connection per request.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail};

/// Long enough for a server that a test slows down, and short enough that a lost server ends the tool within its deadline.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Sends one request.
pub fn request(method: &str, url: &str, body: &[u8]) -> anyhow::Result<Answer> {
    let Some(rest) = url.strip_prefix("http://") else {
        bail!("only http:// is spoken here, not `{url}`")
    };
    let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let host = if authority.contains(':') {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    let addr = host
        .to_socket_addrs()
        .with_context(|| format!("failed to look up `{host}`"))?
        .next()
        .with_context(|| format!("`{host}` has no address"))?;
    let mut stream = TcpStream::connect_timeout(&addr, TIMEOUT)
        .with_context(|| format!("{method} {url}: dial tcp {addr}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {authority}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(&[head.as_bytes(), body].concat())
        .with_context(|| format!("{method} {url}"))?;
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .with_context(|| format!("{method} {url}"))?;
    parse(&answer).with_context(|| format!("{method} {url}"))
}

fn parse(answer: &[u8]) -> anyhow::Result<Answer> {
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("the answer has no end of header")?;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .context("the answer has no status")?;
    let body = &answer[end + 4..];
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    if let Some(length) = length.and_then(|length| length.trim().parse::<usize>().ok())
        && body.len() < length
    {
        bail!(
            "the answer broke off after {} of {length} bytes",
            body.len()
        );
    }
    Ok(Answer {
        status,
        body: body.to_vec(),
    })
}
