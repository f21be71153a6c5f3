//! One try: the request, the head of the answer, the body.

use std::io;

use reqwest::{
    Response, StatusCode, Url,
    header::{
        ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue,
        IF_NONE_MATCH,
    },
};
use tokio::{
    fs::File,
    io::{AsyncSeekExt as _, AsyncWriteExt as _},
};

use super::{Ask, Auth, Client, Progress, Trouble, address::shown, causes, refused};
use crate::Error;

/// The longest ETag that is stored and sent back, in bytes.
const LONGEST_TAG: usize = 256;

/// The destination of a body.
pub(super) enum Sink<'a> {
    Memory(Vec<u8>),
    File(&'a mut File),
}

impl Sink<'_> {
    /// Discards all bytes.
    async fn clear(&mut self) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => bytes.clear(),
            Self::File(file) => {
                file.set_len(0).await?;
                file.rewind().await?;
            }
        }
        Ok(())
    }

    async fn add(&mut self, piece: &[u8]) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => bytes.extend_from_slice(piece),
            Self::File(file) => file.write_all(piece).await?,
        }
        Ok(())
    }

    /// Flushes the file: `tokio` reports a failure of the last write only here.
    async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::File(file) => file.flush().await,
        }
    }
}

/// A complete body.
pub(super) struct Body {
    pub(super) bytes: u64,
    pub(super) etag: Option<String>,
}

impl Client {
    /// Requests the whole body. `None` when the server answers that nothing changed.
    pub(super) async fn once(
        &self,
        ask: Ask<'_>,
        url: &Url,
        etag: Option<&str>,
        to: &mut Sink<'_>,
        progress: Progress<'_>,
    ) -> Result<Option<Body>, Trouble> {
        let known = etag.and_then(|tag| HeaderValue::from_str(tag).ok());
        let conditional = known.is_some();
        let mut request = self
            .http
            .get(url.clone())
            .header(ACCEPT_ENCODING, "identity");
        request = match ask.auth {
            Auth::Basic { user, password } => request.basic_auth(user, Some(password)),
            Auth::Bearer(token) => request.bearer_auth(token),
            Auth::None => request,
        };
        if let Some(tag) = known {
            request = request.header(IF_NONE_MATCH, tag);
        }
        // Fails for credentials that no header can hold, such as a token with a line break.
        let request = request.build().map_err(|error| {
            Error::configuration(format!(
                "{} cannot be requested: {}",
                shown(url),
                causes(error)
            ))
        })?;
        let response = self
            .http
            .execute(request)
            .await
            .map_err(|error| unsent(ask, url, error))?;
        match response.status() {
            StatusCode::OK => body(ask, response, to, progress).await.map(Some),
            StatusCode::NOT_MODIFIED if conditional => Ok(None),
            status => Err(refused(ask, response.url(), status, response.headers())),
        }
    }
}

/// The error of a request without an answer.
fn unsent(ask: Ask<'_>, url: &Url, error: reqwest::Error) -> Trouble {
    if error.is_redirect() {
        let refusal =
            std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<Error>());
        if let Some(refusal) = refusal {
            return Trouble::Final(refusal.clone());
        }
    }
    let from = shown(error.url().unwrap_or(url));
    if error.is_builder() {
        return Trouble::Final(Error::integrity(format!(
            "{from} redirects to no valid address"
        )));
    }
    Trouble::again(format!(
        "{from} does not give {}: {}",
        ask.what,
        causes(error)
    ))
}

/// Reads the body, and checks its type, encoding and length.
async fn body(
    ask: Ask<'_>,
    mut response: Response,
    to: &mut Sink<'_>,
    progress: Progress<'_>,
) -> Result<Body, Trouble> {
    let (what, url, whole) = (ask.what, shown(response.url()), response.content_length());
    let integrity = |fault: String| Error::integrity(format!("{url} gave {fault}"));
    if is_html(response.headers()) && !ask.html {
        let text = format!(
            "{url} gave a page of HTML for {what}: a login, a proxy's notice or a maintenance page"
        );
        return Err(Error::unavailable(text).into());
    }
    if let Some(encoding) = encoding(response.headers()) {
        return Err(integrity(format!(
            "{what} encoded as {encoding}, which was not requested"
        ))
        .into());
    }
    let too_large = || {
        integrity(format!(
            "more than {} bytes for {what}; it cannot be that",
            ask.cap
        ))
    };
    if whole.is_some_and(|whole| whole > ask.cap) {
        return Err(too_large().into());
    }
    let etag = etag(response.headers());
    let storage = |error| Error::storage(format!("the file for {what}"), &error);
    to.clear().await.map_err(storage)?;
    let mut bytes = 0;
    loop {
        let piece = match response.chunk().await {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(error) => {
                let all = whole.map_or_else(String::new, |whole| format!(" of {whole}"));
                let text = format!(
                    "{url} stopped sending {what} after {bytes} bytes{all}: {}",
                    causes(error)
                );
                return Err(Trouble::again(text));
            }
        };
        bytes += piece.len() as u64;
        if bytes > ask.cap {
            return Err(too_large().into());
        }
        to.add(&piece).await.map_err(storage)?;
        progress(bytes, whole);
    }
    to.flush().await.map_err(storage)?;
    Ok(Body { bytes, etag })
}

/// The ETag, if it can be sent back.
fn etag(headers: &HeaderMap) -> Option<String> {
    let tag = headers.get(ETAG)?.to_str().ok()?.trim();
    (!tag.is_empty() && tag.len() <= LONGEST_TAG).then(|| tag.to_owned())
}

fn is_html(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .map(|kind| kind.as_bytes().trim_ascii_start().to_ascii_lowercase())
        .unwrap_or_default();
    kind.starts_with(b"text/html") || kind.starts_with(b"application/xhtml")
}

/// The content encoding, unless it is `identity`: requests accept no other.
fn encoding(headers: &HeaderMap) -> Option<String> {
    let encoding = headers.get(CONTENT_ENCODING)?.as_bytes().trim_ascii();
    let plain = encoding.is_empty() || encoding.eq_ignore_ascii_case(b"identity");
    (!plain).then(|| String::from_utf8_lossy(encoding).chars().take(20).collect())
}
