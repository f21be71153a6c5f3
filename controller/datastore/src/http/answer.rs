//! Responses with and without content.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use futures::TryStreamExt as _;

use crds::datastore::{HEADER_DIGEST, Problem, Stored};
use serving::problem;

use crate::{blob::store::ByteStream, service::Service};

pub fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// A response with content of known length and digest.
///
/// # Errors
/// `Corrupt` when the digest is invalid; `Unavailable` when the service shuts down.
pub async fn content(
    service: &Service,
    stored: &Stored,
    stream: ByteStream,
) -> Result<Response, Problem> {
    let (metrics, permit) = (
        service.metrics.clone(),
        service.download(stored.size).await?,
    );
    let counted = stream.inspect_ok(move |piece| {
        let _held = &permit;
        metrics.sent(piece.len());
    });
    let counted = counted.inspect_err(|problem| {
        // The client sees a truncated response.
        tracing::error!(reason = problem.reason, "{}", problem.message);
    });
    let mut response = Response::new(Body::from_stream(counted));
    let digest = HeaderValue::try_from(&stored.digest)
        .map_err(|_| problem::corrupt("the digest is none"))?;
    response.headers_mut().insert(HEADER_DIGEST, digest);
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, stored.size.into());
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    Ok(response)
}
