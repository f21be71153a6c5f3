//! Headers of requests.

use axum::http::HeaderMap;

use crds::datastore::{HEADER_DIGEST, Problem};
use serving::problem::invalid;

/// The announced digest of the body.
///
/// # Errors
/// `Invalid` when it is not a digest.
pub fn digest(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let is_digest = |text: &&str| {
        text.strip_prefix("sha256:").is_some_and(|hex| {
            hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    match text(headers, HEADER_DIGEST)? {
        None => Ok(None),
        Some(text) => Some(text)
            .filter(is_digest)
            .map(Some)
            .ok_or_else(|| invalid(format!("the header {HEADER_DIGEST} is no digest"))),
    }
}

/// A header that may occur once.
///
/// # Errors
/// `Invalid` when it occurs twice or is not text.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(Some)
            .map_err(|_| invalid(format!("the header {name} is no text"))),
        (Some(_), Some(_)) => Err(invalid(format!("the header {name} is there twice"))),
    }
}
