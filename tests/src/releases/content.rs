//! What is served, and how: whole, a part of it, or the word that it is the same.

use std::io::SeekFrom;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use futures::stream;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _};

use crate::cluster::cache;

/// Something to be served.
#[derive(Debug)]
pub(super) struct Content {
    source: Source,
    length: u64,
    tag: String,
    kind: &'static str,
}

#[derive(Debug)]
enum Source {
    File(File),
    Memory(Bytes),
}

/// How a body is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// Closes the connection after so many bytes.
    pub(super) cut: Option<u64>,
    /// The bytes of one piece.
    pub(super) piece: usize,
    /// The wait before each piece.
    pub(super) wait: Duration,
}

impl Default for Manner {
    fn default() -> Self {
        Self { cut: None, piece: 1 << 20, wait: Duration::ZERO }
    }
}

impl Content {
    /// A file, whose tag is of its size and time.
    pub(super) async fn file(path: &Path) -> Result<Self> {
        let what = || format!("cannot read {}", path.display());
        let file = File::open(path).await.with_context(what)?;
        let meta = file.metadata().await.with_context(what)?;
        let changed = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let tag = format!("\"{:x}-{:x}\"", changed.as_nanos(), meta.len());
        Ok(Self { source: Source::File(file), length: meta.len(), tag, kind: kind(path) })
    }

    /// Bytes, whose tag is of what they are.
    pub(super) fn memory(kind: &'static str, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let tag = format!("\"{}\"", cache::key([&bytes]));
        Self { length: bytes.len() as u64, source: Source::Memory(bytes), tag, kind }
    }

    /// The answer to a request with these headers; `sent` is told of each piece of the body.
    pub(super) async fn answer(
        self,
        asked: &HeaderMap,
        manner: Manner,
        sent: impl Fn(usize) + Send + 'static,
    ) -> Result<Response<Body>> {
        let text = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(header::ETAG, HeaderValue::from_str(&self.tag)?);
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if text(header::IF_NONE_MATCH)
            .is_some_and(|tags| tags.split(',').any(|tag| [self.tag.as_str(), "*"].contains(&tag.trim())))
        {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Ok(response);
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        let same = text(header::IF_RANGE).is_none_or(|tag| tag == self.tag);
        let (start, end) = match text(header::RANGE).filter(|_| same).map(|range| part(range, self.length)) {
            Some(Part::Bytes(start, end)) => {
                let range = format!("bytes {start}-{}/{}", end - 1, self.length);
                response.headers_mut().insert(header::CONTENT_RANGE, HeaderValue::from_str(&range)?);
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                (start, end)
            }
            Some(Part::None) => {
                let range = format!("bytes */{}", self.length);
                response.headers_mut().insert(header::CONTENT_RANGE, HeaderValue::from_str(&range)?);
                *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
                return Ok(response);
            }
            Some(Part::Whole) | None => (0, self.length),
        };
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(end - start));
        *response.body_mut() = body(self.source, start, end, manner, sent).await?;
        Ok(response)
    }
}

async fn body(source: Source, start: u64, end: u64, manner: Manner, sent: impl Fn(usize) + Send + 'static) -> Result<Body> {
    let from: Box<dyn AsyncRead + Send + Unpin> = match source {
        Source::File(mut file) => {
            file.seek(SeekFrom::Start(start)).await.context("cannot seek in a file")?;
            Box::new(file)
        }
        Source::Memory(bytes) => Box::new(std::io::Cursor::new(bytes.slice(usize::try_from(start)?..))),
    };
    let left = end - start;
    let cut = manner.cut.filter(|cut| *cut < left);
    let from = from.take(cut.unwrap_or(left));
    Ok(Body::from_stream(stream::try_unfold((from, sent), move |(mut from, sent)| async move {
        tokio::time::sleep(manner.wait).await;
        let mut piece = vec![0; manner.piece.max(1)];
        let read = from.read(&mut piece).await?;
        if read == 0 {
            // An error ends the connection, and so does a file that became shorter.
            let cut = cut.map(|_| std::io::Error::other("cut because a test asked for it"));
            return cut.map_or(Ok(None), Err);
        }
        piece.truncate(read);
        sent(read);
        Ok::<_, std::io::Error>(Some((Bytes::from(piece), (from, sent))))
    })))
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// From the first up to, and without, the second.
    Bytes(u64, u64),
    /// What there is not.
    None,
    /// All of it, or several parts, which one may answer with all of it.
    Whole,
}

/// Reads `Range`.
fn part(range: &str, length: u64) -> Part {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else { return Part::Whole };
    let bytes = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.saturating_add(1).min(length)),
        (Ok(first), Err(_)) if last.is_empty() => (first, length),
        (Err(_), Ok(last)) if first.is_empty() => (length.saturating_sub(last), length),
        _ => return Part::Whole,
    };
    if bytes.0 < bytes.1 { Part::Bytes(bytes.0, bytes.1) } else { Part::None }
}

fn kind(path: &Path) -> &'static str {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match name.rsplit_once('.') {
        Some((_, "zip")) => "application/zip",
        Some((_, "json")) => "application/json",
        _ if name.ends_with("SHA256SUMS") => "text/plain",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let cases = [
            ("bytes=0-0", Part::Bytes(0, 1)),
            ("bytes=3-", Part::Bytes(3, 10)),
            ("bytes=3-99", Part::Bytes(3, 10)),
            ("bytes=-4", Part::Bytes(6, 10)),
            ("bytes=-40", Part::Bytes(0, 10)),
            ("bytes=10-", Part::None),
            ("bytes=-0", Part::None),
            ("bytes=5-4", Part::Whole),
            ("bytes=0-1,3-4", Part::Whole),
            ("bytes=-", Part::Whole),
            ("lines=0-1", Part::Whole),
        ];
        for (range, expected) in cases {
            assert_eq!(part(range, 10), expected, "{range}");
        }
    }
}
