//! One try: the request, the head of the answer, the body.

use reqwest::{
    Response, StatusCode, Url,
    header::{ACCEPT_ENCODING, HeaderValue, IF_NONE_MATCH, IF_RANGE, RANGE},
};

use super::{Ask, Auth, Client, Progress, Trouble, address::shown, answer, causes, received::Received, refused};
use crate::Error;

impl Client {
    /// Requests the whole body, or the rest of a partial one. Returns false when the server answers that the entity is unchanged.
    pub(super) async fn once(
        &self,
        ask: Ask<'_>,
        url: &Url,
        etag: Option<&str>,
        to: &mut Received<'_>,
        progress: Progress<'_>,
    ) -> Result<bool, Trouble> {
        let header = |tag: &str| HeaderValue::from_str(tag).ok();
        let rest = to.resumable().and_then(header);
        let known = etag.and_then(header).filter(|_| rest.is_none());
        let (resumed, conditional) = (rest.is_some(), known.is_some());
        let mut request = self.http.get(url.clone()).header(ACCEPT_ENCODING, "identity");
        request = match ask.auth {
            Auth::Basic { user, password } => request.basic_auth(user, Some(password)),
            Auth::Bearer(token) => request.bearer_auth(token),
            Auth::None => request,
        };
        if let Some(tag) = rest {
            request = request.header(RANGE, format!("bytes={}-", to.bytes)).header(IF_RANGE, tag);
        } else if let Some(tag) = known {
            request = request.header(IF_NONE_MATCH, tag);
        }
        // Fails for credentials that no header can hold, such as a token with a line break.
        let request = request
            .build()
            .map_err(|error| Error::configuration(format!("{} cannot be requested: {}", shown(url), causes(error))))?;
        let response = self.http.execute(request).await.map_err(|error| unsent(ask, url, error))?;
        let status = response.status();
        match status {
            StatusCode::OK => {
                if to.bytes > 0 {
                    progress(0, None);
                }
                to.restart(ask.what).await?;
                (to.whole, to.etag) = (response.content_length(), answer::etag(response.headers()));
            }
            StatusCode::PARTIAL_CONTENT if resumed => join(ask, &response, to).await?,
            StatusCode::RANGE_NOT_SATISFIABLE if resumed => {
                to.restart(ask.what).await?;
                return Err(Trouble::again(format!("{} has less of {} than it gave before", shown(url), ask.what)));
            }
            StatusCode::NOT_MODIFIED if conditional => return Ok(false),
            _ => return Err(refused(ask, response.url(), status, response.headers())),
        }
        body(ask, response, to, progress).await?;
        Ok(true)
    }
}

/// The error of a request without an answer.
fn unsent(ask: Ask<'_>, url: &Url, error: reqwest::Error) -> Trouble {
    if error.is_redirect() {
        let refusal = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<Error>());
        if let Some(refusal) = refusal {
            return Trouble::Final(refusal.clone());
        }
    }
    let from = shown(error.url().unwrap_or(url));
    if error.is_builder() {
        return Trouble::Final(Error::integrity(format!("{from} redirects to no valid address")));
    }
    Trouble::again(format!("{from} does not give {}: {}", ask.what, causes(error)))
}

/// Reads the body, and checks its type, encoding and length.
async fn body(ask: Ask<'_>, mut response: Response, to: &mut Received<'_>, progress: Progress<'_>) -> Result<(), Trouble> {
    let (what, url) = (ask.what, shown(response.url()));
    if answer::is_html(response.headers()) && !ask.html {
        let text = format!("{url} gave a page of HTML for {what}: a login, a proxy's notice or a maintenance page");
        return Err(Error::unavailable(text).into());
    }
    if let Some(encoding) = answer::encoding(response.headers()) {
        return Err(Error::integrity(format!("{url} gave {what} encoded as {encoding}, which was not requested")).into());
    }
    let too_large = || Error::integrity(format!("{url} gave more than {} bytes for {what}; it cannot be that", ask.cap));
    if to.whole.is_some_and(|whole| whole > ask.cap) {
        return Err(too_large().into());
    }
    let all = to.whole.map_or_else(String::new, |whole| format!(" of {whole}"));
    loop {
        let piece = match response.chunk().await {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(error) => {
                let text = format!("{url} stopped sending {what} after {} bytes{all}: {}", to.bytes, causes(error));
                return Err(Trouble::again(text));
            }
        };
        let bytes = to.bytes + piece.len() as u64;
        if bytes > ask.cap {
            return Err(too_large().into());
        }
        if let Some(whole) = to.whole.filter(|whole| bytes > *whole) {
            let text = format!("{url} gave more than the {whole} bytes it had announced for {what}");
            return Err(Error::integrity(text).into());
        }
        to.add(what, &piece).await?;
        progress(to.bytes, to.whole);
    }
    match to.whole {
        Some(whole) if whole != to.bytes => {
            Err(Trouble::again(format!("{url} ended {what} after {} bytes of {whole}", to.bytes)))
        }
        _ => Ok(()),
    }
}

/// Checks the head of a partial answer (RFC 9110, 15.3.7) before its body is appended.
async fn join(ask: Ask<'_>, response: &Response, to: &mut Received<'_>) -> Result<(), Trouble> {
    let (what, url) = (ask.what, shown(response.url()));
    let tag = answer::etag(response.headers());
    if tag.is_some() && tag != to.etag {
        // The server ignores `If-Range`. A part of the new entity cannot be joined to the old one.
        to.restart(what).await?;
        return Err(Trouble::again(format!("{what} at {url} changed while it was read")));
    }
    let lie = |why: String| Error::integrity(format!("{url} gave another part of {what} than was requested: {why}"));
    let (first, last, whole) = answer::range(response.headers()).ok_or_else(|| lie("its Content-Range cannot be read".into()))?;
    if first != to.bytes {
        return Err(lie(format!("from byte {first}, not {}", to.bytes)).into());
    }
    if let (Some(before), Some(now)) = (to.whole, whole)
        && before != now
    {
        return Err(lie(format!("of {now} bytes, not {before}, though it is the same by its ETag")).into());
    }
    to.whole = to.whole.or(whole);
    let length = last - first + 1;
    if response.content_length().is_some_and(|announced| announced != length) {
        return Err(lie(format!("{length} bytes by its Content-Range and others by its Content-Length")).into());
    }
    Ok(())
}
