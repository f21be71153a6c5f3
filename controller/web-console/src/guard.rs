//! Refusals before any handler: requests of other pages, ambiguous headers, bodies without bounds, logins without TLS.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use serving::{auth::bearer, connections::Peer};

use crate::{Console, address::Address, problem::Problem};

/// Maximum size of a body, in bytes.
const BODY: usize = 64 << 10;
/// Timeout for a whole body.
const DEADLINE: Duration = Duration::from_secs(10);
/// The header of each change. A page of another origin cannot send it without CORS, which the console does not offer.
pub const CHANGE: HeaderName = HeaderName::from_static("pawl-request");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Headers that decide something here. A proxy and the console may disagree on which of two counts.
const SINGLE: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::CONTENT_LENGTH,
    header::COOKIE,
    header::HOST,
    header::ORIGIN,
    CHANGE,
    FETCH_SITE,
    FORWARDED_PROTO,
];
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Adds the headers that limit a browser. A handler that sets a header of these keeps its own.
pub async fn headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    // Only hashed assets may be stored, and their handler tells so.
    let more = [(header::CACHE_CONTROL, "no-store")];
    for (name, value) in HEADERS.into_iter().chain(more) {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Checks a request, and reads its body within bounds.
pub async fn check(State(console): State<Arc<Console>>, request: Request, next: Next) -> Response {
    match checked(&console, request).await {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

async fn checked(console: &Console, request: Request) -> Result<Request, Problem> {
    let headers = request.headers();
    if let Some(name) = SINGLE
        .iter()
        .find(|name| headers.get_all(*name).iter().count() > 1)
    {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "DuplicateHeader",
            format!("the header {name} is there twice; send it once"),
        ));
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    // A browser may send other credentials in this header by itself.
    if !is_read && bearer(headers).is_none() {
        is_own_page(&console.address, headers)?;
    }
    let (parts, body) = request.into_parts();
    let read = tokio::time::timeout(DEADLINE, to_bytes(body, BODY)).await;
    let body = read
        .map_err(|_| {
            Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "TooSlow",
                format!(
                    "the body took more than {} s; nothing was changed",
                    DEADLINE.as_secs()
                ),
            )
        })?
        .map_err(|_| {
            Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "TooLarge",
                format!(
                    "the body was cut off, or has more than {} KiB; nothing was changed",
                    BODY >> 10
                ),
            )
        })?;
    Ok(Request::from_parts(parts, Body::from(body)))
}

/// Whether a change comes from a page of this console. Browsers send `Sec-Fetch-Site` to HTTPS and loopback, and `Origin` everywhere.
fn is_own_page(address: &Address, headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap_or_default())
    };
    let (site, origin) = (text(FETCH_SITE), text(header::ORIGIN));
    let is_same = site.is_none_or(|site| site == "same-origin")
        && origin.is_none_or(|origin| address.is_origin(origin))
        && (site.is_some() || origin.is_some());
    if !is_same {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "OtherOrigin",
            format!(
                "a change must come from a page of {address}; open it there, or set --url to the address that you use"
            ),
        ));
    }
    if text(CHANGE) != Some("1") {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "NotAsked",
            "a change needs the header Pawl-Request: 1",
        ));
    }
    Ok(())
}

/// Whether a proxy passed the request on.
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED_PROTO) || headers.contains_key("x-forwarded-for")
}

/// Refuses to log in where others can read the connection.
pub async fn confidential(
    State(console): State<Arc<Console>>,
    request: Request,
    next: Next,
) -> Response {
    if is_confidential(&console, &request) {
        return next.run(request).await;
    }
    Problem::new(
        StatusCode::FORBIDDEN,
        "PlainHttp",
        "login over plain HTTP is refused: use https, or kubectl port-forward and a loopback address. Behind a proxy that terminates \
         TLS and sends X-Forwarded-Proto: https, set --url to its address and --behind-tls-proxy to its network",
    )
    .into_response()
}

fn is_confidential(console: &Console, request: &Request) -> bool {
    let text = |name| {
        request
            .headers()
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let peer = request.extensions().get::<Peer>();
    let is_proxied = || {
        peer.is_some_and(|Peer(peer)| console.proxies.iter().any(|net| net.contains(peer)))
            && text(FORWARDED_PROTO) == Some("https")
    };
    // A URL on loopback is the default, also where people use another address and it was not set.
    let is_local =
        || console.address.is_loopback() && text(header::HOST).is_some_and(Address::is_local);
    console.is_tls || is_proxied() || is_local()
}
