//! One try: the request, its redirects, the head of the answer, its body.

use reqwest::{
    RequestBuilder, Response, StatusCode, Url,
    header::{ACCEPT_ENCODING, HeaderValue, IF_NONE_MATCH, IF_RANGE, LOCATION, RANGE},
};
use tokio::time::timeout;

use super::{
    Ask, Auth, Client, Trouble,
    address::{is_same_server, shown},
    answer, causes,
    received::Received,
    redirect, refused,
};
use crate::Error;

impl Client {
    /// Asks once, for all or for the rest; whether there is a body.
    pub(super) async fn once(
        &self,
        ask: Ask<'_>,
        url: &Url,
        etag: Option<&str>,
        to: &mut Received<'_>,
        progress: &mut (dyn FnMut(u64, Option<u64>) + Send),
    ) -> Result<bool, Trouble> {
        let rest = to.resumable().and_then(|tag| HeaderValue::from_str(tag).ok()).map(|tag| (to.bytes, tag));
        let known = etag.and_then(|tag| HeaderValue::from_str(tag).ok());
        let resumed = rest.is_some();
        let asks_again = known.is_some() && !resumed;
        let prepare = |request: RequestBuilder| match (&rest, &known) {
            (Some((from, tag)), _) => request.header(RANGE, format!("bytes={from}-")).header(IF_RANGE, tag.clone()),
            (None, Some(tag)) => request.header(IF_NONE_MATCH, tag.clone()),
            (None, None) => request,
        };
        let response = self.walk(ask, url, prepare).await?;
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
            StatusCode::NOT_MODIFIED if asks_again => return Ok(false),
            _ => return Err(refused(ask, response.url(), status, response.headers())),
        }
        self.body(ask, response, to, progress).await?;
        Ok(true)
    }

    /// Sends, and follows redirects.
    async fn walk(
        &self,
        ask: Ask<'_>,
        url: &Url,
        prepare: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, Trouble> {
        let mut asked = vec![url.clone()];
        let mut here = url.clone();
        // Once the credentials were left out they stay out: who redirected us back is not the one they are for.
        let mut is_ours = true;
        loop {
            let request = self.http.get(here.clone()).header(ACCEPT_ENCODING, "identity");
            let request = match ask.auth {
                Auth::Basic { user, password } if is_ours => request.basic_auth(user, Some(password)),
                Auth::Bearer(token) if is_ours => request.bearer_auth(token),
                _ => request,
            };
            let limit = self.rules.connect + self.rules.silence;
            let response = match timeout(limit, prepare(request).send()).await {
                Ok(Ok(response)) => response,
                // Credentials that cannot be sent, such as a token with a line break.
                Ok(Err(error)) if error.is_builder() => {
                    let text = format!("{} cannot be asked: {}", shown(&here), causes(error));
                    return Err(Error::configuration(text).into());
                }
                Ok(Err(error)) => {
                    return Err(Trouble::again(format!("{} does not give {}: {}", shown(&here), ask.what, causes(error))));
                }
                Err(_) => {
                    let text = format!("{} did not answer within {} s", shown(&here), limit.as_secs_f64());
                    return Err(Trouble::again(text));
                }
            };
            let Some(location) = response.headers().get(LOCATION).filter(|_| redirect::is_redirect(response.status())) else {
                return Ok(response);
            };
            let next = redirect::next(&asked, location.as_bytes())?;
            is_ours = is_ours && is_same_server(&here, &next);
            asked.push(next.clone());
            here = next;
        }
    }

    /// Reads the body, and nothing that is none of it.
    async fn body(
        &self,
        ask: Ask<'_>,
        mut response: Response,
        to: &mut Received<'_>,
        progress: &mut (dyn FnMut(u64, Option<u64>) + Send),
    ) -> Result<(), Trouble> {
        let (what, url) = (ask.what, shown(response.url()));
        if answer::is_html(response.headers()) && !ask.html {
            let text = format!("{url} gave a page of HTML for {what}: a login, a proxy's notice or a maintenance page");
            return Err(Error::unavailable(text).into());
        }
        if let Some(packing) = answer::packing(response.headers()) {
            return Err(Error::integrity(format!("{url} gave {what} packed as {packing}, which was not asked for")).into());
        }
        let too_large = || Error::integrity(format!("{url} gave more than {} bytes for {what}; it cannot be that", ask.cap));
        if to.whole.is_some_and(|whole| whole > ask.cap) {
            return Err(too_large().into());
        }
        let all = to.whole.map_or_else(String::new, |whole| format!(" of {whole}"));
        loop {
            let piece = match timeout(self.rules.silence, response.chunk()).await {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => break,
                Ok(Err(error)) => {
                    let text = format!("{url} cut {what} off after {} bytes{all}: {}", to.bytes, causes(error));
                    return Err(Trouble::again(text));
                }
                Err(_) => {
                    let seconds = self.rules.silence.as_secs_f64();
                    let text = format!("{url} was silent for {seconds} s after {} bytes{all} of {what}", to.bytes);
                    return Err(Trouble::again(text));
                }
            };
            let bytes = to.bytes + piece.len() as u64;
            if bytes > ask.cap {
                return Err(too_large().into());
            }
            if let Some(whole) = to.whole.filter(|whole| bytes > *whole) {
                return Err(
                    Error::integrity(format!("{url} gave more than the {whole} bytes it had announced for {what}")).into()
                );
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
}

/// Judges a part that is to be joined to what came before.
async fn join(ask: Ask<'_>, response: &Response, to: &mut Received<'_>) -> Result<(), Trouble> {
    let (what, url) = (ask.what, shown(response.url()));
    let tag = answer::etag(response.headers());
    if tag.is_some() && tag != to.etag {
        // It should have sent all of the new one: `If-Range` asks for that. A part of it is of no use.
        to.restart(what).await?;
        return Err(Trouble::again(format!("{what} at {url} changed while it was read")));
    }
    let lie = |why: String| Error::integrity(format!("{url} gave another part of {what} than was asked for: {why}"));
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
