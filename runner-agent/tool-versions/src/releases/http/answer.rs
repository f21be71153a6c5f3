//! The headers of an answer that describe its body.

use reqwest::header::{CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap};

/// The longest ETag that is stored and sent back, in bytes.
const LONGEST_TAG: usize = 256;

/// The ETag, if it can be sent back.
pub(super) fn etag(headers: &HeaderMap) -> Option<String> {
    let tag = headers.get(ETAG)?.to_str().ok()?.trim();
    (!tag.is_empty() && tag.len() <= LONGEST_TAG).then(|| tag.to_owned())
}

/// Whether equal tags mean equal bytes (RFC 9110, 8.8.1). Only then can a download be resumed.
pub(super) fn is_strong(tag: &str) -> bool {
    tag.starts_with('"')
}

pub(super) fn is_html(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes().trim_ascii_start().to_ascii_lowercase()).unwrap_or_default();
    kind.starts_with(b"text/html") || kind.starts_with(b"application/xhtml")
}

/// The content encoding, unless it is `identity`: requests accept no other.
pub(super) fn encoding(headers: &HeaderMap) -> Option<String> {
    let encoding = headers.get(CONTENT_ENCODING)?.as_bytes().trim_ascii();
    let plain = encoding.is_empty() || encoding.eq_ignore_ascii_case(b"identity");
    (!plain).then(|| String::from_utf8_lossy(encoding).chars().take(20).collect())
}

/// The range of a partial answer: first byte, last byte, and the length of the whole when it is given (RFC 9110, 14.4).
pub(super) fn range(headers: &HeaderMap) -> Option<(u64, u64, Option<u64>)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (part, whole) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = part.trim().split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    let whole = if whole == "*" { None } else { Some(whole.parse().ok()?) };
    (first <= last && whole.is_none_or(|whole| last < whole)).then_some((first, last, whole))
}
